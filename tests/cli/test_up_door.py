"""A drain ends with the processes that it was for."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from kvrun.cli import up
from kvrun.config import load_config
from kvrun.deployments.folder import close_gateway
from kvrun.errors import KvrunError
from kvrun.gateway.draining import Drain
from kvrun.gateway.errors import GatewayError
from kvrun.launch.secrets import prepare_run_folder


def test_an_up_takes_requests_although_the_one_before_it_was_drained(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def the_start_goes_on(*given: object) -> None:
        raise KvrunError("far enough")

    monkeypatch.setattr(up.prepare, "check", lambda *given: None)
    monkeypatch.setattr(up.prepare, "resolve", the_start_goes_on)
    monkeypatch.setattr(up, "console", lambda: Console(quiet=True))
    file = short_folder / "kvrun.toml"
    file.write_text("")
    config = load_config(file, {})
    close_gateway(config)
    prepare_run_folder(config.layout)
    with up.only_one(config.layout), pytest.raises(up.AlreadyUpError):
        up.run_up(config, file, {})
    with pytest.raises(GatewayError):
        Drain(config.gateway.state_dir).check()
    with pytest.raises(KvrunError, match="far enough"):
        up.run_up(config, file, {})
    Drain(config.gateway.state_dir).check()
