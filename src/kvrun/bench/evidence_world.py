"""A year as a collector leaves it, for :mod:`kvrun.bench.evidence`."""

import os
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from kvrun.audit.chain import ChainPoint, chain_events
from kvrun.audit.checkpoint import Checkpoint, Ed25519Signer, sign_checkpoint
from kvrun.audit.merkle import Frontier, tree_root
from kvrun.audit.proof import LogProof
from kvrun.audit.record import AuditEvent, Event, format_time, split_lines
from kvrun.audit.segment import SIGNER_NAME, Manifest, TreePoint, segment_name
from kvrun.audit.tally import EventCount, Tally, encode_tally
from kvrun.bench.audit import sealed_event
from kvrun.config import KvrunConfig, load_config
from kvrun.control.collected import CollectedLog, checkpoint_name, manifest_name
from kvrun.control.cosigner import open_cosigner
from kvrun.control.plane import ControlPlane
from kvrun.control.remembered import RememberedLog, log_folder
from kvrun.erasure.certificate import (
    DestroyedKeyEntry,
    ErasureStatement,
    GpuEntry,
    Request,
    RequestKind,
    RootEntry,
    Scope,
    SnapshotRetention,
    Software,
    StepEntry,
    TierEntry,
)
from kvrun.erasure.document import make_certificate, sign_statement
from kvrun.erasure.logproof import LogInclusion
from kvrun.evidence.period import parse_period
from kvrun.evidence.proofs import Tree
from kvrun.evidence.sample import Frame, draw
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.signing import KeyPurpose, SigningRing

SEGMENT_RECORDS = 1 << 17
"""A power of two: trees over records are then trees over segments."""
YEAR = parse_period("2025-01-01", "2026-01-01")
SEED = "bench"
LOG_ID = "bench/instances/one"
_ERASURES = "bench/erasures"
_START = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
_YEAR_S = 365 * 86_400 - 3600


def config_of(folder: Path) -> KvrunConfig:
    """The deployment's configuration; its folder is made when it is missing."""
    file = folder / "kvrun.toml"
    if not file.exists():
        (folder / "d").mkdir(mode=0o700, parents=True)
        file.write_text(
            '[deployment]\nworkspace = "bench"\nname = "chat"\n'
            f'[instance]\ndata_dir = "{folder}/d"\n'
        )
    return load_config(file, {})


