"""``kvrun gateway``: the gateway's process alone."""

import os

from kvrun.cli.options import DEFAULT_CONFIG, ConfigFile
from kvrun.launch.children import run_gateway


def gateway(config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Run the gateway alone, in front of an engine on this machine (gateway.engine_url).

    It reads its token and the claim key from where `kvrun instance` keeps them.

    Example: KVRUN_GATEWAY__PORT=8443 kvrun gateway
    """
    run_gateway(config_file, os.environ)
