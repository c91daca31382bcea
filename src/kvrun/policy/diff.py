"""What differs between two revisions: documents, and decisions about known tenants. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvrun.policy.compile import Decision, PolicyTable
from kvrun.policy.document import TIER_NAMES, Tier
from kvrun.policy.revision import Revision

UNKNOWN = ""
"""The reference that stands for every tenant of whom nothing is known."""


@dataclass(frozen=True, slots=True)
class Change:
    """A document that came, went or changed; ``before`` and ``after`` say where it stands."""

    rule: str
    kind: str
    before: str
    after: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flip:
    """Tenants of whom a decision changes: ``tenants`` many, ``example`` is one's reference."""

    tier: str
    before: Decision
    after: Decision
    tenants: int
    example: str


def diff_documents(before: Revision, after: Revision) -> list[Change]:
    """The documents that are not the same, by name."""
    old = {rule.name: rule for rule in before.rules}
    new = {rule.name: rule for rule in after.rules}
    changes = [Change(name, "removed", old[name].where, "") for name in old if name not in new]
    changes += [Change(name, "added", "", new[name].where) for name in new if name not in old]
    for name in old.keys() & new.keys():
        was, is_ = (rule.policy.model_dump() for rule in (old[name], new[name]))
        fields = tuple(_different("", was, is_))
        if fields:
            changes.append(Change(name, "changed", old[name].where, new[name].where, fields))
    return sorted(changes, key=lambda change: change.rule)


def diff_decisions(
    before: PolicyTable, after: PolicyTable, tenant_refs: Iterable[str]
) -> list[Flip]:
    """The decisions that are not the same, those that turn from yes to no first.

    ``UNKNOWN`` among the references stands for the tenants of whom nothing is known.
    """
    found: dict[tuple[int, Decision, Decision], list[str]] = {}
    for ref in tenant_refs:
        was, is_ = before.row(ref), after.row(ref)
        for tier in Tier:
            if _answer(was[tier]) != _answer(is_[tier]):
                found.setdefault((tier, was[tier], is_[tier]), []).append(ref)
    flips = [
        Flip(TIER_NAMES[tier], was, is_, len(refs), refs[0])
        for (tier, was, is_), refs in found.items()
    ]
    return sorted(flips, key=lambda flip: (flip.after.allowed, -flip.tenants, flip.tier))


def is_stricter(before: PolicyTable, after: PolicyTable) -> bool:
    """Whether some decision of ``after`` allows less than that of ``before`` and none allows more,
    about any tenant that either of them knows or about one of whom nothing is known."""
    less = False
    for ref in {UNKNOWN, *before.rows, *after.rows}:
        for was, is_ in zip(before.row(ref), after.row(ref), strict=True):
            if _allows_less(was, is_):
                return False
            less = less or _allows_less(is_, was)
    return less


def _allows_less(is_: Decision, was: Decision) -> bool:
    if not was.allowed or not is_.allowed:
        return was.allowed
    return _is_lower(is_.ttl_s, was.ttl_s) or _is_lower(is_.max_bytes, was.max_bytes)


def _is_lower(limit: int | None, before: int | None) -> bool:
    return limit is not None and (before is None or limit < before)


def _answer(decision: Decision) -> tuple[bool, int | None, int | None]:
    return decision.allowed, decision.ttl_s, decision.max_bytes


def _different(path: str, was: object, is_: object) -> Iterable[str]:
    if isinstance(was, Mapping) and isinstance(is_, Mapping):
        for key in sorted({*was, *is_}, key=str):
            yield from _different(f"{path}.{key}" if path else str(key), was.get(key), is_.get(key))
    elif was != is_ and (_has_parts(was) or _has_parts(is_)):
        yield f"{path}: changed"
    elif was != is_:
        yield f"{path}: {_shown(was)} -> {_shown(is_)}"


def _has_parts(value: object) -> bool:
    """Whether it is a list of what no line can show, such as tests."""
    return isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value)


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        value = f"[{', '.join(map(str, value))}]" if len(value) < 9 else f"{len(value)} items"
    return "none" if value is None else str(value)[:120]
