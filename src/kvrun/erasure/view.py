"""What a certificate's HTML and PDF views show, in words and in order. Pure.

A view is for reading. Only the certificate itself can be verified, and every view says so.
"""

from dataclasses import dataclass

from kvrun.audit.record import format_time
from kvrun.audit.verdict import Verdict
from kvrun.config.values import size_text
from kvrun.erasure.certificate import (
    CERTIFICATE_TYPE,
    DELETION_RECORD_TYPE,
    PARENT_TYPE,
    ErasureStatement,
    predicate_type,
)
from kvrun.erasure.report import CertificateReport, CheckCode
from kvrun.keys.filesystem import ClaimClass

MAX_KEYS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column heads; ``note`` stands below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and values."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Items:
    """A plain list."""

    title: str
    rows: tuple[str, ...]


Section = Table | Facts | Items


def class_text(claim_class: str, children: int) -> str:
    """For a list: what a certificate proves. One over several deployments (``children``
    certificates) proves what theirs do."""
    return claim_class or ("each deployment's own" if children else "nothing held")


def class_of(statement: ErasureStatement) -> str:
    """The same, of a statement."""
    claim_class = statement.claim_class.value if statement.claim_class else ""
    return class_text(claim_class, len(statement.children))


@dataclass(frozen=True, slots=True)
class CertificateView:
    """Everything that a view shows. ``verdict`` colours ``state``, the result of the checks."""

    title: str
    id: str
    verdict: Verdict
    state: str
    summary: str
    sections: tuple[Section, ...]
    footer: str


def certificate_view(
    report: CertificateReport, statement: ErasureStatement, *, now: float
) -> CertificateView:
    """The view of a checked certificate; ``now`` (seconds since 1970) is when it was checked."""
    verdict, state = _state(report)
    return CertificateView(
        title=_TITLES[predicate_type(statement)],
        id=statement.id,
        verdict=verdict,
        state=state,
        summary=_summary(statement),
        sections=tuple(section for section in _sections(report, statement) if section.rows),
        footer=(
            f"A view of {statement.id}, made {_moment(format_time(now))}. Only the certificate file"
            " itself can be verified: kvrun verify certificate.json --trust anchor.json"
        ),
    )


def _state(report: CertificateReport) -> tuple[Verdict, str]:
    failed = [item for item in report.checks if item.verdict is Verdict.FAIL]
    if failed:
        return Verdict.FAIL, f"Does not hold: {failed[0].code.replace('_', ' ')}"
    codes = {item.code for item in report.checks}
    if report.exit_code == 2:
        return Verdict.UNKNOWN, "Unbroken, but the signer is self-asserted"
    for code, state in _OPEN_STATES:
        if code in codes:
            return Verdict.UNKNOWN, state
    return Verdict.PASS, "Verified"


def _summary(statement: ErasureStatement) -> str:
    if statement.children:
        return (
            f"{len(statement.children)} deployment(s) of {_owner(statement.scope.workspace)} were"
            " asked. What was erased in each is in its own certificate, listed here."
        )
    if statement.claim_class is None:
        return "Nothing was held for this request, so there was no key to destroy."
    blocks = sum(tier.blocks for tier in statement.tiers)
    size = size_text(sum(tier.bytes for tier in statement.tiers))
    count = len(statement.keys)
    keys = "1 session key was" if count == 1 else f"{count} session keys were"
    if statement.claim_class is ClaimClass.LOGICAL:
        return (
            f"{keys} deleted, and {blocks} sealed blocks ({size}) with them. The medium under the"
            " key root may keep deleted keys, so this is a record of key deletion and no"
            " certificate of erasure."
        )
    text = f"{keys} destroyed. {blocks} sealed blocks ({size}) cannot be opened any more."
    if statement.complete_after > statement.issued_at:
        text += f" Complete after {_moment(statement.complete_after)}, when snapshots have expired."
    return text


