"""The residency policies of a period: the repository as a Git bundle, up to the last revision.

Which revisions were in force is what the logs' records say that were made under them. A revision
that is not in the installation's clone any more is named as missing, never left out silently.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from kvrun.errors import KvrunError
from kvrun.evidence.errors import EvidenceError
from kvrun.evidence.gitbundle import MAX_BYTES, MAX_OBJECTS, GitObject, write_bundle
from kvrun.evidence.scope import Site
from kvrun.evidence.staging import Part
from kvrun.git import Git, GitAccess, GitError
from kvrun.policy.setup import folder_of

FORMAT = "kvrun-policy-revisions/v1"
REVISIONS_NAME, REPOSITORY_NAME = "policy/revisions.json", "policy/repository.bundle"
_REF = "refs/kvrun/revisions/"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S = 300.0
_BATCH_BYTES = 16 << 20
_log = logging.getLogger(__name__)


class PolicyRevisions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``policy/revisions.json``: the revisions in force in the period.

    Those ``held`` are in the Git bundle beside it with all that they build on; ``why`` says why
    others are ``missing``.
    """

    format: str = FORMAT
    held: list[str]
    missing: list[str]
    why: str


def commits_of(revisions: Iterable[str]) -> list[str]:
    """Those revisions that are commits of a repository, in order."""
    return sorted({name for name in revisions if _COMMIT.fullmatch(name)})


def refs_of(commits: Iterable[str]) -> dict[str, str]:
    """The names under which the bundle has them."""
    return {f"{_REF}{commit}": commit for commit in commits}


def take_policies(part: Part, site: Site, revisions: Iterable[str]) -> None:
    """Stage what is known of the revisions that were in force; nothing where none is a commit."""
    wanted = commits_of(revisions)
    if not wanted:
        return
    held: list[str] = []
    try:
        git = Git.open(folder_of(site.config).repository, GitAccess(_TIMEOUT_S), make=False)
        held = [commit for commit in wanted if git.resolve(commit) == commit]
        objects = _listed(git, held)
        why = "" if len(held) == len(wanted) else "they are not in the clone of the repository"
    except GitError as error:
        # What git says names folders of this machine, which are nobody's business elsewhere.
        _log.warning("the policy repository of %s cannot be read: %s", site.id, error.message)
        held, why = [], "the clone of the repository cannot be read"
    except KvrunError as error:
        held, why = [], error.message
    if held:
        refs = refs_of(held)
        pieces = write_bundle(refs, _objects(git, objects), len(objects))
        part.add(f"{site.folder}/{REPOSITORY_NAME}", pieces)
    found = PolicyRevisions(held=held, missing=sorted({*wanted} - {*held}), why=why)
    data = msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=2)
    part.add(f"{site.folder}/{REVISIONS_NAME}", data + b"\n")


def _listed(git: Git, commits: Sequence[str]) -> list[tuple[str, str, int]]:
    """Name, kind and size of every object of some commits. EvidenceError for too many."""
    if not commits:
        return []
    asked = "".join(f"{commit}\n" for commit in commits).encode()
    named = git.run("rev-list", "--objects", "--no-object-names", "--stdin", input_bytes=asked)
    shown = git.run("cat-file", "--batch-check", input_bytes=named).decode().splitlines()
    found = []
    for line in shown:
        name, kind, size = line.split()
        found.append((name, kind, int(size)))
    total = sum(size for _, _, size in found)
    if total > MAX_BYTES or len(found) > MAX_OBJECTS:
        raise EvidenceError(
            f"the repository has {len(found)} objects of {total} bytes; {MAX_OBJECTS} of"
            f" {MAX_BYTES} are put into a bundle"
        )
    return sorted(found)


def _objects(git: Git, listed: Sequence[tuple[str, str, int]]) -> Iterator[GitObject]:
    batch: list[tuple[str, str, int]] = []
    size = 0
    for item in listed:
        if batch and size + item[2] > _BATCH_BYTES:
            yield from _read(git, batch)
            batch, size = [], 0
        batch.append(item)
        size += item[2]
    if batch:
        yield from _read(git, batch)


def _read(git: Git, batch: Sequence[tuple[str, str, int]]) -> Iterator[GitObject]:
    contents = git.blobs([name for name, _, _ in batch])
    for (name, kind, _), content in zip(batch, contents, strict=True):
        item = GitObject(kind, content)
        if item.id != name:
            raise EvidenceError(f"the object {name} of the policy repository is damaged")
        yield item
