"""Records of a control plane's own logs in a bundle: each with its proof, for who may see it.

Such a log is about everybody's workspaces, so no segment of it is handed out. The tree is the one
at the end of the period, for which the log's own key signs again: that is a statement the log has
made or could have made at that moment, and it is the same for every export.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from kvrun.audit.checkpoint import Checkpoint, Ed25519Signer, sign_checkpoint
from kvrun.audit.cursor import read_records
from kvrun.audit.merkle import leaf_hash
from kvrun.audit.record import Record, as_line
from kvrun.audit.segment import list_segments
from kvrun.audit.tally import NOTABLE, EventCount
from kvrun.config.layout import DataLayout
from kvrun.evidence.period import Period
from kvrun.evidence.populations import Population, count_rows, population_of, record_row
from kvrun.evidence.proofs import Tree, proven
from kvrun.evidence.staging import Part
from kvrun.keys.signing import KeyPurpose, SigningRing

RECORDS_NAME, CHECKPOINT_NAME, KEY_NAME = "records.jsonl", "checkpoint", "signer.vkey"


class JournalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One such log: how many of its records of the period are in the bundle."""

    log: str
    folder: str
    records: int


@dataclass(frozen=True, slots=True)
class Journal:
    """The control plane's log in ``layout``; its files go to ``folder`` of the bundle.

    ``deployment``: what its rows are about; "" for what each record says. ``counts``: which of its
    records somebody may see.
    """

    layout: DataLayout
    folder: str
    deployment: str
    period: Period
    counts: Callable[[Record], bool]

    def take(self, part: Part, now: Callable[[], float]) -> JournalFacts | None:
        """Stage the notable records of the period; None where there are none."""
        place = self.layout.control_audit
        if not place.is_dir() or not list_segments(place):
            return None
        leaves: list[bytes] = []
        chosen: list[Record] = []
        counted: Counter[tuple[str, str, str, str]] = Counter()
        for record in read_records(place):
            if record.ts >= self.period.until:
                break
            leaves.append(leaf_hash(as_line(record).encode()))
            if self.period.has(record.ts) and self.counts(record):
                key = (record.ts[:10], record.event, record.outcome, record.policy_revision)
                counted[key] += 1
                if record.event in NOTABLE:
                    chosen.append(record)
        if not chosen:
            return None
        tree, log = Tree(leaves), chosen[0].log
        part.add(
            f"{self.folder}/{RECORDS_NAME}",
            (
                _ENCODER.encode(
                    proven(log, as_line(item).encode(), item.seq, tree.size, tree.path(item.seq))
                )
                + b"\n"
                for item in chosen
            ),
        )
        signer = self._signer(log, now)
        note = sign_checkpoint(Checkpoint(log, tree.size, tree.root()), signer)
        part.add(f"{self.folder}/{CHECKPOINT_NAME}", note)
        part.add(f"{self.folder}/{KEY_NAME}", f"{signer.key.text()}\n".encode())
        for record in chosen:
            population = population_of(record.event)
            if population is not None:
                part.row(
                    population, record_row(population, record, self.deployment or record.deployment)
                )
        rows = [EventCount(*key, number) for key, number in sorted(counted.items())]
        for line in count_rows(rows, self.deployment, log):
            part.row(Population.LOG_EVENTS, line)
        return JournalFacts(log=log, folder=self.folder, records=len(chosen))

    def _signer(self, log: str, now: Callable[[], float]) -> Ed25519Signer:
        ring = SigningRing(self.layout.control / "signing", now=now)
        return Ed25519Signer(log, ring.load_or_create(KeyPurpose.CHECKPOINT).private_key)


_ENCODER = msgspec.json.Encoder(order="sorted")
