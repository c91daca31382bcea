"""An operator with keys, a log and a witness, who issues certificates; and what can go wrong."""

import hashlib
import json
from dataclasses import dataclass, field

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.audit.chain import ChainPoint, chain_events
from kvrun.audit.checkpoint import (
    Checkpoint,
    Ed25519Signer,
    cosign_checkpoint,
    sign_checkpoint,
)
from kvrun.audit.merkle import inclusion_proof, tree_root
from kvrun.audit.note import COSIGNATURE_V1, VerifierKey
from kvrun.audit.proof import LogProof
from kvrun.audit.record import AuditEvent, Event, format_time, split_lines
from kvrun.erasure.certificate import (
    ChildEntry,
    ChildOutcome,
    DestroyedKeyEntry,
    ErasureStatement,
    GpuEntry,
    Outcome,
    Request,
    RequestKind,
    RootEntry,
    Scope,
    SnapshotRetention,
    Software,
    StepEntry,
    TierEntry,
    VerificationEntry,
    complete_after,
    payload_digest,
)
from kvrun.erasure.commitment import ErasedSubject, commit, make_opening
from kvrun.erasure.document import SignedStatement, make_certificate, sign_statement
from kvrun.erasure.dsse import key_id, sign
from kvrun.erasure.logproof import LogInclusion
from kvrun.erasure.trust import TrustAnchor, make_anchor, parse_anchor
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.signing import KeyPurpose, SigningKey

LOG_ID = "kvrun.test/control"
REQUESTED = 1_770_000_000.0
ISSUED = REQUESTED + 0.25
NOW = REQUESTED + 3600.0
SUBJECT = ErasedSubject(
    kind=RequestKind.SESSION, id="chat-7", workspace="acme", deployment="support", tenant="alice"
)


def private_key(seed: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)


def signing_key(seed: int, **changes: object) -> SigningKey:
    private = private_key(seed)
    public = private.public_key().public_bytes_raw()
    values: dict[str, object] = {
        "key_id": key_id(public),
        "purpose": KeyPurpose.CERTIFICATE,
        "serial": seed,
        "created_at": int(REQUESTED) - 1000,
        "valid_until": None,
        "revoked_at": None,
        "private_key": private,
    }
    return SigningKey(**{**values, **changes})  # type: ignore[arg-type]


def opening(subject: ErasedSubject = SUBJECT, salt: int = 0x5A) -> bytes:
    return make_opening(subject, bytes([salt]) * 32)


def statement(**changes: object) -> ErasureStatement:
    steps = ("refused", "fenced", "keys_zeroed", "slot_zeroed", "epoch_destroyed", "unlinked")
    whole = ErasureStatement(
        id="er-20260202-0001",
        issued_at=format_time(ISSUED),
        request=Request(
            id="req-1",
            kind=RequestKind.SESSION,
            requester="Jörg Müller <dpo@acme.example>",
            reference="DSAR-123",
            legal_basis="GDPR Art. 17(1)(b)",
            requested_at=format_time(REQUESTED),
        ),
        scope=Scope(workspace="acme", deployment="support", commitments=[commit(opening())]),
        keys=[
            DestroyedKeyEntry(
                key_id="3f" * 16, generation=12, session_ref="0a" * 16, tenant_ref="5f" * 16
            )
        ],
        root=RootEntry(
            kind="file",
            root_id="77" * 16,
            epoch_destroyed=41,
            evidence="slot overwritten, fdatasync, read back direct",
            read_back="direct",
        ),
        tiers=[
            TierEntry(tier="memory", blocks=120, bytes=251_658_240, unlinked=True),
            TierEntry(tier="disk", blocks=480, bytes=1_006_632_960, unlinked=True),
        ],
        gpu=GpuEntry(evicted=96, scrubbed=96, held=0),
        verification=[
            VerificationEntry(name="canary", outcome=Outcome.PASS, detail="no key opens it"),
            VerificationEntry(name="slot_read_back", outcome=Outcome.PASS),
            VerificationEntry(name="restart_probe", outcome=Outcome.SKIPPED, detail="not asked"),
        ],
        claim_class=ClaimClass.DEVICE,
        complete_after=complete_after(REQUESTED + 0.1, SnapshotRetention()),
        snapshot_retention_days=SnapshotRetention(),
        exclusions=[
            "text that left the deployment as an answer",
            "copies that the operator's own prompt log keeps",
        ],
        steps=[
            StepEntry(name=name, at=format_time(REQUESTED + 0.03 * (number + 1)))
            for number, name in enumerate(steps)
        ],
        software=Software(version="0.1.0"),
        policy_revision="builtin-1",
        log=LOG_ID,
    )
    return msgspec.structs.replace(whole, **changes)


