"""``kvrun audit collect``, ``alerts``, ``acknowledge``, ``try-webhook``: the control plane's side
of the log."""

from typing import Annotated

import typer

from kvrun.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, print_json, read_config


def collect(
    once: Annotated[bool, typer.Option("--once", help="Collect now, once, and end.")] = False,
    every: Annotated[
        int | None, typer.Option(min=1, help="Seconds between collections (audit.collect_every_s).")
    ] = None,
    as_json: AsJson = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Collect the instance's audit log: verify, countersign, store it, and go on doing so.

    Without --once it collects every audit.collect_every_s seconds until it is stopped; `kvrun up`
    runs that beside the engine. With --once it ends with status 1 when an alert stopped collection
    and 3 when the log could not be read. With --json it prints one JSON value a collection.

    Example: kvrun audit collect --once --json
    """
    from kvrun.cli import control

    config = read_config(config_file)
    if once:
        raise typer.Exit(control.collect_once(config, as_json=as_json))
    control.collect_always(config, every, as_json=as_json)


def alerts(
    every: Annotated[bool, typer.Option("--all", help="Acknowledged ones too.")] = False,
    as_json: AsJson = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """List alerts: logs that contradict what is remembered of them, with where the evidence is.

    Ends with status 1 while an alert waits to be acknowledged.

    Example: kvrun audit alerts --json
    """
    from kvrun.cli import control

    raise typer.Exit(control.show_alerts(read_config(config_file), every=every, as_json=as_json))


def try_webhook(as_json: AsJson = False, config_file: ConfigFile = DEFAULT_CONFIG) -> None:
    """Send a test message to the webhook that is told of alerts ([alerts] in kvrun.toml).

    Ends with status 3 when the message was not taken, and says why.

    Example: kvrun audit try-webhook
    """
    from kvrun.cli.collecting import webhook_of
    from kvrun.control.plane import ControlPlane

    receiver = webhook_of(ControlPlane(read_config(config_file))).try_out()
    if as_json:
        print_json({"receiver": receiver})
    else:
        typer.echo(f"{receiver} took the test message")


def acknowledge(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log's id, as alerts shows it.")],
    reason: Annotated[str, typer.Option(help="Why collection may go on; it is put on record.")],
    start_over: Annotated[
        bool,
        typer.Option(
            "--start-over",
            help="Collect the log as it is now as another history; the first is kept.",
        ),
    ] = False,
    as_json: AsJson = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Acknowledge the alerts of a log, so that its collection goes on.

    Without --start-over the log must again extend what is remembered of it, else the next
    collection stops with the next alert.

    Example: kvrun audit acknowledge default/default/host --reason "an old disk was mounted"
    """
    from kvrun.cli import control

    config = read_config(config_file)
    control.acknowledge(config, log, reason, start_over=start_over, as_json=as_json)
