"""``kvrun control``: the control plane alone, and the owner's way in."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvrun.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, print_json, read_config
from kvrun.cli.sign_in import sign_in_line, sign_in_link
from kvrun.config import KvrunConfig, parse_config
from kvrun.process import PARENT_VARIABLE, end_with_parent, harden_process
from kvrun.telemetry.logs import LogFormat, configure_logging

app = typer.Typer()
Port = Annotated[int | None, typer.Option(help="Port to listen on (control.port).")]


@app.callback(invoke_without_command=True)
def control(
    context: typer.Context, port: Port = None, config_file: ConfigFile = DEFAULT_CONFIG
) -> None:
    """Serve the control plane alone: API and console over all deployments that it knows.

    Without a kvrun.toml it keeps its state in ~/.local/share/kvrun/control. Prints its address and,
    until it was used, the owner's one-time sign-in link. Deployments go on when it ends.

    Example: kvrun control --port 8090
    """
    context.obj = config_file
    if context.invoked_subcommand is not None:
        return
    end_with_parent(os.environ.get(PARENT_VARIABLE))
    harden_process()
    overrides = {} if port is None else {"KVRUN_CONTROL__PORT": str(port)}
    config, file = _configuration(config_file, overrides)
    _serve(config, file)


@app.command("owner-link")
def owner_link(context: typer.Context, as_json: AsJson = False) -> None:
    """Make a new one-time sign-in link for the local owner, in place of the one before.

    For the first sign-in, and for the day on which the identity provider fails. Its use raises an
    alert.

    Example: kvrun control owner-link
    """
    from kvrun.accounts.owner_link import write_owner_link

    config, _ = _configuration(context.obj, {})
    config.layout.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = sign_in_link(config, write_owner_link(config.layout.owner_link))
    if as_json:
        print_json({"url": link, "file": str(config.layout.owner_link)})
    else:
        typer.echo(link)


def _serve(config: KvrunConfig, config_file: Path | None) -> None:
    # Only this command needs a web framework and a database.
    from kvrun.accounts.owner_link import write_owner_link
    from kvrun.api.app import create_app
    from kvrun.api.home import home_of, only_one
    from kvrun.api.server import serve
    from kvrun.api.services import open_services
    from kvrun.console import mount

    configure_logging(
        "control", level=config.instance.log_level, log_format=LogFormat(config.log.format)
    )
    for name in ("alembic", "httpx"):
        # What they say at each start, and of each request, helps nobody.
        logging.getLogger(name).setLevel(logging.WARNING)
    is_new = not home_of(config).exists()
    with only_one(home_of(config)):
        services = open_services(config, config_file)
        if is_new and not config.layout.owner_link.exists():
            write_owner_link(config.layout.owner_link)
        application = create_app(services)
        mount(application, services)
        sys.stdout.write(f"control plane: {sign_in_line(config)}\n")
        sys.stdout.flush()
        # The server raises again what ended it; being told to stop is no error.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: sys.exit(0))
        serve(config.control, application)


def _configuration(config_file: Path, overrides: dict[str, str]) -> tuple[KvrunConfig, Path | None]:
    """The configuration and its file; None where there is none and none was named."""
    if config_file != DEFAULT_CONFIG or config_file.exists():
        return read_config(config_file, overrides), config_file.absolute()
    base = os.environ.get("XDG_DATA_HOME") or str(Path("~/.local/share").expanduser())
    home = str(Path(base) / "kvrun" / "control")
    places = {"KVRUN_CONTROL__HOME": home, "KVRUN_INSTANCE__DATA_DIR": home}
    return parse_config("", {**places, **os.environ, **overrides}), None
