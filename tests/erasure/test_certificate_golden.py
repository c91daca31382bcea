"""What earlier releases issued verifies for ever, with both verifiers."""

from pathlib import Path

import pytest

from kvrun.erasure.check import check_certificate
from kvrun.erasure.trust import parse_anchor
from support import standalone

GOLDEN = Path(__file__).parents[1] / "vectors/golden"
NOW = 1_800_000_000.0
OTHER = standalone.load()
EXPECTED = {
    "certificate": "complete",
    "deletion-record": "logical_only",
    "parent": "lists_children",
}
HELD = {"0.1.0"}
"""Releases whose golden certificate states pages of engine memory that were still held."""
FILES = [path for path in sorted(GOLDEN.glob("*.json")) if path.stem.split("-", 1)[1] in EXPECTED]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_released_certificate_verifies(path: Path) -> None:
    version, kind = path.stem.split("-", 1)
    anchor = (GOLDEN / f"{version}-trust.json").read_bytes()
    opening = (GOLDEN / f"{version}-opening.json").read_bytes()
    report = check_certificate(
        path.read_bytes(), anchor=parse_anchor(anchor), now=NOW, opening=opening, subject="chat-7"
    )
    assert report.exit_code == 0
    codes = [str(item.code) for item in report.checks]
    held = kind == "certificate" and version in HELD
    assert ("pages_held" if held else EXPECTED[kind]) in codes
    assert {"trusted", "included", "cosigned", "opened"} <= set(codes)
    checks = OTHER.check_certificate(
        path.read_bytes(),
        anchor=OTHER.read_anchor(anchor),
        now=NOW,
        opening=opening,
        subject="chat-7",
    )
    assert [item[2] for item in checks] == codes


def test_there_is_a_golden_certificate_of_each_kind() -> None:
    assert {path.stem.split("-", 1)[1] for path in FILES} == set(EXPECTED)
