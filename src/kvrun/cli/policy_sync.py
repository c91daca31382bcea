"""``kvrun policy sync`` and ``status``: follow the policy's repository, and say what is active."""

import contextlib
import logging
import os
import signal
import threading
import time
from typing import Annotated

import typer

from kvrun.audit.record import format_time
from kvrun.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, console, print_json, read_config
from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.launch.admin import ask_daemon
from kvrun.policy.bundle import SyncOutcome
from kvrun.policy.errors import PolicyError
from kvrun.policy.looks import NextLook
from kvrun.policy.recorded import placed_sessions
from kvrun.policy.setup import believed_facts, folder_of, settings_of
from kvrun.policy.sync import Outcome, PolicySync
from kvrun.process import PARENT_VARIABLE, end_with_parent
from kvrun.telemetry.logs import LogFormat, configure_logging

_NICE = 10
_RELOAD_S = 10.0
_ASKED_EVERY_S = 1.0
_GOOD = (Outcome.UNCHANGED, Outcome.ACTIVATED)
_log = logging.getLogger("kvrun.policy")


def sync(
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until stopped, every residency.interval_s.")
    ] = False,
    config_file: ConfigFile = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Fetch the policy's repository and make its newest revision active if it is right.

    A revision that is refused changes nothing: the active one goes on, and the problems are shown
    with file, line and column. Ends with status 1 then, or where the repository cannot be reached.
    `kvrun up` runs this with --follow; a push that the repository's host announces is then looked
    at within seconds. Of two at once one waits for the other.

    Example: kvrun policy sync
    """
    config = read_config(config_file)
    if follow:
        _follow(config)
        return
    outcome = _once(_sync_of(config), config)
    if as_json:
        print_json(outcome)
    else:
        _show(outcome)
    raise typer.Exit(0 if outcome.outcome in _GOOD else 1)


def status(config_file: ConfigFile = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Show which policy is active, who made and signed it, and how the last looks went.

    Example: kvrun policy status --json
    """
    config = read_config(config_file)
    folder = folder_of(config)
    active, state = folder.active(), folder.status()
    if as_json:
        print_json(
            {
                "mode": config.residency.mode,
                "repository": config.residency.repository,
                "active": active.origin if active else None,
                "activated_at": active.activated_at if active else None,
                "status": state,
            }
        )
        return
    out = console()
    out.print(f"repository  {config.residency.repository or 'none: builtin-1'}", soft_wrap=True)
    out.print(f"mode        {config.residency.mode}")
    if active is not None:
        origin = active.origin
        out.print(f"active      {origin.revision}", highlight=False)
        out.print(f"            {origin.subject} ({origin.author})")
        out.print(f"signed by   {origin.signed_by or 'nobody that is known'}")
        out.print(f"activated   {_moment(active.activated_at)}")
        out.print(f"confirmed   {_moment(state.confirmed_at)}")
    for outcome in state.history[:10]:
        _show(outcome)


def _follow(config: KvrunConfig) -> None:
    end_with_parent(os.environ.get(PARENT_VARIABLE))
    configure_logging(
        "policy", level=config.instance.log_level, log_format=LogFormat(config.log.format)
    )
    os.nice(_NICE)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    following = _sync_of(config)
    said: tuple[str, str, tuple[str, ...]] | None = None
    next_look = NextLook(folder_of(config), config.residency.interval_s, time.monotonic)
    while not stop.is_set():
        next_look.begin()
        try:
            outcome = _once(following, config)
            now = (outcome.outcome, outcome.revision, outcome.problems)
            if now != said:
                said = now
                _log.info("%s %s %s", *now[:2], "; ".join(now[2]))
        except (KvrunError, OSError) as error:
            _log.error("the policy cannot be followed: %s", error)
        while not stop.wait(_ASKED_EVERY_S) and not next_look.is_due():
            pass


def _once(following: PolicySync, config: KvrunConfig) -> SyncOutcome:
    outcome = following.run()
    if outcome.outcome == Outcome.ACTIVATED:
        with contextlib.suppress(KvrunError):  # it also looks by itself every second
            ask_daemon(config, "residency_reload", timeout_s=_RELOAD_S)
    return outcome


def _sync_of(config: KvrunConfig) -> PolicySync:
    settings = settings_of(config)
    if settings is None:
        raise PolicyError(
            "no repository is connected: builtin-1 applies",
            hint="Set residency.repository in kvrun.toml.",
        )
    return PolicySync(
        folder_of(config),
        settings,
        lambda: believed_facts(config),
        now=time.time,
        clock=time.thread_time,
        placed=lambda: placed_sessions(config),
    )


def _show(outcome: SyncOutcome) -> None:
    out = console()
    detail = f" ({outcome.note})" if outcome.note else ""
    text = f"{_moment(outcome.at)} {outcome.outcome} {outcome.revision}{detail}"
    out.print(text, highlight=False, soft_wrap=True)
    for problem in outcome.problems:
        out.print(f"  {problem}", highlight=False, soft_wrap=True)


def _moment(seconds: float) -> str:
    return f"{format_time(seconds)[:19]}Z" if seconds else "never"
