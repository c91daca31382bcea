"""What every bundle brings along: the pages of the formats, and verifiers that need no kvrun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvrun.evidence.errors import EvidenceError

_HERE = Path(__file__).parent / "files"
_CHECKOUT = Path(__file__).parents[3]
_PAGES = (
    "audit-log.md",
    "erasure-certificate.md",
    "evidence-bundle.md",
    "finetune-evaluation.md",
    "isolation-self-test.md",
    "residency-policy.md",
    "residency-policy.schema.json",
    "sealed-block.md",
    "statement.md",
)
_VERIFIERS = ("kvrun_verify.py", "verify.html")


def static_files() -> Iterator[tuple[str, bytes]]:
    """Their names in the bundle and contents. Raises EvidenceError where the package lacks one."""
    for name in _PAGES:
        yield f"schema/{name}", _read("docs/spec", name)
    for name in _VERIFIERS:
        yield f"verify/{name}", _read("verify", name)


def _read(folder: str, name: str) -> bytes:
    """From the installed package, else from the checkout that it is run from."""
    for root in (_HERE, _CHECKOUT):
        try:
            return (root / folder / name).read_bytes()
        except OSError:
            continue
    raise EvidenceError(
        f"this installation of kvrun has no {folder}/{name}",
        hint="Install it again: a bundle without its verifier would be of little use.",
    )
