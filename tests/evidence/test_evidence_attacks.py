"""Whatever is done to a bundle, verification names the file and the check."""

from __future__ import annotations

import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from evidence_world import JANUARY, World, quarter

from kvrun.erasure.certificate import Digest
from kvrun.evidence.archive import Archive
from kvrun.evidence.check import check_bundle
from kvrun.evidence.container import Entry, directory, local_header, read_directory
from kvrun.evidence.errors import BundleFormatError
from kvrun.evidence.export import Request
from kvrun.evidence.manifest import (
    MANIFEST_NAME,
    FileSubject,
    Size,
    parse_manifest,
    sign_manifest,
)
from kvrun.evidence.report import BundleCheck, BundleReport
from kvrun.keys.signing import KeyPurpose, SigningKey, SigningRing

NOW = 1_775_000_000.0
FLIPS = 60


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return quarter(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def bundle(world: World) -> Path:
    return world.export("january.zip", Request(JANUARY, sample=3, full=True))


def check(world: World, path: Path) -> BundleReport:
    return check_bundle(path, anchor=world.anchor, now=NOW)


def ranges(path: Path) -> dict[str, tuple[int, int]]:
    """Where each file's header and content lie."""
    with Archive(path) as archive:
        starts = [(placed.offset, placed.entry.name) for placed in archive.placed]
    ends = [offset for offset, _ in starts[1:]]
    with path.open("rb") as file:
        placed = read_directory(file)
        last = placed[-1]
        end = last.offset + len(local_header(last.entry, JANUARY.end)) + last.entry.size_bytes
    return {name: (at, to) for (at, name), to in zip(starts, [*ends, end], strict=True)}


def rebuilt(path: Path, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """The archive with other files in it, as this format writes it."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    entries = [Entry(name, zlib.crc32(files[name]), len(files[name])) for name in sorted(files)]
    parts = [
        part for item in entries for part in (local_header(item, JANUARY.end), files[item.name])
    ]
    return b"".join([*parts, *directory(entries, JANUARY.end)])


def test_every_flipped_byte_is_found_and_its_file_named(
    world: World, bundle: Path, tmp_path: Path
) -> None:
    data, where = bundle.read_bytes(), ranges(bundle)
    chance = random.Random(9)
    places = [chance.randrange(len(data)) for _ in range(FLIPS)]
    # Small files are rarely hit by chance, and headers hardly ever.
    places += [at + chance.randrange(30) for at, _ in where.values()]
    places += list(range(len(data) - 22, len(data)))
    changed = tmp_path / "changed.zip"
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << chance.randrange(8)
        changed.write_bytes(flipped)
        report = check(world, changed)
        assert report.exit_code == 1, place
        named = {name for item in report.failed for name in item.named}
        hit = [name for name, (at, end) in where.items() if at <= place < end]
        if hit:
            assert set(hit) & named, (place, hit, named)
        else:
            assert named, place


def test_a_removed_and_an_added_file_are_named(world: World, bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        names = archive.namelist()
    path = tmp_path / "changed.zip"
    for name in names:
        path.write_bytes(rebuilt(bundle, lambda files, name=name: files.pop(name)))  # type: ignore[misc]
        report = check(world, path)
        assert report.exit_code == 1, name
        check_ = BundleCheck.MANIFEST if name == MANIFEST_NAME else BundleCheck.FILES
        assert name in report.of(check_).named
    path.write_bytes(rebuilt(bundle, lambda files: files.update({"extra.txt": b"more\n"})))
    report = check(world, path)
    assert report.of(BundleCheck.FILES).named == ("extra.txt",)


def test_an_ordinary_tool_that_packs_it_again_is_noticed(
    world: World, bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "again.zip"
    with zipfile.ZipFile(bundle) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    report = check(world, path)
    assert [item.check for item in report.failed] == [BundleCheck.CONTAINER]


def forged(
    world: World,
    bundle: Path,
    change: Callable[[dict[str, bytes]], None],
    key: SigningKey | None = None,
) -> bytes:
    """What the operator itself could have made: other contents under a good manifest. With
    ``key``, what whoever has that one could."""
    ring = SigningRing(world.scope.home_layout.control / "signing", now=world.clock)
    signer = key or ring.all_keys(KeyPurpose.EVIDENCE)[0]

    def sign(files: dict[str, bytes]) -> None:
        change(files)
        stated = parse_manifest(files.pop(MANIFEST_NAME)).statement
        subjects = [
            FileSubject(
                annotations=Size(size_bytes=len(data)),
                digest=Digest(sha256=sha256(data).hexdigest()),
                name=name,
            )
            for name, data in files.items()
        ]
        files[MANIFEST_NAME] = sign_manifest(stated, subjects, signer)

    return rebuilt(bundle, sign)


def _replace(name: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        (found,) = (item for item in files if item.endswith(name))
        assert old in files[found]
        files[found] = files[found].replace(old, new, 1)

    return change


def _replace_in(start: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        (found,) = (item for item in files if item.startswith(start))
        assert old in files[found]
        files[found] = files[found].replace(old, new, 1)

    return change


def _drop_line(name: str, number: int) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        (found,) = (item for item in files if item.endswith(name))
        lines = files[found].splitlines(keepends=True)
        del lines[number]
        files[found] = b"".join(lines)

    return change


def _every_control(edit: Callable[[dict[str, object]], None]) -> Callable[[dict[str, bytes]], None]:
    """Another controls.json, in the form that one has."""

    def change(files: dict[str, bytes]) -> None:
        stated = json.loads(files["controls.json"])
        for control in stated["controls"]:
            edit(control)
        files["controls.json"] = json.dumps(stated, indent=2, sort_keys=True).encode() + b"\n"

    return change


FORGERIES: dict[str, tuple[Callable[[dict[str, bytes]], None], BundleCheck, str]] = {
    "a control made green": (
        _replace("controls.json", b"none_in_period", b"present"),
        BundleCheck.CONTROLS,
        "controls.json",
    ),
    "a control said to be unknown": (
        _replace("controls.json", b"none_in_period", b"not_known_now"),
        BundleCheck.CONTROLS,
        "controls.json",
    ),
    "a control's requirement reworded": (
        _replace("controls.json", b'"CC6.1"', b'"CC6.2"'),
        BundleCheck.CONTROLS,
        "controls.json",
    ),
    "a control's evidence praised": (
        _replace("controls.json", b"Continuous audit log", b"Certified audit log"),
        BundleCheck.CONTROLS,
        "controls.json",
    ),
    "files that a control does not stand for": (
        _every_control(lambda control: control.update(files=[])),
        BundleCheck.CONTROLS,
        "controls.json",
    ),
    "counts of a control made up": (
        _every_control(lambda control: control.update(counted={"certificates": 9})),
        BundleCheck.CONTROLS,
        "controls.json",
    ),
    "a command that is no text": (
        _every_control(lambda control: control.update(command=["kvrun", "verify"])),
        BundleCheck.CONTROLS,
        "controls.json",
    ),
    "a request left out": (
        _drop_line("erasure_requests.csv", 1),
        BundleCheck.POPULATIONS,
        "populations/erasure_requests.csv",
    ),
    "an access left out": (
        _drop_line("access_changes.csv", 1),
        BundleCheck.POPULATIONS,
        "populations/access_changes.csv",
    ),
    "an incident made up": (
        _replace("incidents.csv", b"bad_tag", b"nothing"),
        BundleCheck.POPULATIONS,
        "populations/incidents.csv",
    ),
    "a count made up": (
        _replace("log_events.csv", b"sealed,ok,builtin-1,6", b"sealed,ok,builtin-1,9"),
        BundleCheck.POPULATIONS,
        "populations/log_events.csv",
    ),
    "a drawn record exchanged": (
        _drop_line("sample.jsonl", 0),
        BundleCheck.SAMPLE,
        "sample.jsonl",
    ),
    "a segment left out of the list": (
        _drop_line("segments.jsonl", 1),
        BundleCheck.LOGS,
        "segments.jsonl",
    ),
    "a certificate changed": (
        _replace("certificates/er-1.json", b'"format"', b'"farmat"'),
        BundleCheck.CERTIFICATES,
        "er-1.json",
    ),
    "a self-test made to pass": (
        _replace_in("isolation/", b"kvrun-statement/v1", b"kvrun-statement/v2"),
        BundleCheck.RESULTS,
        ".json",
    ),
    "a person's change altered": (
        _replace("control-plane/records.jsonl", b"developer -> admin", b"developer -> owner"),
        BundleCheck.JOURNALS,
        "control-plane/records.jsonl",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_the_operator_itself_changes_contradicts_something_else(
    world: World, bundle: Path, tmp_path: Path, name: str
) -> None:
    change, expected, file = FORGERIES[name]
    path = tmp_path / "forged.zip"
    path.write_bytes(forged(world, bundle, change))
    report = check(world, path)
    assert report.of(BundleCheck.FILES).verdict == "pass"
    assert expected in {item.check for item in report.failed}, name
    assert any(item.endswith(file) for item in report.of(expected).named)


def _as_earlier(control: dict[str, object]) -> None:
    """The words that an earlier version had for what checks a control."""
    of_certificates = ("uk-gdpr-art-17", "iso-27001-secure-disposal")
    what = "CERTIFICATE" if control["id"] in of_certificates else "evidence.zip"
    if control["id"] == "soc-2-cc72":
        what = "deployments/DEPLOYMENT/logs/LOG"
    control["command"] = f"kvrun verify {what} --trust anchor.json"


def test_a_bundle_whose_commands_have_the_words_of_an_earlier_version_verifies(
    world: World, bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "earlier.zip"
    path.write_bytes(forged(world, bundle, _every_control(_as_earlier)))
    with zipfile.ZipFile(path) as archive:
        assert b"kvrun verify CERTIFICATE --trust" in archive.read("controls.json")
    report = check(world, path)
    assert report.exit_code == 0, report.failed


def test_a_command_that_somebody_else_changes_is_caught_by_the_signed_manifest(
    world: World, bundle: Path, tmp_path: Path
) -> None:
    change = _replace("controls.json", b"kvrun verify", b"other verify")
    path = tmp_path / "changed.zip"
    path.write_bytes(rebuilt(bundle, change))
    report = check(world, path)
    assert [item.check for item in report.failed] == [BundleCheck.FILES]
    assert report.of(BundleCheck.FILES).named == ("controls.json",)
    ring = SigningRing(tmp_path / "signing", now=world.clock)
    stranger = ring.load_or_create(KeyPurpose.EVIDENCE)
    path.write_bytes(forged(world, bundle, change, key=stranger))
    assert [item.check for item in check(world, path).failed] == [BundleCheck.SIGNER]


def _hostile() -> Iterator[tuple[str, bytes]]:
    day = JANUARY.end

    def archive(*entries: Entry) -> bytes:
        parts = [local_header(item, day) + bytes(item.size_bytes) for item in entries]
        return b"".join([*parts, *directory(entries, day)])

    for name in ("../up", "/etc/passwd", "a/../b", "a//b", "a\\b", "C:x", ".", "a/.", "é"):
        raw = name.encode("utf-8")
        plain = archive(Entry("x" * len(raw), 0, 0))
        yield f"name {name}", plain.replace(b"x" * len(raw), raw)
    yield "two of a name", archive(Entry("a", 0, 0), Entry("a", 0, 0))
    yield "two in other cases", archive(Entry("a", 0, 0), Entry("A", 0, 0))
    whole = archive(Entry("a", 0, 4))
    yield (
        "larger than the file",
        whole.replace(struct.pack("<II", 4, 4), struct.pack("<II", 9**9, 9**9)),
    )
    packed = bytearray(whole)
    packed[whole.index(b"PK\1\2") + 10] = 8
    yield "compressed", bytes(packed)
    over = bytearray(archive(Entry("big", 0, 4000), *(Entry(f"f{n:02}", 0, 0) for n in range(50))))
    at = over.index(b"PK\1\2")
    while (at := over.find(b"PK\1\2", at + 4)) >= 0:
        over[at + 20 : at + 28] = struct.pack("<II", 3000, 3000)
        over[at + 42 : at + 46] = struct.pack("<I", 0)
    yield "fifty files over one another", bytes(over)
    yield "a link to nothing", b"PK\3\4"
    yield "more entries than there are", whole[:-14] + b"\xff\x00\xff\x00" + whole[-10:]
    yield "something after the end", whole + b"tail"
    yield "empty", b""


HOSTILE = dict(_hostile())


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile.zip"
    path.write_bytes(HOSTILE[name])
    report = check_bundle(path, anchor=None, now=NOW)
    assert report.exit_code == 1
    assert all(item.detail for item in report.failed)


def test_no_byte_of_an_archive_is_read_for_two_files(tmp_path: Path) -> None:
    path = tmp_path / "hostile.zip"
    path.write_bytes(HOSTILE["fifty files over one another"])
    with pytest.raises(BundleFormatError, match="lies over other files"):
        Archive(path)


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(BundleFormatError, match="cannot be read"):
        check_bundle(tmp_path / "none.zip", anchor=None, now=NOW)


def test_large_archives_have_their_large_numbers(tmp_path: Path) -> None:
    """Beyond 4 GiB and 65,535 files; the holes cost nothing."""
    many = [Entry(f"{number:06d}", 0, 0) for number in range(65_600)]
    path = tmp_path / "many.zip"
    with path.open("wb") as file:
        for entry in many:
            file.write(local_header(entry, JANUARY.end))
        for piece in directory(many, JANUARY.end):
            file.write(piece)
    with path.open("rb") as file:
        assert len(read_directory(file)) == 65_600
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 65_600
    large = [Entry("a", 0, 5 << 30), Entry("b", 0, 0)]
    path = tmp_path / "large.zip"
    with path.open("wb") as file:
        for entry in large:
            file.write(local_header(entry, JANUARY.end))
            file.seek(entry.size_bytes, 1)
        for piece in directory(large, JANUARY.end):
            file.write(piece)
    with path.open("rb") as file:
        assert [item.entry for item in read_directory(file)] == large
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("a").file_size == 5 << 30
        assert archive.read("b") == b""
