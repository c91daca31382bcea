"""Every day has a sentence in the log that says what retention destroyed, none included."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from kvrun.instance.connection import Connection
from kvrun.instance.protocol import OpenSession, Role, SessionOpened
from kvrun.instance.retention import RetentionDay
from kvrun.keys import ClaimClass, DestroyedKey
from kvrun.keys.ring_entries import DestructionEvidence
from kvrun.keys.slots import ReadBack
from support.byhand import hello, wait_for
from support.daemon import Daemon

NOON = 1_800_014_400.0  # 2027-01-15 12:00 UTC
EVIDENCE = DestructionEvidence(ReadBack.DIRECT, 1, "file", ClaimClass.DEVICE, "overwritten")


def key(reason: str, session_ref: str = "s") -> DestroyedKey:
    return DestroyedKey("t", session_ref, 1, "00" * 16, reason, EVIDENCE)


def test_a_day_is_summed_up_once_it_is_over_and_not_before() -> None:
    day = RetentionDay(NOON)
    day.add([key("idle"), key("idle"), key("absolute"), key("idle", session_ref="")])
    assert day.summary(NOON + 3600, 5) == ""
    text = day.summary(NOON + 13 * 3600, 5)
    assert text == (
        "retention on 2027-01-15: 2 idle and 1 old sessions, 1 tenants without sessions; "
        "5 sessions have a key"
    )
    assert day.summary(NOON + 14 * 3600, 5) == ""
    assert "0 idle and 0 old" in day.summary(NOON + 40 * 3600, 5)


def test_a_stop_sums_up_what_was_counted_and_says_nothing_about_nothing() -> None:
    day = RetentionDay(NOON)
    assert day.summary(NOON, 5, stopping=True) == ""
    day.add([key("idle")])
    assert "until the daemon stopped: 1 idle" in day.summary(NOON, 5, stopping=True)
    assert day.summary(NOON, 5, stopping=True) == ""


def test_a_daemon_destroys_idle_keys_by_itself_and_sums_them_up_when_it_stops() -> None:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    prelude = "import kvrun.instance.daemon as d; d._EXPIRY_EVERY_S = 0.2"
    daemon = Daemon(folder, settings="[keys]\nidle_timeout_s = 1\n", prelude=prelude)
    daemon.start()
    try:
        gateway = Connection.connect(
            daemon.socket, hello(Role.GATEWAY, daemon.gateway_token), timeout_s=5
        )
        assert gateway.send(OpenSession(1, "alice", "default"))
        assert isinstance(wait_for(gateway, SessionOpened), SessionOpened)
        gateway.close()
        for _ in range(400):
            if daemon.count("expired"):
                break
            time.sleep(0.05)
        daemon.stop()
        reasons = [str(r["reason"]) for r in daemon.events() if r["event"] == "expired"]
        assert reasons[0] == "idle"
        assert "until the daemon stopped: 1 idle" in reasons[-1]
    finally:
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)
