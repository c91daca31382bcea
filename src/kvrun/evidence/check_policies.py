"""Whether a bundle has the policies that its logs were made under, each whole under its own id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kvrun.audit.verdict import Verdict
from kvrun.evidence.archive import Archive
from kvrun.evidence.errors import BundleFormatError
from kvrun.evidence.gitbundle import MAX_BYTES, missing_of, read_bundle
from kvrun.evidence.logs import revisions_of
from kvrun.evidence.policies import (
    REPOSITORY_NAME,
    REVISIONS_NAME,
    PolicyRevisions,
    commits_of,
    refs_of,
)
from kvrun.evidence.report import BundleCheck, CheckResult, Findings

_MAX_LIST_BYTES = 16 << 20
_OVERHEAD_BYTES = 64 << 20


def check_policies(
    archive: Archive, deployments: Mapping[str, str], rows: Iterable[Mapping[str, str]]
) -> CheckResult:
    """``deployments``: ids by folder. ``rows``: those of the list ``log_events``."""
    seen: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        counted = seen.setdefault(row["deployment"], [])
        counted.append((row["event"], row["policy_revision"]))
    found = Findings(BundleCheck.POLICIES)
    held = missing = 0
    for folder, deployment in deployments.items():
        wanted = commits_of(revisions_of(seen.get(deployment, ())))
        try:
            stated = _check_one(archive, folder, wanted, found)
        except BundleFormatError as error:
            found.fail(error.name or f"{folder}/{REPOSITORY_NAME}", error.message)
            continue
        if stated is not None:
            held, missing = held + len(stated.held), missing + len(stated.missing)
    if not held and not missing:
        return found.result("no record was made under a policy from a repository")
    if missing:
        said = f"{held} revision(s) whole, {missing} not in the bundle: revisions.json says why"
        return found.result(said, verdict=Verdict.UNKNOWN)
    return found.result(f"{held} revision(s) in Git bundles, each with all that it builds on")


def _check_one(
    archive: Archive, folder: str, wanted: list[str], found: Findings
) -> PolicyRevisions | None:
    name, bundle = f"{folder}/{REVISIONS_NAME}", f"{folder}/{REPOSITORY_NAME}"
    if not archive.has(name):
        if wanted or archive.has(bundle):
            found.fail(name, "is missing, and records were made under a policy")
        return None
    try:
        stated = _REVISIONS.decode(archive.read(name, _MAX_LIST_BYTES))
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BundleFormatError(f"it is malformed: {error}", name=name) from None
    if sorted([*stated.held, *stated.missing]) != wanted:
        found.fail(name, "it does not name the revisions that records were made under")
    if archive.has(bundle) != bool(stated.held):
        found.fail(bundle, "is missing" if stated.held else "has no place in this bundle")
    elif stated.held:
        _check_bundle(archive.read(bundle, MAX_BYTES + _OVERHEAD_BYTES), bundle, stated, found)
    return stated


def _check_bundle(data: bytes, name: str, stated: PolicyRevisions, found: Findings) -> None:
    try:
        refs, objects = read_bundle(data)
        lacking = missing_of(refs.values(), objects)
    except BundleFormatError as error:
        raise BundleFormatError(error.message, name=name) from None
    if refs != refs_of(stated.held):
        found.fail(name, "it has other revisions than revisions.json says")
    for commit in stated.held:
        if commit not in objects or objects[commit].kind != "commit":
            found.fail(name, f"the revision {commit} is no commit in it")
    for one in sorted(lacking)[:1]:
        found.fail(name, f"{len(lacking)} object(s) that its revisions need are missing: {one}")


_REVISIONS = msgspec.json.Decoder(PolicyRevisions)
