"""A witness's health, readiness and counts: what they show, and that they name no log."""

import json
import resource
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from witness_rig import NOW, ORIGIN, Log, Served, open_state, running_witness, serving, wait_for

from kvrun.control.witness_metrics import HELD_S, WitnessMetrics
from kvrun.control.witness_request import PATH, AddCheckpoint
from kvrun.control.witness_server import Cosigned, Refused

LOG = Log(40)
OTHER = Log(9, origin="kvrun.test/instances/two", seed=2)


def fetch(url: str, body: bytes | None = None, method: str | None = None) -> tuple[int, bytes]:
    """Status and body of a GET, or of a POST of ``body``."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body, method=method), timeout=20
        ) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def readiness(url: str) -> tuple[int, dict[str, str]]:
    status, body = fetch(f"{url}/readyz")
    return status, json.loads(body)


def counted(url: str) -> dict[tuple[str, str], float]:
    """Every sample but ``_created``, by name and the label that is not the witness."""
    status, text = fetch(f"{url}/metrics")
    assert status == 200
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("witness") == "witness.test/w1"
            if not sample.name.endswith("_created"):
                found[sample.name, "".join(labels.values())] = sample.value
    return found


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[str]:
    with running_witness(tmp_path / "witness", [LOG.key, OTHER.key]) as (url, _):
        yield url


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Served]:
    """A process whose state is in ``tmp_path / "witness"``."""
    (tmp_path / "log.vkey").write_text(LOG.key.text())
    with serving(*arguments(tmp_path)) as served:
        yield served


def arguments(folder: Path) -> tuple[object, ...]:
    named = ("--state", folder / "witness", "--name", "witness.test/w1")
    return ("--log-key", folder / "log.vkey", *named)


def cosigned(url: str, old_size: int, size: int) -> int:
    return fetch(url + PATH, LOG.request(old_size, size))[0]


def test_each_answer_is_counted_by_what_it_was(witness: str) -> None:
    fork = Log(40, forked_at=15)
    asked: list[tuple[bytes, int, str]] = [
        (LOG.request(0, 20), 200, Cosigned.FIRST),
        (LOG.request(20, 30), 200, Cosigned.GROWN),
        (LOG.request(30, 30), 200, Cosigned.UNCHANGED),
        (b"no request", 400, Refused.MALFORMED),
        (bytes(70_000), 413, Refused.MALFORMED),
        (AddCheckpoint(35, (), LOG.note(31)).encode(), 400, Refused.MALFORMED),
        (Log(5, origin="kvrun.test/unknown").request(0), 404, Refused.UNKNOWN_LOG),
        (Log(40, seed=3).request(30), 403, Refused.UNSIGNED),
        (LOG.request(20, 40), 409, Refused.OLD_SIZE),
        (LOG.request(10, 20), 409, Refused.SMALLER),
        (AddCheckpoint(30, (), LOG.note(20)).encode(), 400, Refused.SMALLER),
        (fork.request(30, 30), 409, Refused.FORK),
        (fork.request(30, 40), 422, Refused.PROOF),
        (OTHER.request(0), 200, Cosigned.FIRST),
    ]
    expected: dict[str, float] = dict.fromkeys([*Cosigned, *Refused], 0)
    for body, status, outcome in asked:
        assert fetch(witness + PATH, body)[0] == status, outcome
        expected[outcome] += 1
        found = counted(witness)
        for name in Cosigned:
            assert found["kvrun_witness_cosigned_total", name] == expected[name], (outcome, name)
        for name in Refused:
            assert found["kvrun_witness_refused_total", name] == expected[name], (outcome, name)
    assert {name for name, count in expected.items() if not count} == {Refused.UNAVAILABLE}


def test_it_says_how_many_logs_it_knows_and_when_it_last_cosigned(witness: str) -> None:
    before = counted(witness)
    assert before["kvrun_witness_logs", ""] == 2
    assert before["kvrun_witness_remembered_logs", ""] == 0
    assert before["kvrun_witness_cosigned_timestamp_seconds", ""] == 0
    assert cosigned(witness, 0, 20) == 200
    after = counted(witness)
    assert after["kvrun_witness_remembered_logs", ""] == 1
    assert after["kvrun_witness_cosigned_timestamp_seconds", ""] == NOW
    assert after["kvrun_witness_available", ""] == 1


def test_nothing_that_a_caller_sends_and_no_log_is_named(witness: str) -> None:
    asked = [LOG, OTHER, Log(5, origin="kvrun.test/unknown"), Log(30, forked_at=3)]
    for log in asked:
        fetch(witness + PATH, log.request(0))
    series = set(counted(witness))
    for number in range(20):
        fetch(witness + PATH, Log(5, origin=f"kvrun.test/made-up/{number}").request(0))
        fetch(f"{witness}/made-up/{number}")
    assert set(counted(witness)) == series
    text = fetch(f"{witness}/metrics")[1] + fetch(f"{witness}/readyz")[1]
    for name in (ORIGIN, OTHER.origin, "kvrun.test", "made-up", "unknown/"):
        assert name.encode() not in text


def test_only_a_get_is_answered_and_a_wrong_path_says_what_is_served(witness: str) -> None:
    assert fetch(f"{witness}/healthz") == (200, b'{"status":"ok"}')
    assert fetch(f"{witness}/metrics", method="HEAD") == (200, b"")
    assert fetch(f"{witness}/metrics", b"x")[0] == 405
    assert fetch(f"{witness}{PATH}")[0] == 405
    assert fetch(f"{witness}/metrics/")[0] == 404


def test_a_witness_whose_disk_is_full_is_not_ready_and_says_why(process: Served) -> None:
    """The process may write no byte more into a file, which reads as a full disk."""
    url = process.url
    assert readiness(url) == (200, {"status": "ready", "memory": "ok", "key": "ok"})
    before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    wait_for(lambda: readiness(url)[0] == 503)
    found = readiness(url)[1]
    assert found["status"] == "not ready"
    assert found["memory"].startswith("cannot be written: ")
    assert found["key"] == "ok"
    assert counted(url)["kvrun_witness_available", ""] == 0
    assert cosigned(url, 0, 20) == 503
    assert counted(url)["kvrun_witness_refused_total", Refused.UNAVAILABLE] == 1
    assert fetch(f"{url}/healthz")[0] == 200
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
    wait_for(lambda: readiness(url)[0] == 200)
    assert cosigned(url, 0, 20) == 200


def test_a_witness_whose_memory_was_moved_away_is_not_ready(
    process: Served, tmp_path: Path
) -> None:
    memory = tmp_path / "witness" / "witness.db"
    memory.rename(tmp_path / "elsewhere.db")
    wait_for(lambda: readiness(process.url)[0] == 503)
    assert readiness(process.url)[1]["memory"].startswith("cannot be written: ")
    assert cosigned(process.url, 0, 20) == 503
    (tmp_path / "elsewhere.db").rename(memory)
    wait_for(lambda: readiness(process.url)[0] == 200)


def test_a_witness_whose_key_file_is_gone_or_damaged_is_not_ready(
    process: Served, tmp_path: Path
) -> None:
    keys = tmp_path / "witness" / "keys"
    shutil.copytree(keys, tmp_path / "kept")
    [file] = keys.glob("*.key.json")
    file.unlink()
    wait_for(lambda: readiness(process.url)[0] == 503)
    assert readiness(process.url)[1] == {
        "status": "not ready",
        "memory": "ok",
        "key": "its file is missing",
    }
    file.touch(mode=0o600)
    wait_for(lambda: readiness(process.url)[1]["key"] == "its file cannot be read")
    file.write_bytes((tmp_path / "kept" / file.name).read_bytes())
    wait_for(lambda: readiness(process.url)[0] == 200)


def test_asking_for_readiness_changes_nothing_in_the_memory(tmp_path: Path) -> None:
    state = open_state(tmp_path / "w")
    memory = tmp_path / "w" / "witness.db"
    before = memory.read_bytes()
    assert state.parts() == {"memory": "ok", "key": "ok"}
    assert memory.read_bytes() == before
    assert [path.name for path in memory.parent.iterdir() if "journal" in path.name] == []
    state.close()


def test_strangers_who_ask_again_and_again_do_not_keep_the_folder_busy(tmp_path: Path) -> None:
    state = open_state(tmp_path / "w")
    time = 5.0
    metrics = WitnessMetrics(state, 1, clock=lambda: time)
    assert metrics.readiness().ready
    for path in (tmp_path / "w" / "keys").glob("*.key.json"):
        path.unlink()
    assert metrics.readiness().ready
    time += HELD_S
    assert not metrics.readiness().ready
    state.close()


def test_counts_and_readiness_can_be_kept_from_the_public_address(tmp_path: Path) -> None:
    (tmp_path / "log.vkey").write_text(LOG.key.text())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving(*arguments(tmp_path), "--metrics-port", port) as served:
        assert cosigned(served.url, 0, 20) == 200
        assert fetch(f"{served.url}/healthz")[0] == 200
        for path in ("/readyz", "/metrics"):
            assert fetch(served.url + path)[0] == 404
        inside = f"http://127.0.0.1:{port}"
        assert readiness(inside)[0] == 200
        assert counted(inside)["kvrun_witness_cosigned_total", Cosigned.FIRST] == 1
