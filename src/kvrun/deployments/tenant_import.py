"""A list of tenants as CSV: what is said of each, by reference or by id, which is not kept.

A text that is its line's id, or holds one of more than five characters, is refused.

Columns: ``tenant_ref`` or ``tenant``, and any of ``class``, ``region`` and ``label:NAME``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvrun.deployments import asking
from kvrun.deployments.errors import TenantImportError
from kvrun.deployments.registry import TenantNote
from kvrun.deployments.service import Deployments

MAX_BYTES = 16 * 2**20
MAX_ROWS = 100_000
_SHORT_ID = 5
"""An id of so few characters is part of many a word."""
_LABEL = "label:"
_COLUMNS = ("tenant_ref", "tenant", "class", "region")


@dataclass(frozen=True, slots=True)
class ImportedRow:
    """One line: ``line`` is its number in the file, ``tenant`` the id where one was given."""

    line: int
    tenant: str
    note: TenantNote


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What came of an import; ``unknown`` are lines whose tenant has no key here."""

    taken: int
    unknown: tuple[int, ...]


def import_tenants(deployments: Deployments, deployment_id: str, text: str) -> ImportReport:
    """Take in a list. All of it or, where a line is wrong, nothing.

    A tenant that has no key has no reference: its line is left out and named. Raises
    TenantImportError, and UnreachableError where ids are given and nobody can look them up.
    """
    rows = parse_tenants(text)
    ids = sorted({row.tenant for row in rows if row.tenant})
    config = deployments.config_of(deployment_id)
    notes, unknown = resolve(rows, asking.refs(config, ids) if ids else {})
    deployments.tenants.put(deployment_id, notes)
    return ImportReport(len(notes), unknown)


def parse_tenants(text: str) -> list[ImportedRow]:
    """The rows of a list. Pure. Raises TenantImportError that names the line."""
    if len(text) > MAX_BYTES:
        raise TenantImportError(f"the list is larger than {MAX_BYTES} characters")
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header)
        rows: list[ImportedRow] = []
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(rows) == MAX_ROWS:
                raise TenantImportError(f"the list has more than {MAX_ROWS} lines")
            if len(cells) != len(header):
                raise TenantImportError(
                    f"line {reader.line_num} has {len(cells)} fields, the first line {len(header)}"
                )
            row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
            rows.append(_row(reader.line_num, row))
    except csv.Error as error:
        raise TenantImportError(f"line {reader.line_num} is no CSV: {error}") from None
    return rows


def resolve(
    rows: Sequence[ImportedRow], refs: Mapping[str, str]
) -> tuple[list[TenantNote], tuple[int, ...]]:
    """The notes with references in place of ids, and the lines whose id has none."""
    notes, unknown = [], []
    for row in rows:
        reference = refs.get(row.tenant, "") if row.tenant else row.note.tenant_ref
        if not reference:
            unknown.append(row.line)
            continue
        note = row.note
        notes.append(
            TenantNote(
                tenant_ref=reference,
                tenant_class=note.tenant_class,
                region=note.region,
                labels=note.labels,
            )
        )
    return notes, tuple(unknown)


def _check_header(header: Sequence[str]) -> None:
    known = [name for name in header if name in _COLUMNS or name.startswith(_LABEL)]
    if ("tenant_ref" in header) == ("tenant" in header) or len(known) != len(header):
        raise TenantImportError(
            f"the first line is {','.join(header)[:200]!r}",
            hint="It names the columns: tenant_ref or tenant, any of class, region, label:NAME.",
        )
    if len(set(header)) != len(header):
        raise TenantImportError("the first line names a column twice")


def _row(line: int, row: Mapping[str, str]) -> ImportedRow:
    tenant = row.get("tenant", "")
    reference = row.get("tenant_ref", "").lower()
    if not tenant and not reference:
        raise TenantImportError(f"line {line} names no tenant")
    labels = {
        name.removeprefix(_LABEL): value
        for name, value in row.items()
        if name.startswith(_LABEL) and value
    }
    said = (row.get("class", ""), row.get("region", ""), *labels.values())
    if tenant and any(
        tenant == text or (len(tenant) > _SHORT_ID and tenant in text) for text in said
    ):
        # The database would keep what an erasure cannot reach.
        raise TenantImportError(f"line {line}: class, region and labels must not hold the id")
    note = TenantNote(
        tenant_ref=reference,
        tenant_class=row.get("class", ""),
        region=row.get("region", ""),
        labels=labels,
    )
    return ImportedRow(line, tenant, note)