@dataclass(frozen=True)
class Issued:
    """A certificate and what it takes to check it."""

    data: bytes
    signed: SignedStatement
    anchor: TrustAnchor
    opening: bytes


@dataclass
class Operator:
    """Keys, a log with other records around the certificate's, and a witness."""

    signer: SigningKey = field(default_factory=lambda: signing_key(1))
    log_seed: int = 2
    witness_seed: int = 3
    log_id: str = LOG_ID
    cosigned_at: int | None = int(ISSUED) + 60

    @property
    def log_signer(self) -> Ed25519Signer:
        return Ed25519Signer(self.log_id, private_key(self.log_seed))

    @property
    def witness_key(self) -> VerifierKey:
        public = private_key(self.witness_seed).public_key().public_bytes_raw()
        return VerifierKey("witness.example/w1", COSIGNATURE_V1, public)

    def anchor(self) -> TrustAnchor:
        return parse_anchor(
            make_anchor([self.signer.public()], [self.log_signer.key], [self.witness_key])
        )

    def include(self, digest: str, *, at: int = 4, size: int = 7) -> LogInclusion:
        """The digest's record at a place in the log, with a proof under a fresh checkpoint."""
        events = [AuditEvent(event=Event.HEARTBEAT)] * size
        events[at] = AuditEvent(
            event=Event.CERTIFIED,
            digest=digest,
            deployment="support",
            request_id="er-20260202-0001",
            reason="device",
            workspace="acme",
        )
        timed = [(event, format_time(ISSUED + number)) for number, event in enumerate(events)]
        point = ChainPoint(0, ChainPoint.start(self.log_id).prev, 1)
        lines, leaves, _ = chain_events(timed, point, self.log_id)
        return self.prove(split_lines(bytes(lines)), leaves, at)

    def prove(self, lines: list[bytes], leaves: list[bytes], at: int) -> LogInclusion:
        signer = self.log_signer
        tree = Checkpoint(self.log_id, len(leaves), tree_root(leaves))
        note = sign_checkpoint(tree, signer)
        if self.cosigned_at is not None:
            witness = private_key(self.witness_seed)
            note = cosign_checkpoint(note, self.witness_key.name, witness, self.cosigned_at)
        proof = LogProof(at, tuple(inclusion_proof(leaves, at)), note)
        return LogInclusion(
            key=signer.key.text(), proof=proof.encode().decode(), record=lines[at].decode()
        )

    def issue(self, what: ErasureStatement | None = None) -> Issued:
        signed = sign_statement(what or statement(), self.signer)
        data = make_certificate(signed, self.include(signed.digest))
        return Issued(data, signed, self.anchor(), opening())


def reseal(document: dict[str, object]) -> bytes:
    """A document's bytes with a checksum that fits, whatever was changed in it."""
    body = {name: value for name, value in document.items() if name != "sha256"}
    checksum = hashlib.sha256(_canonical(body)).hexdigest()
    return _canonical({**body, "sha256": checksum}) + b"\n"


def _canonical(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def sign_payload(operator: Operator, payload: bytes) -> Issued:
    """A certificate over any payload, good or not, as only the key's holder can make it."""
    private = operator.signer.private_key
    public = private.public_key().public_bytes_raw()
    signed = SignedStatement(sign(payload, public, private.sign), public, payload_digest(payload))
    data = make_certificate(signed, operator.include(signed.digest))
    return Issued(data, signed, operator.anchor(), opening())


def parent() -> ErasureStatement:
    """One person in two deployments: erased in one, unknown to the other."""
    return statement(
        id="er-20260202-0002",
        request=msgspec.structs.replace(statement().request, kind=RequestKind.USER),
        scope=Scope(workspace="acme", commitments=[commit(opening())]),
        keys=[],
        root=None,
        tiers=[],
        gpu=GpuEntry(),
        verification=[],
        claim_class=None,
        children=[
            ChildEntry(
                deployment="support",
                outcome=ChildOutcome.ERASED,
                certificate_id="er-20260202-0001",
                payload_sha256="c4" * 32,
            ),
            ChildEntry(deployment="search", outcome=ChildOutcome.NOTHING_HELD),
        ],
    )