def _sections(report: CertificateReport, statement: ErasureStatement) -> list[Section]:
    request, scope, root = statement.request, statement.scope, statement.root
    claim = statement.claim_class
    return [
        Table(
            "Checks",
            ("Check", "Result", "Finding"),
            tuple(
                (item.name.value, item.verdict.value, f"{item.code.value}: {item.detail}")
                for item in report.checks
            ),
        ),
        Facts(
            "Request",
            _facts(
                ("Asked to erase", f"{request.kind.value} in {_place(scope.deployment)}"),
                ("Workspace", scope.workspace),
                ("Asked by", request.requester),
                ("Reference", request.reference),
                ("Legal basis", request.legal_basis),
                ("Asked at", _moment(request.requested_at)),
                ("Issued at", _moment(statement.issued_at)),
            ),
        ),
        Facts(
            "Claim",
            _facts(
                ("Class", _CLASSES[claim] if claim else ""),
                ("Root", f"{root.kind}, epoch {root.epoch_destroyed} destroyed" if root else ""),
                ("Evidence", root.evidence if root else ""),
                ("Complete after", _moment(statement.complete_after)),
                ("Snapshots kept", _retention(statement)),
            ),
        ),
        Table(
            "Deployments",
            ("Deployment", "Outcome", "Certificate"),
            tuple(
                (item.deployment, item.outcome.value.replace("_", " "), item.certificate_id)
                for item in statement.children
            ),
        ),
        Table(
            "Made unreadable",
            ("Tier", "Blocks", "Bytes", "Also deleted"),
            tuple(
                (tier.tier, f"{tier.blocks:,}", f"{tier.bytes:,}", "yes" if tier.unlinked else "no")
                for tier in statement.tiers
            ),
            _gpu(statement),
        ),
        Table(
            "Keys destroyed",
            ("Key", "Generation", "Session reference", "Tenant reference"),
            tuple(
                (key.key_id, str(key.generation), key.session_ref, key.tenant_ref)
                for key in statement.keys[:MAX_KEYS_SHOWN]
            ),
            _more_keys(len(statement.keys)),
        ),
        Table(
            "Verified after the erasure",
            ("Check", "Outcome", "Detail"),
            tuple(
                (item.name.replace("_", " "), item.outcome.value, item.detail)
                for item in statement.verification
            ),
        ),
        Items("Not confirmed when issued", tuple(statement.unacknowledged)),
        Items("Not covered", tuple(statement.exclusions)),
        Table(
            "Steps",
            ("Step", "At"),
            tuple((step.name.replace("_", " "), _moment(step.at)) for step in statement.steps),
        ),
        Facts(
            "Made by",
            _facts(
                ("Software", f"{statement.software.name} {statement.software.version}"),
                ("Policy revision", statement.policy_revision),
                ("Log", statement.log),
                ("Subject commitment", "\n".join(scope.commitments)),
            ),
        ),
    ]


def _facts(*rows: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((label, value) for label, value in rows if value)


def _owner(workspace: str) -> str:
    return f"workspace {workspace}" if workspace else "the account"


def _place(deployment: str) -> str:
    return f"deployment {deployment}" if deployment else "every deployment"


def _retention(statement: ErasureStatement) -> str:
    kept = statement.snapshot_retention_days
    return f"root {kept.root} day(s), machine {kept.machine} day(s), as declared"


def _gpu(statement: ErasureStatement) -> str:
    gpu = statement.gpu
    if not gpu.evicted + gpu.scrubbed + gpu.held:
        return ""
    return (
        f"Engine memory: {gpu.evicted:,} pages taken out of the prefix cache, {gpu.scrubbed:,}"
        f" zeroed, {gpu.held:,} still held by others and zeroed when freed."
    )


def _more_keys(count: int) -> str:
    more = count - MAX_KEYS_SHOWN
    return f"and {more:,} more in the certificate itself" if more > 0 else ""


def _moment(text: str) -> str:
    return f"{text[:10]} {text[11:23]} UTC"


_TITLES = {
    CERTIFICATE_TYPE: "Erasure certificate",
    DELETION_RECORD_TYPE: "Key deletion record",
    PARENT_TYPE: "Erasure across deployments",
}
_OPEN_STATES = (
    (CheckCode.UNACKNOWLEDGED, "Verified; not everything had confirmed"),
    (CheckCode.LOGICAL_ONLY, "Verified; claims a deletion, no erasure"),
    (CheckCode.NOT_YET_COMPLETE, "Verified; not complete yet"),
)
_CLASSES = {
    ClaimClass.DEVICE: "device: the key was overwritten in place where no copy is kept",
    ClaimClass.CRYPTOGRAPHIC: "cryptographic: nothing of the key remains anywhere",
    ClaimClass.LOGICAL: "logical: the key was deleted; its medium may keep it",
}
