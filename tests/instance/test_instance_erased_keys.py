"""As root: an erased session's keys are nowhere in the daemon's memory, where one was before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_instance_requests import stored

from support.byhand import HandEngine
from support.daemon import Daemon
from support.keycopy import key_traces
from support.memory import find_in_memory

pytestmark = pytest.mark.root

# Memory of memfd_secret(2) cannot be searched at all.
FALLBACK = """
import kvrun.keys.locked as locked
locked._map_secret = lambda size: None
"""


@pytest.fixture
def daemon(short_folder: Path) -> Iterator[Daemon]:
    running = Daemon(short_folder, prelude=FALLBACK)
    running.start()
    yield running
    running.stop()


def test_an_erased_sessions_keys_leave_the_daemons_memory_and_anothers_stay(
    daemon: Daemon, short_folder: Path
) -> None:
    with HandEngine(daemon.socket, daemon.engine_token) as engine:
        for tenant in ("alice", "bob"):
            stored(daemon, engine, tenant, count=1)
        status = daemon.admin("status")
        assert isinstance(status, dict)
        assert status["protections"]["keys"] == "locked"
        gone, kept = (key_traces(daemon.data, short_folder, name) for name in ("alice", "bob"))
        before = find_in_memory(daemon.pid, gone.needles + kept.needles)
        # The search can succeed.
        assert all(before[state] for state in gone.states + kept.states)
        daemon.admin("erase_session", tenant="alice", session="default")
        after = find_in_memory(daemon.pid, gone.needles + kept.needles)
        assert not any(after[needle] for needle in gone.needles)
        assert all(after[state] for state in kept.states)
