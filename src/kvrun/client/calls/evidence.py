"""Erasures, certificates, audit logs, alerts and Storage."""

from collections.abc import Mapping, Sequence

from kvrun.client.call import LONG_S, Call, Listing, Page, listing, path, query
from kvrun.client.results.evidence import (
    Alert,
    AuditLog,
    Certificate,
    Collection,
    Controls,
    Erased,
    Erasure,
    ErasureProgress,
    Evidence,
    JointErased,
    Plan,
    Record,
    StorageEntry,
    UserPlan,
    WidePlan,
)
from kvrun.client.results.people import Approval


def plan_erasure(
    deployment_id: str, *, kind: str, tenant: str = "", session: str = ""
) -> Call[Plan]:
    """Count what an erasure would reach; nothing is erased.

    ``kind`` is ``session``, ``tenant``, ``user`` or ``deployment``.
    """
    place = path("deployments", deployment_id, "erasures", "plan")
    body = {"kind": kind, "tenant": tenant, "session": session}
    return Call("POST", place, Plan, body=body, repeatable=True, timeout_s=LONG_S)


def erase(
    deployment_id: str,
    *,
    kind: str,
    tenant: str = "",
    session: str = "",
    confirm: str = "",
    reference: str = "",
    legal_basis: str = "",
) -> Call[Erased]:
    """Destroy the keys; answers when it is certified.

    ``confirm`` is the plan's token; a session needs none. ``reference`` is yours, such as a
    ticket's number: erasures are found by it again, also when the answer was lost.
    """
    body = {
        "kind": kind,
        "tenant": tenant,
        "session": session,
        "confirm": confirm,
        "reference": reference,
        "legal_basis": legal_basis,
    }
    place = path("deployments", deployment_id, "erasures")
    return Call("POST", place, Erased, body=body, timeout_s=LONG_S)


def list_erasures(deployment_id: str, *, reference: str = "") -> Listing[Erasure]:
    """A deployment's erasures: those under way, then the latest first."""
    return listing(path("deployments", deployment_id, "erasures"), Erasure, reference=reference)


def get_erasure(deployment_id: str, erasure_id: str) -> Call[ErasureProgress]:
    """How far an erasure has come."""
    return Call("GET", path("deployments", deployment_id, "erasures", erasure_id), ErasureProgress)


def plan_user_erasure(workspace_id: str, user: str) -> Call[UserPlan]:
    """Count what erasing a person in every deployment of a workspace would reach."""
    place = path("workspaces", workspace_id, "user-erasures", "plan")
    return Call("POST", place, UserPlan, body={"user": user}, repeatable=True, timeout_s=LONG_S)


def erase_user(
    workspace_id: str,
    user: str,
    confirm: Mapping[str, str],
    *,
    reference: str = "",
    legal_basis: str = "",
    certify_pending: bool = False,
) -> Call[JointErased]:
    """Erase a person in every deployment, with one certificate over all.

    ``confirm`` are the plan's tokens by deployment id. Asked again with the same ``reference`` it
    goes on where it was cut short. ``certify_pending``: certify although a deployment failed.
    """
    body = {
        "user": user,
        "confirm": dict(confirm),
        "reference": reference,
        "legal_basis": legal_basis,
        "certify_pending": certify_pending,
    }
    place = path("workspaces", workspace_id, "user-erasures")
    return Call("POST", place, JointErased, body=body, timeout_s=LONG_S)


def plan_wide_erasure(
    workspace_id: str, *, kind: str, label: str = "", also: Sequence[str] = ()
) -> Call[WidePlan]:
    """Count what an erasure over several deployments would reach; nothing is erased.

    ``kind`` is ``tenants`` (those with the ``label``, ``name=value``), ``workspace``, or
    ``account``: the one that owns the workspace; ``also`` are API keys of its other workspaces.
    """
    place = path("workspaces", workspace_id, "erasures", "plan")
    body = {"kind": kind, "label": label, "also": list(also)}
    return Call("POST", place, WidePlan, body=body, repeatable=True, timeout_s=LONG_S)


