"""A collector that ends at any step goes on: nothing stored twice, half or never."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from collect_rig import Rig
from simulator import LOG_ID, Clock, delete_everything, honest, signer

from kvrun.audit.files import verify_files
from kvrun.audit.segment import list_segments
from kvrun.audit.verify import Trust
from kvrun.control.alerts import AlertKind
from kvrun.control.collector import CollectOutcome

TESTS = Path(__file__).parents[1]
RUNNER = Path(__file__).with_name("crash_collector.py")
LATER = 1_700_200_000
EVERY_STEP = 200  # more than there are: the last runs end by themselves


class Crashing:
    """The process that collects and is ended at a step."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": f"{TESTS / 'control'}:{TESTS / 'audit'}:{TESTS}"},
        )

    def collect(self, root: Path, log: Path, step: int) -> bool:
        """Whether it came to its end before ``step``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{root}\t{log}\t{step}\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        assert code in (0, 9)
        return code == 0

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def crashing() -> Iterator[Crashing]:
    running = Crashing()
    yield running
    running.close()


def test_an_honest_log_is_collected_whole_wherever_the_collector_ended_before(
    crashing: Crashing, tmp_path: Path
) -> None:
    done, step = False, 0
    while not done:
        here = tmp_path / str(step)
        world = honest(here)
        lines = world.lines()
        segments = {path.name: path.read_bytes() for path in world.segments()}
        done = crashing.collect(here / "plane", world.folder, step)
        rig = Rig(here / "plane", Clock(LATER))
        report = rig.collect(world.folder)
        assert report.outcome in (CollectOutcome.COLLECTED, CollectOutcome.UNCHANGED), step
        assert report.size == len(lines)
        assert rig.alerts.all() == []
        kept = {path.name: path.read_bytes() for path in list_segments(rig.folder(LOG_ID))}
        tail = rig.memory.tail(LOG_ID).read_bytes()
        assert all(segments[name] == content for name, content in kept.items())
        assert b"".join(kept.values()) + tail == b"".join(segments.values()), step
        assert len(list_segments(world.folder)) == 1, "what is stored was released"
        assert not [path for path in rig.folder(LOG_ID).iterdir() if "#" in path.name]
        collected = [item for item in rig.logged() if item[0] == "log_collected"]
        assert 1 <= len(collected) <= 2
        assert verify_files([rig.folder(LOG_ID)], Trust(keys=(signer().key,))).exit_code == 0
        step += 1
        assert step < EVERY_STEP
    assert step > 20


def test_an_alert_is_raised_wherever_the_collector_ended_while_raising_it(
    crashing: Crashing, tmp_path: Path
) -> None:
    done, step = False, 0
    while not done:
        here = tmp_path / str(step)
        world = honest(here)
        Rig(here / "plane").collect(world.folder)
        delete_everything(world)
        done = crashing.collect(here / "plane", world.folder, step)
        rig = Rig(here / "plane", Clock(LATER))
        report = rig.collect(world.folder)
        assert report.outcome in (CollectOutcome.ALERT, CollectOutcome.STOPPED), step
        assert {item.kind for item in rig.alerts.all()} == {AlertKind.LOG_MISSING}
        step += 1
        assert step < EVERY_STEP
    assert step > 3
