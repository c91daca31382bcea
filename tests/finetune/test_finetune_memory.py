"""Memory of a job: said before it is taken, never said too low, and bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import finetune_rig as rig
import msgspec
import pytest

from kvrun.finetune.dataset import Example
from kvrun.finetune.encode import Encoded
from kvrun.finetune.errors import FineTuneError
from kvrun.finetune.job import begin
from kvrun.finetune.memory import Shape, check_need, need_of, shape_of, within
from kvrun.finetune.tools import Tools
from kvrun.finetune.training import Plan
from kvrun.models.tiny import TinyShape

SHAPE = Shape(
    weights_bytes=1 << 30, sides=1 << 20, layers=32, hidden=4096, intermediate=14_336,
    vocabulary=128_256,
)  # fmt: skip
CPU = Tools(SimpleNamespace(), SimpleNamespace(), SimpleNamespace(), "cpu")


def long_one(tokens: int) -> Encoded:
    return Encoded(Example(1, "b", prompt="a"), tuple(range(tokens - 1)), (1,))


def test_what_makes_a_job_bigger_makes_the_number_bigger() -> None:
    plan = Plan()
    base = need_of(SHAPE, plan, [long_one(100)], 1000)
    ranked = need_of(
        SHAPE, msgspec.structs.replace(plan, rank=plan.rank * 2), [long_one(100)], 1000
    )
    assert ranked.adapter == 2 * base.adapter
    lengths = [need_of(SHAPE, plan, [long_one(tokens)]).step for tokens in (600, 1200)]
    assert lengths[1] > 2 * lengths[0]
    assert need_of(SHAPE, plan, [long_one(100)] * 9, 9000).data > base.data
    assert need_of(SHAPE, plan).step == 0
    # Long examples are learned one at a time, whatever the batch.
    wide = msgspec.structs.replace(plan, batch_size=1024)
    assert (
        need_of(SHAPE, wide, [long_one(2000)]).step == need_of(SHAPE, plan, [long_one(2000)]).step
    )


def test_too_much_is_refused_and_names_what_takes_it() -> None:
    plan = msgspec.structs.replace(Plan(), rank=512)
    need = need_of(SHAPE, plan, [long_one(100)], 1000)
    check_need(need, plan, need.total, "the_setting")
    with pytest.raises(FineTuneError) as refused:
        check_need(need, plan, need.total - 1, "the_setting")
    for said in (
        "the_setting allows",
        "1.0 GiB for the model",
        "10.0 GiB for an adapter of rank 512",
    ):
        assert said in refused.value.message
    assert "Lower rank" in str(refused.value.hint)


@pytest.mark.parametrize(
    "said",
    [
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
    ],
)
def test_no_more_memory_is_said_in_the_same_words_whoever_says_it(said: Exception) -> None:
    with (
        pytest.raises(FineTuneError, match=r"got no more memory \(the_setting\)"),
        within(CPU, None, "the_setting"),
    ):
        raise said
    with pytest.raises(RuntimeError, match="another"), within(CPU, None, "the_setting"):
        raise RuntimeError("another thing")


def test_a_job_that_would_take_too_much_fails_before_the_model_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    site = rig.make_site(tmp_path)
    data = site.write("train.jsonl", rig.pairs())
    around = replace(site.around, memory_bytes=1 << 20)
    with pytest.raises(FineTuneError, match=r"finetune_memory_bytes allows 1\.0 MiB"):
        begin(around, "big", str(site.base), data, None, rig.PLAN)
    (job,) = site.store.jobs()
    assert (job.note.state, job.note.step) == ("failed", 0)
    assert "1.0 MiB" in job.note.said


def test_a_process_gets_no_more_than_it_was_given(tmp_path: Path) -> None:
    program = """
from types import SimpleNamespace
from kvrun.finetune.errors import FineTuneError
from kvrun.finetune.memory import within
from kvrun.finetune.tools import Tools
tools = Tools(SimpleNamespace(), SimpleNamespace(), SimpleNamespace(), "cpu")
with within(tools, 1 << 28, "the_setting"):
    kept = bytearray(1 << 26)
try:
    with within(tools, 1 << 28, "the_setting"):
        kept = bytearray(1 << 30)
except FineTuneError as error:
    print(error.message)
kept = bytearray(1 << 30)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "the job got no more memory (the_setting)\n"


MEASURED = """
import json, sys, threading, time
from dataclasses import replace
from pathlib import Path
import finetune_rig as rig
from kvrun.finetune.dataset import parse_dataset
from kvrun.finetune.encode import encode_all
from kvrun.finetune.job import begin
from kvrun.finetune.memory import need_of, shape_of
from kvrun.finetune.tools import load_tokenizer, load_tools
from kvrun.finetune.training import Plan
from kvrun.keys.signing import SigningRing
tools = load_tools()
tools.torch.set_num_threads(1)
most = [0]
def held():
    # Without pages of files: the system takes those away when it needs them.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024
def watch():
    while True:
        time.sleep(0.005)
        most[0] = max(most[0], held())
threading.Thread(target=watch, daemon=True).start()
def run(folder, words, count, plan):
    site = rig.Site(folder, folder / "base", SigningRing(folder / "signing", now=lambda: rig.NOW))
    prompt = " ".join(["word"] * words)
    lines = [{"prompt": f"{prompt} {n}", "completion": " word"} for n in range(count)]
    data, tests = site.write("train.jsonl", lines), site.write("eval.jsonl", lines[:1])
    examples = parse_dataset(data.read_bytes(), "train").examples
    encoded = encode_all(load_tokenizer(tools, str(site.base)), examples, plan.max_tokens)
    read = [*encoded, encoded[0]]
    need = need_of(shape_of(site.base), plan, read, data.stat().st_size).total
    before = most[0] = held()
    begin(replace(site.around, memory_bytes=need), "job", str(site.base), data, tests, plan)
    return {"took": most[0] - before, "need": need, "tokens": max(len(e.tokens) for e in read)}
root, rank, words, batch = Path(sys.argv[1]), *map(int, sys.argv[2:])
# What libraries take for themselves when they are used first is not the job's.
run(root / "small", 1, 1, Plan(epochs=1))
plan = Plan(rank=rank, batch_size=batch, epochs=2, max_tokens=1_000_000)
print(json.dumps(run(root / "large", words, batch, plan)))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("rank", "words", "batch"), [(8, 20, 4), (512, 20, 4), (8, 150, 1), (8, 10, 32)]
)
def test_no_job_takes_more_than_was_said(tmp_path: Path, rank: int, words: int, batch: int) -> None:
    """From loading to signing, with exactly what was said as its bound."""
    pytest.importorskip("peft")
    shape = TinyShape(layers=8, hidden=512, intermediate=1536, heads=8, kv_heads=4, vocabulary=2048)
    rig.make_site(make(tmp_path / "small"))
    rig.make_site(make(tmp_path / "large"), shape)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, tmp_path, str(rank), str(words), str(batch)],
        capture_output=True, text=True, timeout=1200, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    print(f"rank {rank}, {found['tokens']} tokens, {batch} at once: {found}")
    assert found["took"] < found["need"], found
    assert found["took"] > found["need"] / 20, f"it says far too much: {found}"


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_the_shape_is_read_from_the_files(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    site = rig.make_site(tmp_path)
    shape = shape_of(site.base)
    size = (site.base / "model.safetensors").stat().st_size
    assert size * 0.9 < shape.weights_bytes <= size
    assert (shape.layers, shape.hidden, shape.vocabulary) == (2, 64, 384)
    with pytest.raises(FineTuneError, match="cannot be read"):
        shape_of(tmp_path)
