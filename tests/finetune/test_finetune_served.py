"""A fine-tune on a real engine: checked first, served merged, with a cache of its own."""

from __future__ import annotations

import json
from pathlib import Path

import finetune_rig as rig
import pytest

from kvrun.finetune.errors import EvaluationError
from kvrun.launch.stack import Stack, StackOptions
from kvrun.models.tiny import TinyShape
from support.client import ask, store
from support.daemon import PATIENT, Daemon
from support.engine import Answer, Engine

pytest.importorskip("peft")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
SHAPE = TinyShape(
    layers=2, hidden=128, intermediate=128, heads=2, kv_heads=1, head_size=64, vocabulary=384
)
BLOCK = 128
TOKENS = [3 + (7 * number) % 380 for number in range(3 * BLOCK + 5)]
WHOLE = len(TOKENS) // BLOCK * BLOCK


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> rig.Site:
    made = rig.make_site(tmp_path_factory.mktemp("served"), SHAPE)
    rig.train(made, "tuned")
    return made


def test_a_deployment_takes_only_evaluations_whose_key_it_knows(
    site: rig.Site, short_folder: Path
) -> None:
    tuned = site.store.folder("tuned")
    options = StackOptions(model=str(tuned), context_window=1024)
    with pytest.raises(EvaluationError, match="nobody known here signed"):
        Stack(short_folder / "s", options)
    key = site.ring.all_keys()[0].private_key.public_key().public_bytes_raw().hex()
    known = {"KVRUN_DEPLOYMENT__EVALUATION_KEYS": json.dumps([key])}
    stack = Stack(
        short_folder / "s",
        StackOptions(model=str(tuned), context_window=1024, settings=known),
    )
    assert stack.config.deployment.model == str(tuned)


@pytest.mark.long
def test_base_and_fine_tune_answer_each_in_its_way_and_share_no_block(
    site: rig.Site, short_folder: Path
) -> None:
    daemon = Daemon(short_folder, settings=PATIENT)
    daemon.start()
    asked: dict[str, list[Answer]] = {}

    def serve(what: str, folder: Path, already: int = 0) -> None:
        engine = Engine(folder, daemon.socket, short_folder / f"{what}.log", max_model_len=1024)
        try:
            first = store(daemon, engine, "alice", TOKENS, already=already)
            asked[what] = [first, ask(daemon, engine, "alice", TOKENS)]
        finally:
            engine.stop()

    try:
        serve("base", site.base)
        serve("tuned", site.store.folder("tuned"))
        serve("base again", site.base, already=WHOLE // BLOCK)
    finally:
        daemon.stop()
    cached = {what: [answer.cached for answer in answers] for what, answers in asked.items()}
    assert cached == {
        "base": [0, WHOLE],
        "tuned": [0, WHOLE],
        "base again": [WHOLE, WHOLE],
    }
    tokens = {what: [answer.tokens for answer in answers] for what, answers in asked.items()}
    assert tokens["base"] == tokens["base again"]
    assert tokens["tuned"][0] == tokens["tuned"][1] != tokens["base"][0]