def build_world(folder: Path, records: int, sample: int, *, whole: bool) -> int:
    """A collected log of about that many records; how many it has.

    Only the segments that ``sample`` opens are written, or all with ``whole``.
    """
    config = config_of(folder)
    ring = SigningRing(config.layout.signing_keys, now=lambda: _START - 1)
    signer = Ed25519Signer(LOG_ID, ring.load_or_create(KeyPurpose.CHECKPOINT).private_key)
    ring.load_or_create(KeyPurpose.CERTIFICATE)
    per_segment = SEGMENT_RECORDS if records >= 4 * SEGMENT_RECORDS else 1 << 7
    count = max(2, round(records / per_segment))
    total = count * per_segment
    opened = {item.seq // per_segment for item in draw(_frames(total), sample, SEED)}
    builder = _Builder(config, signer, per_segment, _YEAR_S / count)
    for number in range(count):
        builder.segment(number, real=whole or number in opened)
    builder.remember()
    return total


def build_certificates(folder: Path, count: int) -> None:
    """That many certificates in the deployment's archive, under one log."""
    config = config_of(folder)
    ring = SigningRing(config.layout.signing_keys, now=lambda: _START - 1)
    key = ring.load_or_create(KeyPurpose.CERTIFICATE)
    log_key = ring.load_or_create(KeyPurpose.CHECKPOINT).private_key
    signed = [sign_statement(_statement(number, count), key) for number in range(count)]
    events = [
        (AuditEvent(event=Event.CERTIFIED, digest=item.digest), format_time(_START + number))
        for number, item in enumerate(signed)
    ]
    start = ChainPoint(0, ChainPoint.start(_ERASURES).prev, 1)
    lines, leaves, _ = chain_events(events, start, _ERASURES)
    tree, signer = Tree(leaves), Ed25519Signer(_ERASURES, log_key)
    note = sign_checkpoint(Checkpoint(_ERASURES, tree.size, tree.root()), signer)
    ledger = config.layout.erasure / "ledger"
    ledger.mkdir(mode=0o700, parents=True)
    (ledger / SIGNER_NAME).write_text(f"{signer.key.text()}\n")
    place = ControlPlane(config).archive.folder
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number, (item, line) in enumerate(zip(signed, split_lines(bytes(lines)), strict=True)):
        proof = LogProof(number, tuple(tree.path(number)), note)
        logged = LogInclusion(
            key=signer.key.text(), proof=proof.encode().decode(), record=line.decode()
        )
        (place / f"er-{number:06d}.json").write_bytes(make_certificate(item, logged))


class _Builder:
    """Writes segment after segment of a log, straight into Storage."""

    def __init__(
        self, config: KvrunConfig, signer: Ed25519Signer, per_segment: int, apart_s: float
    ) -> None:
        self._plane = ControlPlane(config)
        self._signer, self._per_segment, self._apart_s = signer, per_segment, apart_s
        self._cosigner = open_cosigner(config.layout, lambda: _START + _YEAR_S)
        self._segments = Frontier()
        self._point = TreePoint.of(ChainPoint.start(LOG_ID), Frontier())
        self._first, self._note = self._point, b""
        self._remembered = self._memory()
        collected = CollectedLog.of(self._plane.storage(), self._remembered)
        self._place = config.layout.storage_root / collected.folder
        self._place.mkdir(mode=0o700, parents=True)
        self._tallies = self._plane.memory.tallies / log_folder(LOG_ID)
        self._tallies.mkdir(mode=0o700, parents=True)
        (self._place / SIGNER_NAME).write_text(f"{signer.key.text()}\n")

    def segment(self, number: int, *, real: bool) -> None:
        """One closed segment; without ``real`` all of it but its records."""
        began = _START + number * self._apart_s
        first, last = format_time(began), format_time(began + self._apart_s - 1)
        if real:
            lines, root, prev = self._records(began)
            content = bytes(lines)
            (self._place / segment_name(self._point.size)).write_bytes(content)
            digest, size = sha256(content).hexdigest(), len(content)
        else:
            root = os.urandom(32)
            prev, digest, size = os.urandom(32).hex(), os.urandom(32).hex(), 550 * self._per_segment
        before = self._point
        self._segments.append(root)
        after = TreePoint(
            epoch=1,
            frontier=[item.hex() for item in self._segments.roots],
            prev=prev,
            size=before.size + self._per_segment,
            ts=last,
        )
        checkpoint = Checkpoint(LOG_ID, after.size, after.merkle_frontier().root())
        note = sign_checkpoint(checkpoint, self._signer)
        manifest = Manifest(
            after=after,
            before=before,
            checkpoint=note.decode(),
            file_bytes=size,
            first_ts=first,
            log=LOG_ID,
            sha256=digest,
            signer=self._signer.key.text(),
        )
        self._note = self._cosigner.cosign(note)
        (self._place / manifest_name(before.size)).write_bytes(manifest.encode())
        (self._place / checkpoint_name(after.size)).write_bytes(self._note)
        tally = Tally(
            counts=[EventCount(first[:10], "sealed", "ok", "builtin-1", self._per_segment)],
            file_bytes=size,
            first_seq=before.size,
            log=LOG_ID,
            records=self._per_segment,
            sha256=digest,
        )
        (self._tallies / f"{before.size:016d}.tally").write_bytes(encode_tally(tally, ()))
        self._point = after

    def remember(self) -> None:
        """What the collector remembers in the end."""
        self._plane.memory.save(self._memory())

    def _records(self, began: float) -> tuple[bytearray, bytes, str]:
        event, ts = sealed_event(), format_time(began)
        point = ChainPoint(self._point.size, self._point.prev, 1, self._point.ts)
        lines, leaves, end = chain_events([(event, ts)] * self._per_segment, point, LOG_ID)
        return lines, tree_root(leaves), end.prev

    def _memory(self) -> RememberedLog:
        return RememberedLog(
            log=LOG_ID,
            source="bench",
            workspace="bench",
            deployment="chat",
            key=self._signer.key.text(),
            note=self._note.decode(),
            first=self._first,
            seen=self._point,
            stored=self._point,
            first_seen_at=_START,
            collected_at=_START + _YEAR_S,
        )


def _frames(total: int) -> list[Frame]:
    return [Frame("chat", LOG_ID, 0, total)]


def _statement(number: int, count: int) -> ErasureStatement:
    asked = _START + 3600 + number * (_YEAR_S - 7200) / max(1, count)
    return ErasureStatement(
        id=f"er-{number:06d}",
        issued_at=format_time(asked + 1),
        request=Request(
            id=f"er-{number:06d}",
            kind=RequestKind.SESSION,
            requester="bench",
            reference=f"DSAR-{number}",
            requested_at=format_time(asked),
        ),
        scope=Scope(
            workspace="bench",
            deployment="chat",
            commitments=[sha256(str(number).encode()).hexdigest()],
        ),
        keys=[
            DestroyedKeyEntry(
                key_id="3f" * 16, generation=1, session_ref="0a" * 16, tenant_ref="5f" * 16
            )
        ],
        root=RootEntry(kind="file", epoch_destroyed=number, evidence="slot overwritten, fdatasync"),
        tiers=[TierEntry(tier="memory", blocks=10, bytes=10 << 20, unlinked=True)],
        gpu=GpuEntry(),
        verification=[],
        claim_class=ClaimClass.DEVICE,
        complete_after=format_time(asked + 1),
        snapshot_retention_days=SnapshotRetention(),
        exclusions=[],
        steps=[StepEntry(name="destroyed", at=format_time(asked + 0.5))],
        software=Software(version="bench"),
        policy_revision="builtin-1",
        log=_ERASURES,
    )
