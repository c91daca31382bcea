"""The stand-alone verifier finds in audit logs exactly what ``kvrun verify`` finds."""

import random
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from pruned_world import CHANGES, prune
from simulator import ATTACKS, LOG_ID, Attack, honest, signer

from kvrun.audit.files import verify_files
from kvrun.audit.note import Note, NoteSignature, parse_note
from kvrun.audit.segment import parse_manifest
from kvrun.audit.verify import Trust
from support import standalone

OTHER = standalone.load()


def assert_same(folder: Path, *, trusted: bool, remembered: bytes | None) -> None:
    key = signer().key
    notes = (remembered,) if remembered is not None else ()
    now = 1_800_000_000.0
    trust = Trust(keys=(key,) if trusted else (), remembered=notes, now=now, max_age_seconds=60)
    report = verify_files([folder], trust)
    mine = {(str(item.aspect), str(item.verdict), str(item.code)) for item in report.findings}
    keys = [OTHER.verifier_key(key.text())] if trusted else []
    *files, tombstones = OTHER.log_files([folder])
    result = OTHER.LogCheck(
        keys=keys, remembered=notes, tombstones=tombstones, now=now, max_age=60
    ).run(*files)
    assert {item[:3] for item in result.findings} == mine
    assert (result.log_id, result.first_seq) == (report.log_id, report.first_seq)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.run.__name__)
def test_both_name_every_attack_alike(attack: Attack, tmp_path: Path) -> None:
    world = honest(tmp_path)
    attack.run(world)
    for trusted in (True, False):
        for remembered in (None, world.remembered):
            assert_same(world.folder, trusted=trusted, remembered=remembered)


@pytest.mark.parametrize("seed", range(12))
def test_both_agree_on_a_log_with_a_changed_byte(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    world = honest(tmp_path)
    for _ in range(12):
        path = chance.choice(sorted(world.folder.iterdir()))
        data = path.read_bytes()
        if not data:
            continue
        place = chance.randrange(len(data))
        changed = bytearray(data)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        assert_same(world.folder, trusted=True, remembered=world.remembered)
        path.write_bytes(data)


def test_the_command_ends_like_kvrun_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = honest(tmp_path)
    key = tmp_path / "log.vkey"
    key.write_text(signer().key.text() + "\n")
    assert OTHER.main([str(world.folder), "--key", str(key)]) == 0
    assert OTHER.main([str(world.folder)]) == 2
    world.write(world.lines()[:-5])
    assert OTHER.main([str(world.folder), "--key", str(key)]) == 1
    assert "truncated" in capsys.readouterr().out


def test_it_needs_nothing_but_python_and_cryptography() -> None:
    source = standalone.FILE.read_text()
    imported = {line.split()[1].split(".")[0] for line in source.splitlines() if _imports(line)}
    assert imported - set(sys.stdlib_module_names) == {"cryptography"}


def _imports(line: str) -> bool:
    return line.startswith(("import ", "from "))


@pytest.mark.parametrize("change", CHANGES)
def test_both_judge_a_pruned_beginning_alike(change: str | None, tmp_path: Path) -> None:
    world = honest(tmp_path)
    witness = prune(world, change)
    report = verify_files([world.folder], Trust(keys=(signer().key,), witnesses=(witness,)))
    *files, tombstones = OTHER.log_files([world.folder])
    result = OTHER.LogCheck(
        keys=[OTHER.verifier_key(signer().key.text())],
        witnesses=[OTHER.verifier_key(witness.text())],
        tombstones=tombstones,
    ).run(*files)
    assert {item[2] for item in result.findings} == {str(code) for code in report.codes()}
    assert CHANGES[change] in {str(code) for code in report.codes()}


@pytest.mark.parametrize("handed_over", [True, False])
def test_both_follow_a_log_to_its_new_key_alike(handed_over: bool, tmp_path: Path) -> None:
    world = honest(tmp_path)
    manifests = sorted(world.folder.glob("*.manifest.json"))
    for place, path in enumerate(manifests):
        manifest = parse_manifest(path.read_bytes())
        text = parse_note(manifest.checkpoint.encode()).text
        seeds = [1] if place == 0 else [1, 2] if handed_over else [2]
        signers = [signer(seed) for seed in seeds]
        lines = [NoteSignature(LOG_ID, one.key.key_id, one.sign(text)) for one in signers]
        note = Note(text, tuple(lines)).encode().decode()
        own = signers[-1].key.text()
        path.write_bytes(replace(manifest, checkpoint=note, signer=own).encode())
    world.sign(seed=2)
    (world.folder / "signer.vkey").write_text(signer(2).key.text())
    assert len(manifests) == 2
    for trusted in (True, False):
        assert_same(world.folder, trusted=trusted, remembered=world.remembered)


def test_no_other_trusted_log_speaks_for_this_one(tmp_path: Path) -> None:
    world = honest(tmp_path)
    other = signer(9, "kvrun.test/instances/two")
    text = parse_note((world.folder / "checkpoint").read_bytes()).text
    line = NoteSignature(other.key.name, other.key.key_id, other.sign(text))
    (world.folder / "checkpoint").write_bytes(Note(text, (line,)).encode())
    keys = (signer().key, other.key)
    report = verify_files([world.folder], Trust(keys=keys))
    *files, _ = OTHER.log_files([world.folder])
    mine = OTHER.LogCheck(keys=[OTHER.verifier_key(key.text()) for key in keys]).run(*files)
    for codes in ({str(code) for code in report.codes()}, {item[2] for item in mine.findings}):
        assert "not_signed" in codes
