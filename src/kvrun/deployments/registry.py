"""What operators say of tenants: class, region and labels, under the reference of each.

A reference is made with a key that dies with the tenant, so what is kept here names nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from sqlalchemy import delete, select

from kvrun.deployments.errors import TenantImportError
from kvrun.deployments.records import TenantRow, encode
from kvrun.deployments.spec import labels_problem
from kvrun.state import Database

MAX_TEXT = 64


@dataclass(frozen=True, kw_only=True)
class TenantNote:
    """What is said of one tenant of a deployment."""

    tenant_ref: str
    tenant_class: str = ""
    region: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class TenantRegistry:
    """The notes of all deployments. ``now`` in seconds since 1970.

    ``on_change`` is told of each deployment whose notes changed.
    """

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now
        self.on_change: Callable[[str], None] = lambda deployment_id: None

    def put(self, deployment_id: str, notes: Sequence[TenantNote]) -> None:
        """Say it; what was said of the same tenants before is replaced. All of it or nothing.

        Raises TenantImportError.
        """
        for note in notes:
            _check(note)
        with self._database.transaction() as session:
            for note in notes:
                session.merge(
                    TenantRow(
                        deployment_id=deployment_id,
                        tenant_ref=note.tenant_ref,
                        tenant_class=note.tenant_class,
                        region=note.region,
                        labels=encode(note.labels),
                        updated_at=self._now(),
                    )
                )
        self.on_change(deployment_id)

    def of(self, deployment_id: str, refs: Collection[str]) -> dict[str, TenantNote]:
        """What is said of some tenants, by reference."""
        query = select(TenantRow).where(
            TenantRow.deployment_id == deployment_id, TenantRow.tenant_ref.in_(list(refs))
        )
        with self._database.reading() as session:
            return {row.tenant_ref: _note(row) for row in session.scalars(query)}

    def refs(self, deployment_id: str, *, after: str = "", limit: int) -> list[str]:
        """The references, in order, of which something is said; those after one."""
        query = (
            select(TenantRow.tenant_ref)
            .where(TenantRow.deployment_id == deployment_id, TenantRow.tenant_ref > after)
            .order_by(TenantRow.tenant_ref)
            .limit(limit)
        )
        with self._database.reading() as session:
            return list(session.scalars(query))

    def labelled(self, deployment_id: str, name: str, value: str) -> list[str]:
        """The references, in order, of tenants that have this label."""
        query = (
            select(TenantRow)
            .where(TenantRow.deployment_id == deployment_id, TenantRow.labels != "{}")
            .order_by(TenantRow.tenant_ref)
        )
        with self._database.reading() as session:
            notes = map(_note, session.scalars(query))
            return [note.tenant_ref for note in notes if note.labels.get(name) == value]

    def forget(self, deployment_id: str, refs: Collection[str] | None = None) -> None:
        """Forget some tenants (they were erased), or all of a deployment."""
        query = delete(TenantRow).where(TenantRow.deployment_id == deployment_id)
        if refs is not None:
            query = query.where(TenantRow.tenant_ref.in_(list(refs)))
        with self._database.transaction() as session:
            session.execute(query)
        self.on_change(deployment_id)


def _check(note: TenantNote) -> None:
    where = f"tenant {note.tenant_ref[:80]!r}"
    if not note.tenant_ref.isalnum() or not note.tenant_ref.isascii() or len(note.tenant_ref) > 128:
        raise TenantImportError(f"{where} is no reference of the log")
    for name, text in (("class", note.tenant_class), ("region", note.region)):
        if len(text) > MAX_TEXT or not text.isprintable():
            raise TenantImportError(
                f"{where}: {name} must be at most {MAX_TEXT} printable characters"
            )
    if problem := labels_problem(note.labels):
        raise TenantImportError(f"{where}: labels: {problem}")


def _note(row: TenantRow) -> TenantNote:
    return TenantNote(
        tenant_ref=row.tenant_ref,
        tenant_class=row.tenant_class,
        region=row.region,
        labels=msgspec.json.decode(row.labels, type=dict[str, str]),
    )
