"""A stock llama-server in the place of xllamacpp: the same isolation, reuse, erasure and answers.

KVRUN_LLAMA_SERVER names the binary, and without it nothing here is collected.
scripts/llama-server.sh builds one, and scripts/test-long.sh does so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_rig import SlotServer
from test_llama_slots import (
    daemon,
    gemma,
    test_a_changed_block_is_computed_anew_and_logged,
    test_a_prompt_longer_than_the_sliding_window_is_reused_and_right,
    test_a_restarted_engine_and_daemon_find_what_was_persisted,
    test_a_second_turn_reuses_the_first_ones_answer,
    test_an_erased_session_is_cold_and_its_slots_are_zeroed,
    test_only_the_same_session_reuses_and_every_answer_is_the_same,
)

from kvrun.conformance.run import NAMES, run_checks
from support.daemon import Daemon

pytestmark = [pytest.mark.long, pytest.mark.engine, pytest.mark.real("a stock llama-server")]

__all__ = [
    "daemon",
    "gemma",
    "test_a_changed_block_is_computed_anew_and_logged",
    "test_a_prompt_longer_than_the_sliding_window_is_reused_and_right",
    "test_a_restarted_engine_and_daemon_find_what_was_persisted",
    "test_a_second_turn_reuses_the_first_ones_answer",
    "test_an_erased_session_is_cold_and_its_slots_are_zeroed",
    "test_only_the_same_session_reuses_and_every_answer_is_the_same",
]


@pytest.mark.e2e
@pytest.mark.timeout(3600)
def test_it_meets_every_check() -> None:
    rows = run_checks(
        "llama.cpp",
        "demo",
        settings={"KVRUN_ENGINE__LLAMA_SERVER": os.environ["KVRUN_LLAMA_SERVER"]},
    )
    assert [row for row in rows if not row.met] == []
    assert [row.check for row in rows] == list(NAMES)


@pytest.fixture(scope="module")
def server(daemon: Daemon, gemma: Path) -> Iterator[SlotServer]:
    running = SlotServer(daemon, gemma, binary=os.environ["KVRUN_LLAMA_SERVER"])
    yield running
    running.stop()
