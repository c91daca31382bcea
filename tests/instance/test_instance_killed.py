"""A daemon killed at any moment under load: its log keeps what it answered for, and verifies."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvrun.audit.cursor import read_records
from kvrun.audit.files import read_keys, verify_files
from kvrun.audit.record import Event, Record
from kvrun.audit.verdict import Aspect, Verdict
from kvrun.audit.verify import Trust
from support.client import eventually
from support.daemon import Daemon

EVENTS = {"admitted": Event.ALLOCATED, "sealed": Event.SEALED, "opened": Event.OPENED}


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


class Load:
    """A driver process under load, and what it was answered so far."""

    def __init__(self, daemon: Daemon, output: Path) -> None:
        given = {
            "engine": daemon.engine_token,
            "gateway": daemon.gateway_token,
            "claim": daemon.claim_key.private_bytes_raw().hex(),
        }
        script = Path(__file__).with_name("killed_driver.py")
        self.output = output
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(daemon.socket), json.dumps(given)],
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def answers(self) -> list[tuple[str, str, int]]:
        lines = self.output.read_text().splitlines(keepends=True)
        words = [line.split() for line in lines if line.endswith("\n")]
        return [(what, request_id, int(blocks)) for what, request_id, blocks in words]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def verified(audit: Path) -> None:
    """Nothing is wrong with the log as the killed daemon left it."""
    report = verify_files([audit], Trust(keys=read_keys(audit / "signer.vkey")))
    failed = [f"{item.code}: {item.detail}" for item in report.findings if item.verdict == "fail"]
    assert failed == []
    assert report.verdict(Aspect.INTEGRITY) is Verdict.PASS


def blocks_by_request(records: list[Record], event: Event) -> Counter[str]:
    counted: Counter[str] = Counter()
    for record in records:
        if record.event is event:
            counted[record.request_id] += record.blocks or 1
    return counted


def kill_under_load(folder: Path, times: int, seed: int) -> None:
    chance = random.Random(seed)
    daemon = Daemon(folder, settings='[audit]\nmode = "require"\nsegment_bytes = "64KiB"\n')
    audit = daemon.data / "audit"
    daemon.start()
    load = Load(daemon, folder / "answers")
    try:
        for _ in range(times):
            seen = len(load.answers())
            eventually(lambda seen=seen: len(load.answers()) > seen, "requests", 60)
            time.sleep(chance.uniform(0, 0.15))
            daemon.kill()
            verified(audit)
            daemon.start()
    finally:
        load.stop()
        daemon.stop()
    verified(audit)
    records, answers = list(read_records(audit)), load.answers()
    asked = {request_id for what, request_id, _ in answers if what == "asked"}
    for what, event in EVENTS.items():
        written = blocks_by_request(records, event)
        answered = {request_id: blocks or 1 for said, request_id, blocks in answers if said == what}
        assert len(answered) > times
        lost = [
            request_id for request_id, blocks in answered.items() if written[request_id] < blocks
        ]
        assert lost == [], f"{what}, but not in the log"
        # And nothing is in the log that was not asked for, or more of it.
        assert set(written) <= asked
        most = 1 if event is Event.ALLOCATED else 3
        assert all(blocks <= most for blocks in written.values())
    gaps = [record for record in records if record.event is Event.GAP]
    assert len(gaps) == times
    assert sum(record.lost for record in gaps) == 0


@pytest.mark.timeout(900)
def test_no_answer_is_without_its_record_when_the_daemon_is_killed(folder: Path) -> None:
    kill_under_load(folder, times=20, seed=11)


@pytest.mark.long
def test_no_answer_is_without_its_record_when_the_daemon_is_killed_200_times(folder: Path) -> None:
    kill_under_load(folder, times=200, seed=12)
