"""A LoRA job from data to a signed folder, on a tiny model with real libraries."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import finetune_rig as rig
import pytest

from kvrun.finetune.errors import (
    EvaluationError,
    FineTuneBusyError,
    FineTuneCancelledError,
    FineTuneError,
    FineTuneMissingError,
)
from kvrun.finetune.evaluation import check_folder, decode_evaluation, file_digests
from kvrun.finetune.finishing import Reporter
from kvrun.finetune.gate import check_served, keys_of
from kvrun.finetune.job import adopt, begin, resume
from kvrun.keys.signing import KeyPurpose, SigningRing
from kvrun.models.fingerprint import KvFormat, cpu_isa, model_digest, model_fingerprint
from support.byhand import BLOCK_BYTES, HandEngine
from support.client import eventually, grant
from support.daemon import PATIENT, Daemon

pytest.importorskip("peft")
MODEL = "model.safetensors"
EVALUATION, STATEMENT = "evaluation.json", "evaluation.intoto.json"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> rig.Site:
    """One fine-tune, ``good``, that every test may read and none may change."""
    made = rig.make_site(tmp_path_factory.mktemp("finetune"))
    rig.train(made, "good")
    return made


@pytest.fixture
def copy(site: rig.Site, tmp_path: Path) -> Path:
    """A copy of it to change."""
    shutil.copytree(site.store.folder("good"), tmp_path / "good")
    return tmp_path / "good"


def test_the_evaluation_says_what_was_learned_from_what_and_on_which_machine(
    site: rig.Site,
) -> None:
    folder = site.store.folder("good")
    found = decode_evaluation((folder / EVALUATION).read_bytes())
    assert found.tuned_score.loss < found.base_score.loss / 2
    assert found.tuned_score.exact_matches > found.base_score.exact_matches
    assert (found.training and found.training.examples, found.evaluation.examples) == (27, 3)
    assert (found.evaluation.split, found.evaluation.overlap) == ("held_out", 0)
    assert found.plan == rig.PLAN
    assert found.base.digest == model_digest(site.base).hex()
    assert found.adapter_sha256 == file_digests(folder)["adapter/adapter_model.safetensors"]
    assert found.machine.device
    assert {"torch", "transformers", "peft", "kvrun"} <= set(found.machine.versions)
    assert site.store.jobs() == []


def test_the_statement_names_every_file_and_verifies_under_the_rings_key_alone(
    site: rig.Site, tmp_path: Path
) -> None:
    folder = site.store.folder("good")
    assert check_folder(folder, site.known).holds
    assert {MODEL, "config.json", "tokenizer.json", EVALUATION} <= set(file_digests(folder))
    nobody = check_folder(folder, [])
    assert not nobody.holds
    assert "self-asserted" in str(nobody.signer)
    other = SigningRing(tmp_path / "other", now=lambda: rig.NOW)
    other.load_or_create(KeyPurpose.EVIDENCE)
    assert not check_folder(folder, other.public_keys()).holds
    hex_key = site.ring.all_keys()[0].private_key.public_key().public_bytes_raw().hex()
    assert check_folder(folder, keys_of([hex_key])).holds


def _flip(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_flip(MODEL), f"changed: {MODEL}"),
        (_flip("adapter/adapter_model.safetensors"), "changed: adapter/"),
        (_flip("tokenizer.json"), "changed: tokenizer.json"),
        (_flip("config.json"), "changed: config.json"),
        (_flip(EVALUATION), "changed: evaluation.json"),
        (_flip(STATEMENT), ""),
        (lambda folder: (folder / MODEL).unlink(), f"missing: {MODEL}"),
        (lambda folder: (folder / "pytorch_model.bin").write_bytes(b"x"), "added: pytorch_model"),
        (lambda folder: (folder / ".hidden").write_bytes(b"x"), "added: .hidden"),
        (lambda folder: (folder / EVALUATION).unlink(), "evaluation.json is missing"),
        (lambda folder: (folder / STATEMENT).unlink(), "evaluation.intoto.json is missing"),
        (lambda folder: (folder / "more.json").symlink_to("config.json"), "a link"),
    ],
)
def test_what_was_changed_afterwards_is_named_and_not_served(
    site: rig.Site, copy: Path, change: Callable[[Path], None], said: str
) -> None:
    assert check_served(copy, site.known, "") is not None
    change(copy)
    check = check_folder(copy, site.known)
    assert not check.holds
    assert said in check.problem
    with pytest.raises(EvaluationError, match="may not be served"):
        check_served(copy, site.known, "")
    allowed = check_served(copy, site.known, "the lab's own risk")
    assert allowed is not None
    assert allowed.overridden == check.problem


def test_a_copy_without_its_evaluation_is_still_known_as_a_fine_tune(
    site: rig.Site, copy: Path
) -> None:
    for name in (EVALUATION, STATEMENT):
        (copy / name).unlink()
    with pytest.raises(EvaluationError, match="no evaluation"):
        check_served(copy, site.known, "")
    with pytest.raises(EvaluationError, match="an adapter"):
        check_served(copy / "adapter", site.known, "a reason does not make it a model")
    assert check_served(site.base, site.known, "") is None


def test_a_revoked_key_vouches_for_nothing(site: rig.Site, copy: Path, tmp_path: Path) -> None:
    shutil.copytree(site.ring.folder, tmp_path / "signing")
    ring = SigningRing(tmp_path / "signing", now=lambda: rig.NOW)
    assert check_folder(copy, ring.public_keys()).holds
    ring.revoke(ring.all_keys()[0].key_id)
    assert "revoked" in check_folder(copy, ring.public_keys()).problem


def test_the_fingerprint_is_another_than_the_bases_and_says_nothing_of_the_evaluation(
    site: rig.Site, copy: Path
) -> None:
    digest = model_digest(copy)
    assert digest != model_digest(site.base)
    (copy / EVALUATION).unlink()
    (copy / STATEMENT).unlink()
    assert model_digest(copy) == digest
    _flip("adapter/adapter_model.safetensors")(copy)
    assert model_digest(copy) != digest


class _Stop:
    """Stops a job after so many steps, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_job_that_was_stopped_goes_on_and_ends_in_the_same_weights(site: rig.Site) -> None:
    with pytest.raises(FineTuneCancelledError, match="after 7 of 12 steps") as stopped:
        rig.train(site, "twice", stop=_Stop(7))
    assert "resume twice" in str(stopped.value.hint)
    (job,) = site.store.jobs()
    assert (job.note.state, job.note.step, job.running) == ("cancelled", 7, False)
    assert not site.store.folder("twice").exists()
    data = site.folder / "train.jsonl"
    kept = data.read_bytes()
    data.write_bytes(kept.replace(b"red", b"RED"))
    with pytest.raises(FineTuneError, match="not the file that the job began with"):
        resume(site.around, "twice")
    data.write_bytes(kept)
    given = site.store.given_folder("twice")
    given.mkdir(parents=True)
    seen: list[int] = []
    progress = Reporter(progress=lambda what, done, total: seen.append(done))
    done = resume(replace(site.around, report=progress), "twice")
    assert not given.exists(), "examples that came by API go, whoever ends the job"
    assert seen[0] == 8, "it goes on where it stopped"
    whole = file_digests(site.store.folder("good"))
    again = file_digests(site.store.folder("twice"))
    assert again[MODEL] == whole[MODEL]
    assert done.adapter_sha256 == whole["adapter/adapter_model.safetensors"]
    assert site.store.jobs() == []