def ask_wide_approval(
    workspace_id: str, token: str, *, kind: str, label: str = "", also: Sequence[str] = ()
) -> Call[list[Approval]]:
    """Ask a second person to agree to a plan, in every workspace that it reaches."""
    place = path("workspaces", workspace_id, "erasures", "approvals")
    body = {"kind": kind, "label": label, "also": list(also), "token": token}
    return Call("POST", place, list[Approval], body=body, timeout_s=LONG_S)


def erase_wide(
    workspace_id: str,
    *,
    kind: str,
    confirm: str,
    label: str = "",
    also: Sequence[str] = (),
    reference: str = "",
    legal_basis: str = "",
    certify_pending: bool = False,
) -> Call[JointErased]:
    """Erase over several deployments, with one certificate over all.

    ``confirm`` is the plan's token. Asked again with the same ``reference`` it goes on where it was
    cut short. ``certify_pending``: certify although a deployment failed.
    """
    body = {
        "kind": kind,
        "label": label,
        "also": list(also),
        "confirm": confirm,
        "reference": reference,
        "legal_basis": legal_basis,
        "certify_pending": certify_pending,
    }
    place = path("workspaces", workspace_id, "erasures")
    return Call("POST", place, JointErased, body=body, timeout_s=LONG_S)


def list_certificates(
    workspace_id: str, *, deployment_id: str = "", reference: str = ""
) -> Listing[Certificate]:
    """The certificates of a workspace, those of deleted deployments included, newest first."""
    place = path("workspaces", workspace_id, "certificates")
    return listing(place, Certificate, deployment_id=deployment_id, reference=reference)


def get_certificate(deployment_id: str, certificate_id: str) -> Call[bytes]:
    """A certificate's bytes, as ``kvrun verify`` takes them."""
    return Call("GET", path("deployments", deployment_id, "certificates", certificate_id), bytes)


def get_certificate_page(deployment_id: str, certificate_id: str) -> Call[bytes]:
    """A certificate as an HTML page to read; only the certificate itself can be verified."""
    place = path("deployments", deployment_id, "certificates", certificate_id, "page")
    return Call("GET", place, bytes)


def get_certificate_pdf(deployment_id: str, certificate_id: str) -> Call[bytes]:
    """A certificate as a PDF file, where the control plane has the extra ``pdf``."""
    place = path("deployments", deployment_id, "certificates", certificate_id, "pdf")
    return Call("GET", place, bytes)


def get_trust_anchor(deployment_id: str) -> Call[bytes]:
    """The public keys with which others check a deployment's certificates and log."""
    return Call("GET", path("deployments", deployment_id, "trust-anchor"), bytes)


def get_audit(deployment_id: str) -> Call[AuditLog]:
    """Up to which record a deployment's log is verified, who witnessed that, and its files."""
    return Call("GET", path("deployments", deployment_id, "audit"), AuditLog)


def list_records(
    deployment_id: str,
    *,
    log: str = "",
    event: str = "",
    outcome: str = "",
    tenant_ref: str = "",
    session_ref: str = "",
    request_id: str = "",
    since: float | None = None,
    until: float | None = None,
) -> Listing[Record]:
    """Collected records of a log (the one collected last, unless named), newest first.

    Times in seconds since 1970. The reading is on record.
    """
    asked = query(
        log=log,
        event=event,
        outcome=outcome,
        tenant_ref=tenant_ref,
        session_ref=session_ref,
        request_id=request_id,
        since=since,
        until=until,
        limit=200,
    )
    place = path("deployments", deployment_id, "audit", "records")
    return Listing(Call("GET", place, Page[Record], query=asked))


def collect_now(deployment_id: str) -> Call[Collection]:
    """Collect, verify and store what is new of a deployment's log."""
    place = path("deployments", deployment_id, "audit", "collect")
    return Call("POST", place, Collection, repeatable=True, timeout_s=LONG_S)


def get_segment(deployment_id: str, name: str, *, log: str = "") -> Call[bytes]:
    """A file that ``get_audit`` lists, of a log (the one collected last, unless named).

    The reading is on record.
    """
    place = path("deployments", deployment_id, "audit", "segments", *name.split("/"))
    return Call("GET", place, bytes, query=query(log=log), timeout_s=LONG_S)


