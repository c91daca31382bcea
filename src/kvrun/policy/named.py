"""Revisions by name: the active one, a commit, a branch or a tag of the followed repository.

What the repository's clone does not hold is fetched; nothing comes into force by that.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace

from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.git import Git, GitError
from kvrun.policy.bundle import ActivePolicy
from kvrun.policy.compare import NamedRevision
from kvrun.policy.errors import PolicyError
from kvrun.policy.revision import parse_revision
from kvrun.policy.setup import folder_of, settings_of
from kvrun.policy.sync import KEPT_REF, read_commit, revision_of

ACTIVE = "active"
MAX_LISTED = 30
_LOOK_S = 20.0
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")


class RevisionUnknownError(PolicyError):
    """There is no such revision."""

    status = 404


class RepositoryAwayError(PolicyError):
    """The repository cannot be asked for a revision now."""

    status = 503


class RevisionBadError(PolicyError):
    """There is such a revision, and it cannot be read as policies."""

    status = 422


@dataclass(frozen=True, slots=True)
class KnownRevision:
    """A revision that was in force or was looked at. ``at``: when it was committed, or looked at
    where ``refused`` says why it was not taken; in seconds since 1970."""

    revision: str
    at: float
    author: str = ""
    subject: str = ""
    active: bool = False
    refused: str = ""


def active_revision(config: KvrunConfig) -> NamedRevision:
    """The active revision. Raises RevisionUnknownError where there is none, PolicyError."""
    active = folder_of(config).active()
    if active is None:
        raise RevisionUnknownError(
            "no policy is active here",
            hint="`kvrun policy sync` fetches it from residency.repository.",
        )
    return _of_active(active, config.residency.path)


def find_revision(config: KvrunConfig, name: str) -> NamedRevision:
    """The revision that ``name`` means: ``active``, a commit, else a branch or tag, newly fetched.

    Raises RevisionUnknownError, RepositoryAwayError, RevisionBadError.
    """
    if name == ACTIVE:
        return active_revision(config)
    active = folder_of(config).active()
    if active is not None and name == active.origin.revision:
        return _of_active(active, config.residency.path)
    if not _REF.fullmatch(name) or ".." in name:
        raise RevisionUnknownError(
            f"{name[:80]!r} is no name of a revision",
            hint=f"Name a commit, a branch, a tag or {ACTIVE!r}.",
        )
    settings = settings_of(config)
    if settings is None:
        raise RevisionUnknownError(
            "no repository is connected: builtin-1 applies",
            hint=f"Set residency.repository, or name {ACTIVE!r}.",
        )
    access = settings.access()
    try:
        git = Git.open(
            folder_of(config).repository,
            replace(access, timeout_s=min(access.timeout_s, _LOOK_S)),
        )
        commit = git.resolve(name) if _COMMIT.fullmatch(name) else None
        for kind in () if commit else ("heads", "tags"):
            found = git.fetch(settings.repository, f"refs/{kind}/{name}")
            if found is not None:
                commit = git.resolve(found)
                break
    except GitError as error:
        raise RepositoryAwayError(" ".join(error.message.split())[:300]) from None
    if commit is None:
        raise RevisionUnknownError(
            f"the repository has no branch or tag {name[:80]!r}, and no such commit was fetched"
        )
    return read_named(git, commit, settings.path)


def read_named(git: Git, commit: str, folder: str) -> NamedRevision:
    """The policies of a commit. Raises RevisionBadError with every problem."""
    try:
        files = read_commit(git, commit, folder)
        revision = parse_revision(files, commit, time.thread_time)
    except KvrunError as error:
        raise RevisionBadError(error.message) from None
    texts = {path: data.decode("utf-8") for path, data in files.items()}
    return NamedRevision(revision, _below(texts, folder))


def known_revisions(config: KvrunConfig) -> list[KnownRevision]:
    """The active revision and those before it, the newest first, then those that were refused.

    Raises PolicyError for a file that is damaged.
    """
    folder = folder_of(config)
    active, status = folder.active(), folder.status()
    found: dict[str, KnownRevision] = {}
    if active is not None:
        origin = active.origin
        at = origin.committed_at
        found[origin.revision] = KnownRevision(
            origin.revision, at, origin.author, origin.subject, active=True
        )
        for commit in _before(config, origin.revision):
            found.setdefault(commit.revision, commit)
    for look in status.history:
        if look.outcome == "rejected" and look.revision:
            why = look.problems[0] if look.problems else "it was refused"
            found.setdefault(look.revision, KnownRevision(look.revision, look.at, refused=why))
    return list(found.values())


def _before(config: KvrunConfig, commit: str) -> list[KnownRevision]:
    settings, folder = settings_of(config), folder_of(config).repository
    if settings is None or not folder.is_dir():
        return []
    try:
        git = Git.open(folder, settings.access(), make=False)
        tip = git.resolve(KEPT_REF) or commit
        listed = git.run(
            *("log", "-z", f"-n{MAX_LISTED}", "--format=%H%x1f%ct%x1f%an <%ae>%x1f%s"),
            *(tip, "--", f"{settings.path}/"),
        )
    except GitError:
        return []
    lines = [line.split("\x1f", 3) for line in listed.decode("utf-8", "replace").split("\0")]
    return [
        KnownRevision(line[0], float(line[1]), _plain(line[2]), _plain(line[3]))
        for line in lines
        if len(line) == 4
    ]


def _plain(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:200]


def _of_active(active: ActivePolicy, folder: str) -> NamedRevision:
    return NamedRevision(revision_of(active, time.thread_time), _below(active.files, folder))


def _below(files: dict[str, str], folder: str) -> dict[str, str]:
    return {path.removeprefix(f"{folder}/"): text for path, text in files.items()}