def test_a_checkpoint_of_another_job_is_refused(site: rig.Site) -> None:
    with pytest.raises(FineTuneCancelledError):
        rig.train(site, "one", stop=_Stop(2))
    with pytest.raises(FineTuneCancelledError):
        rig.train(site, "two", stop=_Stop(0))
    jobs = site.store.root / ".jobs"
    shutil.copyfile(jobs / "one" / "checkpoint.pt", jobs / "two" / "checkpoint.pt")
    with pytest.raises(FineTuneError, match="a job with other data"):
        resume(site.around, "two")
    (jobs / "two" / "checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(FineTuneError, match="damaged"):
        resume(site.around, "two")
    for name in ("one", "two"):
        assert site.store.delete(name, "") is False
    with pytest.raises(FineTuneMissingError):
        resume(site.around, "two")


def test_cancel_reaches_a_job_at_its_next_step_and_a_second_process_is_kept_out(
    site: rig.Site,
) -> None:
    def during(what: str, done: int, total: int) -> None:
        if done == 3:
            assert site.store.cancel("long")
            assert site.store.jobs()[0].running
            with pytest.raises(FineTuneBusyError):
                resume(site.around, "long")

    with pytest.raises(FineTuneCancelledError, match="after 3 of"):
        rig.train(site, "long", report=Reporter(progress=during))
    assert site.store.cancel("long") is False
    site.store.delete("long", "")


def test_an_imported_adapter_is_evaluated_before_it_can_be_served(site: rig.Site) -> None:
    adapter = site.store.folder("good") / "adapter"
    tests = site.write("eval.jsonl", rig.pairs()[:5])
    done = adopt(site.around, "brought", str(site.base), adapter, tests, 64)
    assert (done.origin, done.training, done.plan) == ("imported", None, None)
    assert (done.evaluation.examples, done.evaluation.overlap) == (5, None)
    assert done.tuned_score.loss < done.base_score.loss
    folder = site.store.folder("brought")
    assert check_served(folder, site.known, "") is not None
    assert file_digests(folder)[MODEL] == file_digests(site.store.folder("good"))[MODEL]
    site.store.delete("brought", "")


@pytest.mark.parametrize("what", ["pickle", "other", "config", "shape"])
def test_an_adapter_that_is_no_lora_in_safetensors_is_refused(
    site: rig.Site, tmp_path: Path, what: str
) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(site.store.folder("good") / "adapter", adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    if what == "pickle":
        (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    elif what == "other":
        (adapter / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "IA3"}))
    elif what == "config":
        (adapter / "adapter_config.json").write_text("{")
    else:
        (adapter / "adapter_config.json").write_text(json.dumps(config | {"r": 4}))
    tests = site.write("eval.jsonl", rig.pairs()[:2])
    with pytest.raises(FineTuneError):
        adopt(site.around, "bad", str(site.base), adapter, tests, 64)
    assert not site.store.folder("bad").exists()


def test_a_deleted_fine_tune_leaves_its_evaluation_on_record(
    site: rig.Site, tmp_path: Path
) -> None:
    mine = rig.Site(tmp_path, site.base, site.ring)
    shutil.copytree(site.store.root, mine.store.root)
    before = next(kept for kept in mine.store.records() if kept.note.name == "good")
    assert mine.store.delete("good", "2026-01-31T12:00:00.000000Z") is True
    assert not mine.store.folder("good").exists()
    after = next(kept for kept in mine.store.records() if kept.note.name == "good")
    assert after.evaluation_bytes == before.evaluation_bytes
    assert after.statement_bytes == before.statement_bytes
    assert after.note.deleted_at == "2026-01-31T12:00:00.000000Z"
    with pytest.raises(FineTuneMissingError):
        mine.store.delete("good", "")


def test_what_cannot_be_done_is_refused_before_anything_is_made(site: rig.Site) -> None:
    data = site.write("d.jsonl", rig.pairs())
    with pytest.raises(FineTuneError, match="already"):
        begin(site.around, "good", str(site.base), data, None, rig.PLAN)
    for name in ("../x", ".x", "", "x" * 64, "a/b"):
        with pytest.raises(FineTuneError, match="no name"):
            begin(site.around, name, str(site.base), data, None, rig.PLAN)
    chat = site.write("long.jsonl", [{"prompt": "word " * 90, "completion": "b"}, *rig.pairs()])
    with pytest.raises(FineTuneError, match="line 1: "):
        begin(site.around, "long", str(site.base), chat, None, rig.PLAN)
    assert site.store.jobs()[0].note.state == "failed"
    site.store.delete("long", "")


def test_a_conversation_is_learned_from_its_last_answer(site: rig.Site) -> None:
    lines = [
        {"messages": [{"role": "user", "content": f"say {word}"},
                      {"role": "assistant", "content": word}]}
        for word in rig.THINGS
    ]  # fmt: skip
    data, tests = site.write("chat.jsonl", lines), site.write("chat-eval.jsonl", lines[:3])
    plan = rig.Plan(epochs=1, batch_size=10, max_tokens=64)
    done = begin(site.around, "chat", str(site.base), data, tests, plan)
    assert (done.evaluation.split, done.evaluation.overlap) == ("given", 3)
    site.store.delete("chat", "")


FORMAT = KvFormat("float32", "auto", "by hand", "one group", cpu_isa())


def test_no_block_crosses_between_a_base_its_fine_tune_and_another_adapter(
    site: rig.Site, short_folder: Path
) -> None:
    """The same user, the same prompt, the same keys: another model, so another cache.

    Each model has contents of its own under the same block names, so that one's could be told from
    another's. ``other`` differs from the fine-tune in one bit of its adapter alone.
    """
    hashes = [secrets.token_bytes(32) for _ in range(4)]
    tuned, other = site.store.folder("good"), site.folder / "one-bit"
    shutil.copytree(tuned, other)
    _flip("adapter/adapter_model.safetensors")(other)
    made = {
        folder: {block_hash: secrets.token_bytes(BLOCK_BYTES) for block_hash in hashes}
        for folder in (site.base, tuned, other)
    }
    daemon = Daemon(short_folder, settings=PATIENT)
    daemon.start()

    def found(folder: Path, *, store: bool = False) -> list[bool]:
        """What an engine with that model finds of the prompt, opened where it is found."""
        fingerprint = model_fingerprint(model_digest(folder), FORMAT)
        with HandEngine(daemon.socket, daemon.engine_token, fingerprint=fingerprint) as engine:
            granted = grant(daemon, "alice", "default")
            claim = daemon.claim("alice", granted.salt, granted.generation, uses=1000)
            answer = engine.match(claim, granted.salt, hashes)
            if store:
                engine.store(answer.handle, list(made[folder].items()))
                eventually(
                    lambda: all(engine.match(claim, granted.salt, hashes).tiers[0]), "it is sealed"
                )
            there = [bool(tier) for tier in answer.tiers[0]]
            wanted = [value for value, is_there in zip(hashes, there, strict=True) if is_there]
            if wanted:
                assert engine.load(answer.handle, wanted).plain == made[folder]
            engine.finish(answer.handle)
        eventually(
            lambda: not cast(dict[str, str], daemon.admin("status"))["engine"], "it is forgotten"
        )
        return there

    try:
        assert found(site.base, store=True) == [False] * 4
        assert found(site.base) == [True] * 4
        assert found(tuned) == [False] * 4
        assert found(tuned, store=True) == [False] * 4
        assert found(tuned) == [True] * 4
        daemon.stop()
        daemon.start()
        assert found(other) == [False] * 4
        assert found(other, store=True) == [False] * 4
        for folder in made:
            assert found(folder) == [True] * 4
    finally:
        daemon.stop()
