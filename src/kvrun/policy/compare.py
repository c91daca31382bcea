"""What differs between two revisions: files, documents, and decisions of one instance. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from kvrun.policy.compile import CompiledRevision
from kvrun.policy.diff import UNKNOWN, Change, Flip, diff_decisions, diff_documents
from kvrun.policy.matching import InstanceFacts, Tenant
from kvrun.policy.revision import Revision

_MAX_LINES = 2000
"""Of a longer file no lines are shown: to compare them takes long."""
_MAX_COMPARED = 20_000
_MAX_LINE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class NamedRevision:
    """A revision and the text of its files, by path below the policies' folder."""

    revision: Revision
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that was added, removed or changed. ``lines`` are those of a unified diff without its
    head; ``cut``: there are too many to show."""

    path: str
    kind: str
    lines: tuple[str, ...]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs; ``decisions`` are those of one instance about the tenants that it knows."""

    before: str
    after: str
    files: tuple[FileChange, ...]
    changes: tuple[Change, ...]
    decisions: tuple[Flip, ...]


def compare(
    before: NamedRevision,
    after: NamedRevision,
    facts: InstanceFacts,
    tenants: Mapping[str, Tenant],
) -> Comparison:
    """Everything that differs. Raises PolicyRejectedError where a condition takes too long."""
    old, new = before.revision, after.revision
    flips = diff_decisions(
        CompiledRevision(old, facts).table(tenants),
        CompiledRevision(new, facts).table(tenants),
        [UNKNOWN, *tenants],
    )
    return Comparison(
        old.id,
        new.id,
        tuple(diff_files(before.files, after.files)),
        tuple(diff_documents(old, new)),
        tuple(flips),
    )


def diff_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[FileChange]:
    """The files that are not the same, by path."""
    changes, left = [], _MAX_COMPARED
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        kind = "added" if old is None else "removed" if new is None else "changed"
        lines = [(text or "").splitlines() for text in (old, new)]
        size = max(map(len, lines))
        cut = size > min(_MAX_LINES, left)
        left -= 0 if cut else size
        changes.append(FileChange(path, kind, () if cut else _unified(*lines), cut))
    return changes


def _unified(old: list[str], new: list[str]) -> tuple[str, ...]:
    lines = difflib.unified_diff(old, new, n=3, lineterm="")
    return tuple(line[:_MAX_LINE_CHARACTERS] for line in islice(lines, 2, None))
