"""``kvrun instance`` and ``kvrun gateway``: one process each."""

import logging
import os

from kvrun.cli.options import DEFAULT_CONFIG, ConfigFile, read_config
from kvrun.launch.secrets import gateway_secrets, instance_secrets
from kvrun.process import PARENT_VARIABLE, end_with_parent


def instance(config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Run the instance daemon alone: keys, sealed blocks and the audit log of one deployment.

    Started by `kvrun up`, it gets its launch tokens through a descriptor. Alone, it keeps them in
    DATA_DIR/run (0600), where `kvrun gateway` and an engine on the same machine find them.

    Example: kvrun instance --config /etc/kvrun/kvrun.toml
    """
    from kvrun.instance import daemon

    end_with_parent(os.environ.get(PARENT_VARIABLE))
    config = read_config(config_file)
    _log_to_stderr(config.instance.log_level)
    secrets = instance_secrets(config, os.environ)
    daemon.run(
        config,
        daemon.LaunchSecrets(
            engine_token=secrets.engine_token,
            gateway_token=secrets.gateway_token,
            admin_token=secrets.admin_token,
            claim_public_keys=secrets.claim_public_keys,
        ),
    )


def gateway(config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Run the gateway alone, in front of an engine on this machine (gateway.engine_url).

    It reads its token and the claim key from where `kvrun instance` keeps them.

    Example: KVRUN_GATEWAY__PORT=8443 kvrun gateway
    """
    from kvrun.gateway.server import run_gateway

    end_with_parent(os.environ.get(PARENT_VARIABLE))
    config = read_config(config_file)
    _log_to_stderr(config.instance.log_level)
    secrets = gateway_secrets(config, os.environ)
    run_gateway(config.gateway, claim_key=secrets.claim_key, token=secrets.token)


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
