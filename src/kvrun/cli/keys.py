"""``kvrun keys``: list, rotate and revoke what is not a session's key."""

import time
from typing import Annotated

import typer
from rich.text import Text

from kvrun.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    ConfigFile,
    console,
    print_json,
    read_config,
    table,
)
from kvrun.keys.opening import fetch_keys, serve_keys
from kvrun.launch.key_inventory import KeyEntry, KeyInventory, KeyKind
from kvrun.process import harden_process
from kvrun.telemetry.logs import LogFormat, configure_logging

app = typer.Typer(no_args_is_help=True)


@app.callback()
def keys() -> None:
    """List, rotate and revoke API, claim, signing, epoch and root keys.

    Sessions' keys are not here: they are made on first use and destroyed by `kvrun erase`, or when
    they are idle or too old.
    """


@app.command("list")
def list_keys(config_file: ConfigFile = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Show every key with its state and validity; never a secret.

    Example: kvrun keys list --json
    """
    entries = KeyInventory(read_config(config_file)).entries()
    if as_json:
        print_json(entries)
        return
    rows = table("kind", "id", "state", "made", "until", "note")
    for entry in entries:
        rows.add_row(
            entry.kind,
            entry.id,
            _state(entry),
            _date(entry.created_at),
            _date(entry.valid_until),
            entry.note,
        )
    console().print(rows)


@app.command()
def rotate(
    kind: Annotated[KeyKind, typer.Argument(help="Which kind of key.")],
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The API key's id.")] = "",
    overlap_s: Annotated[
        int | None,
        typer.Option(
            "--overlap",
            min=0,
            metavar="SECONDS",
            help="How long earlier keys go on. Usual: api 7 days, claim as long as claims hold,"
            " instance 1 day, checkpoint 90 days, certificate and evidence 1 hour.",
        ),
    ] = None,
    valid_for_s: Annotated[
        int | None,
        typer.Option(
            "--valid-for",
            min=1,
            metavar="SECONDS",
            help="Limit a new signing key; by default it has no end.",
        ),
    ] = None,
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Put a new key in the place of one, while everything goes on running.

    epoch and root are replaced by the running daemon, which destroys the ones before. For claim
    every connected gateway makes a key of its own, and the daemon believes it at once. A new
    instance key is shown from a daemon's next start on. A new API key is printed once. Ends with
    status 2 for what cannot be rotated in this way.

    Example: kvrun keys rotate checkpoint --overlap 7776000
    """
    if kind is KeyKind.API and not key_id:
        raise typer.BadParameter("name the API key: `kvrun keys list` shows ids", param_hint="ID")
    inventory = KeyInventory(read_config(config_file))
    done = inventory.rotate(kind, key_id, overlap_s=overlap_s, valid_for_s=valid_for_s)
    if as_json:
        print_json(done)
        return
    out = console()
    out.print(f"{done.kind} key {done.id} is in use; {done.note}")
    if done.secret:
        out.print(f"\n{done.secret}\n\nIt is shown this once.")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="A signing or API key's id.")],
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """End a signing or API key at once; a daemon makes a new signing key when it needs one.

    What a revoked key signed counts only where a witness or a timestamp shows that it is older.

    Example: kvrun keys revoke 1f0a4c2e9b7d3568
    """
    entry = KeyInventory(read_config(config_file)).revoke(key_id)
    if as_json:
        print_json(entry)
    else:
        console().print(f"{entry.kind} key {entry.id}: {entry.state}")


@app.command()
def serve(config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Be the deployment's key service: its key folder and root in a process of its own.

    For keys.mode = "service". Daemons of the deployment lease keys through its socket. While it is
    away they go on until their leases end, then without the cache, and come back by themselves.

    Example: kvrun keys serve --config kvrun.toml
    """
    config = read_config(config_file)
    harden_process()
    configure_logging(
        "keys", level=config.instance.log_level, log_format=LogFormat(config.log.format)
    )
    serve_keys(config)


@app.command()
def fetch(config_file: ConfigFile = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Bring the keys of a lost machine from Storage to this one, which has its root and no keys.

    The machine that they come from must not run again: an erasure on one would not reach the other.
    A copy that was taken before an erasure opens nothing of what was erased.

    Example: kvrun keys fetch --config kvrun.toml
    """
    name = fetch_keys(read_config(config_file))
    if as_json:
        print_json({"fetched": name})
    else:
        console().print(f"keys are here, from {name}; start the deployment")


def _state(entry: KeyEntry) -> Text:
    colours = {"in use": "green", "revoked": "red", "unknown": "yellow"}
    return Text(entry.state, colours.get(entry.state, ""))


def _date(at: int | None) -> str:
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))
