"""A job in a process of its own: it is cancelled, goes on, and ends signed."""

from __future__ import annotations

from pathlib import Path

import finetune_rig as rig
import msgspec
import pytest

from kvrun.finetune.evaluation import check_folder
from kvrun.finetune.job import prepare
from kvrun.finetune.process import start
from support.client import eventually

pytest.importorskip("peft")
MEMORY_BYTES = 2 << 30
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def test_a_job_is_cancelled_goes_on_and_leaves_no_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    site = rig.make_site(tmp_path)
    store, given = site.store, site.store.given_folder("tuned")
    given.mkdir(parents=True)
    data = site.write("train.jsonl", rig.pairs()).rename(given / "train.jsonl")
    plan = msgspec.structs.replace(rig.PLAN, epochs=60)
    prepare(site.around, "tuned", str(site.base), data, None, plan)
    start(store, site.ring.folder, "tuned", MEMORY_BYTES)
    eventually(lambda: store.job("tuned").step > 0, "it trains", timeout_s=300)
    assert store.cancel("tuned")
    eventually(lambda: store.job("tuned").state == "cancelled", "it stops", timeout_s=120)
    eventually(lambda: not store.jobs()[0].running, "its process ends", timeout_s=60)
    assert data.exists()
    step = store.job("tuned").step
    assert step < store.job("tuned").steps
    start(store, site.ring.folder, "tuned", MEMORY_BYTES)
    eventually(lambda: not store.jobs(), "it is done", timeout_s=600)
    eventually(lambda: not given.exists(), "the examples are gone", timeout_s=60)
    assert check_folder(store.folder("tuned"), site.known).holds
