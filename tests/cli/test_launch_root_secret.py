"""A root's token in the environment reaches the daemon and no other process."""

from __future__ import annotations

from pathlib import Path

from kvrun.config import parse_config
from kvrun.launch.processes import (
    collector_spec,
    control_spec,
    engine_spec,
    gateway_spec,
    instance_spec,
)
from kvrun.launch.secrets import Launch


def test_only_the_daemon_gets_the_roots_token(tmp_path: Path) -> None:
    text = """
[deployment]
context_window = 1000
[keys]
root = "openbao:https://bao.example.com/transit/chat"
root_secret = "env:CHAT_TOKEN"
"""
    file = tmp_path / "kvrun.toml"
    config = parse_config(text, {}, source=file)
    environment = {"CHAT_TOKEN": "hvs.secret", "PATH": "/bin"}
    launch = Launch.create()
    with_it = instance_spec(config, file, launch, environment).environment
    assert with_it["CHAT_TOKEN"] == "hvs.secret"
    for spec in (
        engine_spec(config, environment),
        gateway_spec(config, file, launch, environment),
        collector_spec(config, file, environment),
        control_spec(config, file, environment),
    ):
        assert "hvs.secret" not in spec.environment.values()
        assert spec.environment["PATH"] == "/bin"
