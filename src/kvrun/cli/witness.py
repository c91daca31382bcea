"""``kvrun witness``: be a witness for the audit logs of other installations."""

import socket
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kvrun.audit.files import read_keys
from kvrun.audit.record import format_time
from kvrun.cli.options import AsJson, console, print_json, table
from kvrun.control.witness_state import LogView, WitnessStateError, read_key, read_logs

app = typer.Typer(no_args_is_help=True)

State = Annotated[Path, typer.Option("--state", help="Folder with the witness's key and memory.")]
Name = Annotated[
    str | None,
    typer.Option(help="Name of a new witness's key; by default HOSTNAME/kvrun-witness."),
]
DEFAULT_STATE = Path("kvrun-witness")


@app.callback()
def witness() -> None:
    """Remember the checkpoints of other installations' logs, and cosign what continues them."""


@app.command()
def serve(
    log_key: Annotated[
        list[Path],
        typer.Option(help="File with verifier keys of logs to witness, one a line. Repeatable."),
    ],
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen on.")] = "127.0.0.1:8470",
    state: State = DEFAULT_STATE,
    name: Name = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file with the chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with the private key.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy in front speaks TLS.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port on 127.0.0.1 for /readyz and /metrics, which are then not at --listen.",
        ),
    ] = None,
) -> None:
    """Serve C2SP add-checkpoint for the given logs until stopped.

    The first line of output is the address, the second the verifier key to hand out. The state
    folder is the witness: keep it, and never put an older copy of it back. At the address are also
    /healthz, /readyz and /metrics, which name no log.

    Example: kvrun witness serve --log-key theirs.vkey --listen 0.0.0.0:8470 --behind-proxy
    """
    # Loads a web server, which no other command here needs.
    from kvrun.control.witness_serve import ServeSettings, serve_witness

    keys = [key for path in log_key for key in read_keys(path)]
    settings = ServeSettings(
        listen, state, _name(state, name), keys, tls_cert, tls_key, behind_proxy, metrics_port
    )
    serve_witness(settings, lambda address, key: typer.echo(f"{address}\n{key.text()}"))


@app.command()
def key(state: State = DEFAULT_STATE) -> None:
    """Print the witness's verifier key: others put it into the file that witness.keys_file names.

    Example: kvrun witness key > ours.vkey
    """
    found = read_key(state)
    if found is None:
        raise WitnessStateError(
            f"there is no witness in {state} yet", hint="`kvrun witness serve` makes one."
        )
    typer.echo(found)


@app.command()
def logs(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Show which logs are remembered and what was refused, with the refused notes in the JSON.

    Ends with status 1 when something was refused that the log's key had signed.

    Example: kvrun witness logs --json | jq '.logs[].refused'
    """
    found = read_logs(state)
    if as_json:
        print_json({"logs": [_plain(view) for view in found]})
    else:
        _print(found)
    raise typer.Exit(1 if any(view.refusals for view in found) else 0)


def _name(state: Path, name: str | None) -> str | None:
    """The name to open the state with; a new one gets a name in any case."""
    if name is None and read_key(state) is None:
        return f"{socket.gethostname()}/kvrun-witness"
    return name


def _plain(view: LogView) -> dict[str, object]:
    refused = [
        {
            "at": format_time(item.time),
            "status": item.status,
            "note": item.note.decode(errors="replace"),
        }
        for item in view.refusals
    ]
    cosigned = format_time(view.time) if view.size else None
    return {
        "log": view.origin,
        "size": view.size,
        "cosigned_at": cosigned,
        "refused": refused,
    }


def _print(found: list[LogView]) -> None:
    rows = table("log", "records cosigned", "at", "refused")
    for view in found:
        at = format_time(view.time)[:19] + "Z" if view.size else "-"
        refused = Text(str(len(view.refusals)), "red" if view.refusals else "")
        rows.add_row(view.origin, str(view.size), at, refused)
    console().print(rows if found else "no log yet")