def get_controls(workspace_id: str, since: str, until: str) -> Call[Controls]:
    """What the evidence of a period answers to, by what was counted so far.

    Days in UTC, such as ``2026-01-31``; ``until`` is the first one after the period.
    """
    asked = query(**{"from": since, "to": until})
    return Call("GET", path("workspaces", workspace_id, "controls"), Controls, query=asked)


def start_evidence(
    workspace_id: str,
    since: str,
    until: str,
    *,
    sample: int = 25,
    seed: str = "1",
    full: bool = False,
) -> Call[Evidence]:
    """Begin to make a workspace's evidence of a period; it is on record first.

    ``sample`` records are drawn by ``seed``; ``full``: the logs' segments themselves too.
    """
    place = path("workspaces", workspace_id, "evidence")
    body = _evidence(since, until, sample, seed, full)
    return Call("POST", place, Evidence, body=body, repeatable=True)


def start_deployment_evidence(
    deployment_id: str,
    since: str,
    until: str,
    *,
    sample: int = 25,
    seed: str = "1",
    full: bool = False,
) -> Call[Evidence]:
    """Begin to make a deployment's evidence of a period; see ``start``."""
    place = path("deployments", deployment_id, "evidence")
    body = _evidence(since, until, sample, seed, full)
    return Call("POST", place, Evidence, body=body, repeatable=True)


def list_evidence(workspace_id: str) -> Listing[Evidence]:
    """A workspace's evidence of the last days, the newest first."""
    return listing(path("workspaces", workspace_id, "evidence"), Evidence)


def get_evidence(workspace_id: str, evidence_id: str) -> Call[Evidence]:
    """How far evidence is."""
    return Call("GET", path("workspaces", workspace_id, "evidence", evidence_id), Evidence)


def get_bundle(workspace_id: str, evidence_id: str) -> Call[bytes]:
    """The file of evidence that is done, as ``kvrun verify`` takes it. The reading is on record."""
    place = path("workspaces", workspace_id, "evidence", evidence_id, "bundle")
    return Call("GET", place, bytes, timeout_s=LONG_S)


def get_evidence_anchor(workspace_id: str) -> Call[bytes]:
    """The public keys with which others check a workspace's evidence."""
    return Call("GET", path("workspaces", workspace_id, "trust-anchor"), bytes)


def list_alerts(workspace_id: str, *, acknowledged: bool = False) -> Listing[Alert]:
    """The alerts of a workspace, newest first; ``acknowledged``: acknowledged ones too."""
    return listing(path("workspaces", workspace_id, "alerts"), Alert, acknowledged=acknowledged)


def acknowledge_alerts(
    workspace_id: str,
    log: str,
    reason: str,
    *,
    deployment_id: str = "",
    start_over: bool = False,
) -> Call[list[Alert]]:
    """Acknowledge what waits about one log, so that its collection goes on.

    The reason is put on record. ``start_over``: collect the log as it is now as another history.
    """
    body = {
        "log": log,
        "reason": reason,
        "deployment_id": deployment_id,
        "start_over": start_over,
    }
    place = path("workspaces", workspace_id, "alerts", "acknowledge")
    return Call("POST", place, list[Alert], body=body)


def browse_storage(workspace_id: str, *, prefix: str = "") -> Listing[StorageEntry]:
    """The entries directly below a folder of a workspace's Storage."""
    return listing(path("workspaces", workspace_id, "storage"), StorageEntry, prefix=prefix)


def read_object(workspace_id: str, key: str) -> Call[bytes]:
    """An object of Storage; sealed blocks are ciphertext."""
    place = path("workspaces", workspace_id, "storage", "object")
    return Call("GET", place, bytes, query=query(key=key), timeout_s=LONG_S)


def _evidence(since: str, until: str, sample: int, seed: str, full: bool) -> dict[str, object]:
    return {"from": since, "to": until, "sample": sample, "seed": seed, "full": full}
