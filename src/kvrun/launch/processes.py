"""The children of ``kvrun up``: command line, environment, and how to tell they are ready."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvrun.config import KvrunConfig
from kvrun.launch.engines import engine_command
from kvrun.launch.readiness import http_answers, unix_accepts
from kvrun.launch.secrets import Launch
from kvrun.launch.supervisor import TOKEN_FD_VARIABLE, ChildSpec

INSTANCE, ENGINE, GATEWAY, COLLECTOR = "instance", "engine", "gateway", "collector"
CONTROL, POLICY, KEYS = "control", "policy", "keys"
_AGAIN_S = 60.0
_KEYS_AGAIN_S = 1.0


def instance_command(config_file: Path) -> list[str]:
    """The daemon's arguments."""
    return [sys.executable, "-m", "kvrun", "instance", "--config", str(config_file)]


def gateway_command(config_file: Path) -> list[str]:
    """The gateway's arguments."""
    return [sys.executable, "-m", "kvrun", "gateway", "--config", str(config_file)]


def instance_spec(
    config: KvrunConfig, config_file: Path, launch: Launch, environment: Mapping[str, str]
) -> ChildSpec:
    """The daemon: ready when its socket accepts."""
    socket = config.instance_socket
    return ChildSpec(
        name=INSTANCE,
        command=tuple(instance_command(config_file)),
        environment=_own_environment(config, environment, root_secret=True),
        ready=lambda: unix_accepts(socket),
        sockets=(socket,),
        secret=launch.for_instance(),
    )


def keys_spec(config: KvrunConfig, config_file: Path, environment: Mapping[str, str]) -> ChildSpec:
    """The key service: while it is away the others go on, and it is started again."""
    socket = config.key_socket
    command = ("-m", "kvrun", "keys", "serve", "--config", str(config_file))
    return ChildSpec(
        name=KEYS,
        command=(sys.executable, *command),
        environment=_own_environment(config, environment, root_secret=True),
        ready=lambda: unix_accepts(socket),
        sockets=(socket,),
        restart_after_s=_KEYS_AGAIN_S,
    )


def engine_spec(
    config: KvrunConfig,
    environment: Mapping[str, str],
    *,
    cpus: Sequence[int] | None = None,
    connector: bool = True,
) -> ChildSpec:
    """The engine: ready when its health check answers. ``config`` is the resolved one."""
    command, added = engine_command(config, cpus=cpus, connector=connector)
    url = engine_url(config)
    return ChildSpec(
        name=ENGINE,
        command=tuple(command),
        environment={**_without_kvrun(_without_root_secret(config, environment)), **added},
        ready=lambda: http_answers(url, "/health"),
        sockets=_engine_sockets(config),
        ready_timeout_s=config.engine.startup_timeout_s,
        stop_timeout_s=20.0,
    )


def gateway_spec(
    config: KvrunConfig, config_file: Path, launch: Launch, environment: Mapping[str, str]
) -> ChildSpec:
    """The gateway: ready when it says that engine and daemon are there."""
    url = gateway_url(config)
    return ChildSpec(
        name=GATEWAY,
        command=tuple(gateway_command(config_file)),
        environment=_own_environment(config, environment),
        ready=lambda: http_answers(url, "/healthz"),
        stop_timeout_s=10.0,
        secret=launch.for_gateway(),
    )


def collector_spec(
    config: KvrunConfig, config_file: Path, environment: Mapping[str, str]
) -> ChildSpec:
    """The collector of the audit log: nobody waits for it, and its end ends nothing else."""
    command = ("-m", "kvrun", "audit", "collect", "--config", str(config_file))
    return ChildSpec(
        name=COLLECTOR,
        command=(sys.executable, *command),
        environment=_own_environment(config, environment),
        ready=lambda: True,
        restart_after_s=_AGAIN_S,
    )


def policy_spec(
    config: KvrunConfig, config_file: Path, environment: Mapping[str, str]
) -> ChildSpec:
    """Who follows the policy's repository: nobody waits for it, and its end ends nothing else."""
    command = ("-m", "kvrun", "policy", "sync", "--follow", "--config", str(config_file))
    return ChildSpec(
        name=POLICY,
        command=(sys.executable, *command),
        environment=_own_environment(config, environment),
        ready=lambda: True,
        restart_after_s=_AGAIN_S,
    )


def control_spec(
    config: KvrunConfig, config_file: Path, environment: Mapping[str, str]
) -> ChildSpec:
    """The control plane: nobody waits for it, and its end ends nothing else.

    The deployments that it makes are not its children; they go on when this one stops.
    """
    return ChildSpec(
        name=CONTROL,
        command=(sys.executable, "-m", "kvrun", "control", "--config", str(config_file)),
        environment=_own_environment(config, environment),
        ready=lambda: True,
        restart_after_s=_AGAIN_S,
    )


def engine_url(config: KvrunConfig) -> str:
    """Where the engine that kvrun starts listens."""
    if config.engine.transport == "unix":
        return f"unix:{config.layout.engine_socket}"
    return f"http://127.0.0.1:{config.engine.port}"


def gateway_url(config: KvrunConfig) -> str:
    """Where the gateway is reached from this machine."""
    gateway = config.gateway
    scheme = "https" if gateway.tls_cert else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(gateway.host, gateway.host)  # noqa: S104
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{scheme}://{host}:{gateway.port}"


def _engine_sockets(config: KvrunConfig) -> tuple[Path, ...]:
    behind = (config.layout.llama_socket,) if config.engine.kind == "llama.cpp" else ()
    return (config.layout.engine_socket, *behind) if config.engine.transport == "unix" else behind


def _own_environment(
    config: KvrunConfig, environment: Mapping[str, str], *, root_secret: bool = False
) -> dict[str, str]:
    """The configuration's variables stay; what was decided since the file was read is added."""
    if not root_secret:
        environment = _without_root_secret(config, environment)
    own = {name: value for name, value in environment.items() if name != TOKEN_FD_VARIABLE}
    own["KVRUN_DEPLOYMENT__MODEL"] = config.deployment.model
    if config.deployment.context_window is not None:
        own["KVRUN_DEPLOYMENT__CONTEXT_WINDOW"] = str(config.deployment.context_window)
    return own


def _without_kvrun(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("KVRUN_")}


def _without_root_secret(config: KvrunConfig, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The key root's token is the daemon's alone."""
    variable = config.keys.root_secret_variable
    return {name: value for name, value in environment.items() if name != variable}
