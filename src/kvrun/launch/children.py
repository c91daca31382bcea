"""What the daemon's and the gateway's process do: settings and secrets in, then serve.

The same whether `kvrun up` starts them or a person does. Each imports only what it runs.
"""

from collections.abc import Mapping
from pathlib import Path

from kvrun.config import KvrunConfig, load_config
from kvrun.launch.secrets import gateway_secrets, instance_secrets
from kvrun.process import PARENT_VARIABLE, end_with_parent, harden_process
from kvrun.telemetry.exposition import deployment_labels
from kvrun.telemetry.logs import LogFormat, configure_logging
from kvrun.telemetry.tracing import open_tracing


def run_instance(config_file: Path, environment: Mapping[str, str]) -> None:
    """Run the instance daemon until it is told to stop. Raises KvrunError."""
    from kvrun.instance.daemon import run

    config = _begin("instance", config_file, environment)
    run(config, instance_secrets(config, environment))


def run_gateway(config_file: Path, environment: Mapping[str, str]) -> None:
    """Run the gateway until it is told to stop. Raises KvrunError."""
    from kvrun.gateway import server

    config = _begin("gateway", config_file, environment)
    secrets = gateway_secrets(config, environment)
    server.run_gateway(
        config.gateway,
        claim_key=secrets.claim_key,
        token=secrets.token,
        labels=deployment_labels(config.deployment.workspace, config.deployment.name),
        tracing=open_tracing("kvrun-gateway", environment),
    )


def _begin(process: str, config_file: Path, environment: Mapping[str, str]) -> KvrunConfig:
    end_with_parent(environment.get(PARENT_VARIABLE))
    harden_process()  # before any secret is read
    config = load_config(config_file, environment)
    configure_logging(
        process, level=config.instance.log_level, log_format=LogFormat(config.log.format)
    )
    return config
