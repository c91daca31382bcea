"""``kvrun instance`` and ``kvrun gateway``: one process each."""

import os

from kvrun.cli.options import DEFAULT_CONFIG, ConfigFile
from kvrun.launch.children import run_gateway, run_instance


def instance(config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Run the instance daemon alone: keys, sealed blocks and the audit log of one deployment.

    Started by `kvrun up`, it gets its launch tokens through a descriptor. Alone, it keeps them in
    DATA_DIR/run (0600), where `kvrun gateway` and an engine on the same machine find them.

    Example: kvrun instance --config /etc/kvrun/kvrun.toml
    """
    run_instance(config_file, os.environ)


def gateway(config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Run the gateway alone, in front of an engine on this machine (gateway.engine_url).

    It reads its token and the claim key from where `kvrun instance` keeps them.

    Example: KVRUN_GATEWAY__PORT=8443 kvrun gateway
    """
    run_gateway(config_file, os.environ)
