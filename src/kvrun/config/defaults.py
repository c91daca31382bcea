"""Defaults that one section takes from another, and relative paths made absolute."""

from pathlib import Path
from typing import Any

from kvrun.config.engine import EngineSection
from kvrun.config.instance import InstanceSection
from kvrun.config.layout import DataLayout

_PATHS = (
    ("instance", "data_dir"),
    ("instance", "socket"),
    ("keys", "socket"),
    ("keys", "metrics_socket"),
    ("instance", "token_file"),
    ("instance", "claim_public_key_file"),
    ("instance", "metrics_socket"),
    ("keys", "root_ca_file"),
    ("keys", "root_folder"),
    ("gateway", "api_keys_file"),
    ("gateway", "tls_cert"),
    ("gateway", "tls_key"),
    ("gateway", "engine_api_key_file"),
    ("gateway", "instance_socket"),
    ("gateway", "claim_key_file"),
    ("gateway", "state_dir"),
    ("gateway", "elsewhere_ca_file"),
    ("engine", "llama_server"),
    ("audit", "metrics_key_file"),
    ("audit", "collector_metrics_socket"),
    ("alerts", "webhook_secret_file"),
    ("alerts", "webhook_ca_file"),
    ("witness", "keys_file"),
    ("witness", "git_repository"),
    ("witness", "git_ssh_key_file"),
    ("witness", "git_token_file"),
    ("witness", "timestamp_ca_file"),
    ("witness", "tls_ca_file"),
    ("residency", "allowed_signers"),
    ("residency", "ssh_key_file"),
    ("residency", "token_file"),
    ("residency", "ca_file"),
    ("residency", "webhook_secret_file"),
    ("control", "home"),
    ("control", "tls_cert"),
    ("control", "tls_key"),
    ("control", "oidc_client_secret_file"),
)


def complete(document: dict[str, Any], folder: Path) -> None:
    """Fill ``document`` (a parsed kvrun.toml, not validated yet) in place.

    Relative paths are taken from ``folder``. The gateway finds the engine, the daemon and its API
    keys where ``kvrun up`` puts them. What has the wrong type is left for the validation.
    """
    instance = document.setdefault("instance", {})
    gateway = document.setdefault("gateway", {})
    engine = document.setdefault("engine", {})
    keys = document.setdefault("keys", {})
    witness = document.setdefault("witness", {})
    audit = document.setdefault("audit", {})
    alerts = document.setdefault("alerts", {})
    control = document.setdefault("control", {})
    residency = document.setdefault("residency", {})
    sections = (instance, gateway, engine, keys, witness, audit, alerts, control, residency)
    if not all(isinstance(table, dict) for table in sections):
        return
    instance.setdefault("data_dir", str(InstanceSection.model_fields["data_dir"].default))
    for section, key in _PATHS:
        value = document[section].get(key)
        if isinstance(value, str) and value:
            document[section][key] = str((folder / Path(value).expanduser()).absolute())
    if residency.get("repository") and residency.get("mode", "enforce") == "enforce":
        gateway.setdefault("require_daemon", True)
    kind, _, place = str(keys.get("root_secret")).partition(":")
    if kind == "file" and place:
        keys["root_secret"] = f"file:{(folder / Path(place).expanduser()).absolute()}"
    jwt = gateway.get("jwt")
    if isinstance(jwt, dict) and isinstance(jwt.get("jwks_file"), str):
        jwt["jwks_file"] = str((folder / Path(jwt["jwks_file"]).expanduser()).absolute())
    if isinstance(instance["data_dir"], str):
        _connect(instance, gateway, engine)
        control.setdefault("home", str(Path(instance["data_dir"]) / "control-plane"))


def _connect(instance: dict[str, Any], gateway: dict[str, Any], engine: dict[str, Any]) -> None:
    layout = DataLayout(Path(instance["data_dir"]))
    fields = EngineSection.model_fields
    if engine.get("transport", fields["transport"].default) == "tcp":
        engine_url = f"http://127.0.0.1:{engine.get('port', fields['port'].default)}"
    else:
        engine_url = f"unix:{layout.engine_socket}"
    gateway.setdefault("engine_url", engine_url)
    gateway.setdefault("instance_socket", instance.get("socket", str(layout.instance_socket)))
    gateway.setdefault("state_dir", str(layout.data_dir / "gateway"))
    gateway.setdefault("api_keys_file", str(layout.api_keys))
