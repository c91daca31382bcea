"""What the log's state means at the daemon: modes, quota, warnings, and who a reference is."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_instance_requests import admit, blocks, hashes, stored
from typer.testing import CliRunner

from kvrun.audit.files import read_keys, verify_files
from kvrun.audit.settings import LogHealth
from kvrun.audit.verdict import Aspect, Code, Verdict
from kvrun.audit.verify import Trust
from kvrun.cli.audit import app
from kvrun.errors import KvrunError
from kvrun.instance import protocol
from kvrun.instance.auditing import AuditWatch
from support.byhand import HandEngine
from support.client import eventually, grant
from support.daemon import Daemon


@pytest.fixture
def start() -> Iterator[object]:
    running: list[Daemon] = []

    def run(settings: str) -> Daemon:
        folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
        daemon = Daemon(folder, settings=settings)
        running.append(daemon)
        daemon.start()
        return daemon

    yield run
    for daemon in running:
        daemon.stop()
        shutil.rmtree(daemon.folder, ignore_errors=True)


def health_of(daemon: Daemon) -> dict[str, object]:
    status = daemon.admin("status")
    assert isinstance(status, dict)
    found = status["audit"]
    assert isinstance(found, dict)
    return found


def test_require_denies_a_live_request_its_own_pages_too(
    daemon: Daemon, engine: HandEngine
) -> None:
    """Asked again, after a preemption, it would reuse what the engine itself still holds."""
    made = stored(daemon, engine, "preempted")
    live = admit(daemon, engine, "preempted", hashes(made))
    granted = grant(daemon, "preempted")
    with daemon.no_disk():
        # Its admission is on disk, so it is the first record that fails which ends its reuse.
        claim = daemon.claim("preempted", granted.salt, granted.generation)
        assert engine.match(claim, granted.salt, []).verdict is protocol.Verdict.DENIED
        answer = engine.match("", "", hashes(made), handle=live.handle)
        assert answer.verdict is protocol.Verdict.DENIED
        assert "cannot be written" in answer.reason
        assert health_of(daemon)["available"] is False
    eventually(lambda: health_of(daemon)["available"] is True, "the log can be written")


def test_what_happened_while_the_log_was_away_is_written_afterwards(
    daemon: Daemon, engine: HandEngine
) -> None:
    granted = grant(daemon, "owed")
    with daemon.no_disk():
        claim = daemon.claim("owed", granted.salt, granted.generation, request_id="r-owed")
        assert engine.match(claim, granted.salt, []).verdict is protocol.Verdict.DENIED

    def denied() -> bool:
        return any(
            record["event"] == "denied" and record.get("request_id") == "r-owed"
            for record in daemon.events()
        )

    eventually(denied, "the denial is in the log")
    assert health_of(daemon)["lost"] == 0


def test_best_effort_goes_on_and_counts_what_it_lost(start: type[Daemon]) -> None:
    daemon = start('[audit]\nmode = "best_effort"\n')
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        made = stored(daemon, engine, "alice")
        fresh = blocks()
        with daemon.no_disk():
            answer = admit(daemon, engine, "alice", hashes(made))
            assert engine.load(answer.handle, hashes(made)).plain == dict(made)
            engine.store(answer.handle, fresh)
            eventually(
                lambda: all(admit(daemon, engine, "alice", hashes(fresh)).tiers[0]),
                "they are found",
            )
            lost = health_of(daemon)["lost"]
            assert isinstance(lost, int)
            assert lost >= 3
        eventually(lambda: daemon.count("gap") > 0, "the gap is in the log")
    daemon.stop()
    audit = daemon.data / "audit"
    report = verify_files([audit], Trust(keys=read_keys(audit / "signer.vkey")))
    assert report.verdict(Aspect.INTEGRITY) is Verdict.PASS
    assert Code.RECORDS_LOST in report.codes(Aspect.COMPLETENESS)
    counted = sum(int(str(r.get("lost", 0))) for r in daemon.events() if r["event"] == "gap")
    assert counted >= lost


def test_a_log_that_nobody_collects_warns_and_then_stops_reuse(start: type[Daemon]) -> None:
    daemon = start('[audit]\nquota_bytes = "1MiB"\nsegment_bytes = "64KiB"\n')
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        granted = grant(daemon, "busy")

        def asked() -> protocol.Verdict:
            claim = daemon.claim("busy", granted.salt, granted.generation)
            return engine.match(claim, granted.salt, []).verdict

        while asked() is protocol.Verdict.ADMITTED:
            pass
        health = health_of(daemon)
        assert health["available"] is False
        assert "quota of 1048576 bytes" in str(health["why"])
        eventually(lambda: "nobody collected" in daemon.log.read_text(), "the warning")

        def reported() -> bool:
            # A small gap record may still fit, so it can be written again for a moment.
            return asked() is protocol.Verdict.DENIED and "cannot be written" in (
                daemon.log.read_text()
            )

        eventually(reported, "the error")
        size = int(str(health["records"]))
        daemon.admin("audit_release", through_seq=str(size))
        eventually(lambda: asked() is protocol.Verdict.ADMITTED, "requests are admitted again")


def test_warnings_come_once_an_hour_and_again_after_a_collection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    moment, stored_bytes = [0.0], [79]
    watch = AuditWatch(lambda: LogHealth(True, "", 1, stored_bytes[0], 100, 0), lambda: moment[0])

    def warnings() -> int:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            watch.check()
        return len(caplog.records)

    assert warnings() == 0
    stored_bytes[0] = 80
    assert [warnings(), warnings()] == [1, 0]
    moment[0] += 3600
    assert [warnings(), warnings()] == [1, 0]
    stored_bytes[0] = 10
    assert warnings() == 0
    stored_bytes[0] = 90
    assert warnings() == 1


def whois(daemon: Daemon, reference: str, reason: str = "a court order") -> object:
    return daemon.admin("whois", tenant_ref=reference, reason=reason)


def reference_of(daemon: Daemon, request_id: str) -> str:
    (record,) = [r for r in daemon.events() if r.get("request_id") == request_id]
    return str(record["tenant_ref"])


def test_a_reference_leads_to_its_tenant_and_the_question_is_in_the_log(
    daemon: Daemon, engine: HandEngine
) -> None:
    admit(daemon, engine, "Ms.Known", [], request_id="r-known")
    reference = reference_of(daemon, "r-known")
    assert whois(daemon, reference) == {"tenant_ref": reference, "tenant": "Ms.Known"}
    asked = [r for r in daemon.events() if r["event"] == "whois"][-1]
    assert (asked["tenant_ref"], asked["reason"], asked["outcome"]) == (
        reference,
        "a court order",
        "ok",
    )


def test_the_command_line_asks_the_running_daemon(daemon: Daemon, engine: HandEngine) -> None:
    admit(daemon, engine, "asked-for", [], request_id="r-asked-for")
    reference = reference_of(daemon, "r-asked-for")
    (daemon.socket.parent / "admin.token").write_text(daemon.admin_token)
    command = ["whois", reference, "--config", str(daemon.config)]
    told = CliRunner().invoke(app, [*command, "--reason", "ticket 4711"])
    assert (told.exit_code, told.stdout) == (0, "asked-for\n")
    assert CliRunner().invoke(app, command).exit_code == 2
    gone = CliRunner().invoke(app, ["whois", "0" * 32, *command[2:], "--reason", "ticket 4711"])
    assert isinstance(gone.exception, KvrunError)
    assert gone.exception.exit_code == 1


def test_after_an_erasure_nobody_can_tell_and_the_question_is_still_logged(
    daemon: Daemon, engine: HandEngine
) -> None:
    admit(daemon, engine, "forgotten", [], request_id="r-forgotten")
    reference = reference_of(daemon, "r-forgotten")
    daemon.admin("erase_tenant", tenant="forgotten")
    with pytest.raises(KvrunError, match="no living session key made the reference"):
        whois(daemon, reference)
    asked = [r for r in daemon.events() if r["event"] == "whois"][-1]
    assert (asked["tenant_ref"], asked["outcome"]) == (reference, "failed")


@pytest.mark.parametrize("reason", ["", " ", "x" * 201, "a\nb", "\u00e9"])
def test_a_question_without_a_usable_reason_is_refused(daemon: Daemon, reason: str) -> None:
    before = daemon.count("whois")
    with pytest.raises(KvrunError, match="needs a reason"):
        whois(daemon, "ab" * 16, reason)
    assert daemon.count("whois") == before


def test_a_question_that_cannot_be_logged_gets_no_answer(
    daemon: Daemon, engine: HandEngine
) -> None:
    admit(daemon, engine, "unlogged-question", [], request_id="r-unlogged")
    reference = reference_of(daemon, "r-unlogged")
    with daemon.no_disk(), pytest.raises(KvrunError, match="cannot be written"):
        whois(daemon, reference)
    eventually(lambda: health_of(daemon)["available"] is True, "the log can be written")
