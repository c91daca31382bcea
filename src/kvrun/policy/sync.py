"""Bringing a repository's policy here: fetch, check, and switch in one step or not at all.

A commit is taken where it follows the active one, is signed if it must be, holds only policies that
are right and whose tests pass, can be compiled for this instance and its tenants, and was tried on
what is placed now. Otherwise the active revision stays. Where that last cannot be done, a commit
that only takes away is taken all the same: to refuse it would keep what it forbids. Everything that
git receives is bounded in time and size; no hook runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvrun.errors import KvrunError
from kvrun.git import Git, GitAccess, GitError, TreeEntry
from kvrun.policy.bundle import ActivePolicy, Origin, PolicyFolder, SyncOutcome
from kvrun.policy.compile import CompiledRevision, PolicyTable, closed_table
from kvrun.policy.diff import is_stricter
from kvrun.policy.errors import PolicyError, PolicyRejectedError, Problem
from kvrun.policy.held import HeldSession, would_leave
from kvrun.policy.matching import InstanceFacts
from kvrun.policy.revision import MAX_FILES, MAX_TOTAL_BYTES, Revision, parse_revision
from kvrun.policy.source import MAX_FILE_BYTES
from kvrun.policy.testing import run_tests

MAX_PACK_BYTES = 64 << 20
KEPT_REF = "refs/kvrun/active"
_KEPT_REVISIONS = "refs/kvrun/revisions/"
_SUFFIXES = (".yaml", ".yml")
_WAIT_S = 60.0
"""For so long beyond its two fetches another process's look is waited for."""
_TRY_AGAIN_S = 3600.0
"""After so long a commit is tried again on what is placed, where that could not be said."""


class Outcome(StrEnum):
    """How a look at the repository ended."""

    UNCHANGED = "unchanged"
    ACTIVATED = "activated"
    REJECTED = "rejected"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Which repository, and what is asked of its commits."""

    repository: str
    ref: str = "main"
    path: str = "policies"
    require_signed: bool = False
    allowed_signers: Path | None = None
    allow_rewind: bool = False
    timeout_s: float = 30.0
    ssh_key_file: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None

    def access(self) -> GitAccess:
        """How git reaches it."""
        return GitAccess(
            self.timeout_s, self.ssh_key_file, self.token_file, self.ca_file, MAX_PACK_BYTES
        )


class PolicySync:
    """Follows one branch or tag. ``facts`` answers what decisions rest on now, ``placed`` which
    sessions have blocks where; ``now`` in seconds since 1970, ``clock`` measures the effort of
    conditions."""

    def __init__(
        self,
        folder: PolicyFolder,
        settings: SyncSettings,
        facts: Callable[[], InstanceFacts],
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
        placed: Callable[[], Iterable[HeldSession]] | None = None,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._facts = facts
        self._now = now
        self._clock = clock
        self._placed = placed
        self._trial: _Trial | None = None

    def run(self) -> SyncOutcome:
        """Look at the repository once; what came of it is also put on record in the folder.

        Of two processes one waits for the other. Raises PolicyBusyError where that takes too long,
        PolicyError where the folder cannot be used.
        """
        with self._folder.alone(2 * self._settings.timeout_s + _WAIT_S):
            return self._look()

    def _look(self) -> SyncOutcome:
        active = self._folder.active()
        commit = ""
        try:
            git = Git.open(self._folder.repository, self._settings.access())
            commit = self._fetch(git)
            if active is not None and commit == active.origin.revision:
                return self._done(Outcome.UNCHANGED, commit, confirmed=True)
            origin = self._origin(git, commit, active)
            files = read_commit(git, commit, self._settings.path)
            revision = parse_revision(files, commit, self._clock)
            table, note = check_revision(revision, self._facts(), self._folder, self._clock)
            note += self._try_on_placed(commit, table, active)
        except PolicyRejectedError as error:
            _tidy(git)
            return self._rejected(commit, [str(problem) for problem in error.problems])
        except (GitError, PolicyError) as error:
            too_large = _remove_half_packs(self._folder.repository)
            if commit:
                return self._rejected(commit, [error.message])
            problem = _one_line(error)
            if too_large:
                text = f"more than {MAX_PACK_BYTES} bytes come with it: a file that is too large?"
                problem = str(_about(self._settings, text))
            return self._done(Outcome.UNREACHABLE, "", problems=(problem,))
        git.update(KEPT_REF, commit, git.resolve(KEPT_REF))
        # A revision that was in force stays, also when a later one does not build on it.
        kept = f"{_KEPT_REVISIONS}{commit}"
        git.update(kept, commit, git.resolve(kept))
        _tidy(git)
        self._folder.activate(
            ActivePolicy(
                origin=origin,
                activated_at=self._now(),
                files={path: data.decode("utf-8") for path, data in files.items()},
            )
        )
        return self._done(Outcome.ACTIVATED, commit, confirmed=True, note=note)

    def _fetch(self, git: Git) -> str:
        for full in (f"refs/heads/{self._settings.ref}", f"refs/tags/{self._settings.ref}"):
            found = git.fetch(self._settings.repository, full)
            if found is not None:
                commit = git.resolve(found)
                if commit is None:
                    raise GitError(f"{self._settings.ref} is no commit")
                return commit
        raise GitError(f"the repository has no branch or tag {self._settings.ref!r}")

    def _origin(self, git: Git, commit: str, active: ActivePolicy | None) -> Origin:
        settings = self._settings
        # Of another repository, or another branch of it, nothing follows anything.
        followed = active is not None and (active.origin.repository, active.origin.ref) == (
            settings.repository,
            settings.ref,
        )
        if (
            followed
            and active is not None
            and not settings.allow_rewind
            and not git.is_ancestor(active.origin.revision, commit)
        ):
            raise PolicyRejectedError(
                [_about(settings, f"{commit} does not follow {active.origin.revision}: it was "
                        "rewritten (a forced push)")],
                hint="residency.allow_rewind takes it all the same.",
            )  # fmt: skip
        signed = git.signature(commit, settings.allowed_signers)
        if settings.require_signed and not signed.signer:
            raise PolicyRejectedError([_about(settings, f"{commit} {signed.problem}")])
        return Origin(
            revision=commit,
            repository=settings.repository,
            ref=settings.ref,
            author=signed.author,
            subject=signed.subject,
            committed_at=signed.committed_at,
            signed_by=signed.signer,
        )

    def _try_on_placed(self, commit: str, table: PolicyTable, active: ActivePolicy | None) -> str:
        """How many blocks have to leave which tier, for the note; counted once a commit.

        Raises PolicyRejectedError where that cannot be said, unless the commit only takes away.
        """
        if self._placed is None:
            return ""
        trial, now = self._trial, self._now()
        if trial is None or trial.commit != commit or now >= trial.again_at:
            trial = self._trial = _try(commit, table, self._placed, now)
        if trial.failed and not is_stricter(self._in_force(active), table):
            text = (
                f"it cannot be tried on what is placed now ({trial.said}): until then only what"
                " takes something away and gives nothing is taken"
            )
            raise PolicyRejectedError([_about(self._settings, text)])
        return f"; blocks that have to leave: {trial.said}"

    def _in_force(self, active: ActivePolicy | None) -> PolicyTable:
        """What decides now about the tenants that are known."""
        facts, tenants = self._facts(), self._folder.tenants()
        if active is not None:
            with contextlib.suppress(PolicyError):  # then it decides nothing in a daemon either
                revision = revision_of(active, self._clock)
                return CompiledRevision(revision, facts, self._clock).table(tenants)
        return closed_table(facts, tenants)

    def _rejected(self, commit: str, problems: list[str]) -> SyncOutcome:
        return self._done(Outcome.REJECTED, commit, problems=tuple(problems[:20]))

    def _done(
        self,
        outcome: Outcome,
        commit: str,
        *,
        problems: tuple[str, ...] = (),
        note: str = "",
        confirmed: bool = False,
    ) -> SyncOutcome:
        result = SyncOutcome(
            at=self._now(), outcome=outcome.value, revision=commit, problems=problems, note=note
        )
        self._folder.note(result, confirmed=confirmed)
        return result


def read_commit(git: Git, commit: str, folder: str) -> dict[str, bytes]:
    """The policy files of a commit, by path. Raises PolicyRejectedError before reading too much."""
    entries = [entry for entry in git.tree(commit, folder) if entry.path.endswith(_SUFFIXES)]
    problems = [
        Problem(entry.path, 1, 1, problem) for entry in entries if (problem := _wrong(entry))
    ]
    if not entries:
        problems.append(Problem(folder, 1, 1, f"the commit has no {' or '.join(_SUFFIXES)} here"))
    total = sum(entry.size_bytes for entry in entries)
    if not problems and (len(entries) > MAX_FILES or total > MAX_TOTAL_BYTES):
        text = f"{len(entries)} files, {total} bytes; {MAX_FILES} and {MAX_TOTAL_BYTES} are allowed"
        problems.append(Problem(folder, 1, 1, text))
    if problems:
        raise PolicyRejectedError(problems)
    contents = git.blobs([entry.blob for entry in entries])
    return {entry.path: data for entry, data in zip(entries, contents, strict=True)}


def read_folder(folder: Path) -> dict[str, bytes]:
    """The policy files below a folder that somebody works in, by path within it.

    Raises PolicyError, or PolicyRejectedError for a file that is too large.
    """
    if folder.is_file():
        paths, root = [folder], folder.parent
    elif folder.is_dir():
        paths = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES)
        root = folder
    else:
        raise PolicyError(f"{folder} does not exist", hint="Name a folder or a file of policies.")
    if not paths:
        raise PolicyError(f"{folder} holds no {' or '.join(_SUFFIXES)}")
    if len(paths) > MAX_FILES:
        raise PolicyError(f"{folder} holds {len(paths)} files; {MAX_FILES} are allowed")
    files: dict[str, bytes] = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                files[str(path.relative_to(root))] = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise PolicyError(f"{path} cannot be read: {error.strerror}") from None
    return files


def check_revision(
    revision: Revision,
    facts: InstanceFacts,
    folder: PolicyFolder,
    clock: Callable[[], float],
) -> tuple[PolicyTable, str]:
    """Run the inline tests and compile for the instance and its tenants; a line about that.

    Raises PolicyRejectedError, and PolicyError where it cannot be said who the tenants are.
    """
    run = run_tests(revision, clock)
    if run.failures:
        raise PolicyRejectedError(run.failures)
    tenants = folder.tenants()
    table = CompiledRevision(revision, facts, clock).table(tenants)
    away = sum(not row[0].allowed for row in table.rows.values())
    note = (
        f"{len(revision.rules)} policies, {run.passed} tests, {len(tenants)} tenants,"
        f" {away} of them not to be served here"
    )
    return table, note


def revision_of(active: ActivePolicy, clock: Callable[[], float]) -> Revision:
    """The active revision, parsed again. Raises PolicyRejectedError."""
    files: Mapping[str, bytes] = {path: text.encode() for path, text in active.files.items()}
    return parse_revision(files, active.origin.revision, clock)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What came of trying a commit on what is placed, and until when that counts."""

    commit: str
    said: str
    failed: bool = False
    again_at: float = float("inf")


def _try(
    commit: str, table: PolicyTable, placed: Callable[[], Iterable[HeldSession]], now: float
) -> _Trial:
    """No fault in it may keep a stricter revision from coming into force: nothing is raised."""
    try:
        leaving = would_leave(table, placed())
    except Exception as error:
        why = _one_line(error) if isinstance(error, KvrunError) else type(error).__name__
        return _Trial(commit, f"unknown: {why}", failed=True, again_at=now + _TRY_AGAIN_S)
    by_tier = [f"{blocks} from {tier}" for tier, blocks in sorted(leaving.items())]
    return _Trial(commit, ", ".join(by_tier) or "none")


def _tidy(git: Git) -> None:
    """Let git put packs together and remove what no kept commit needs; another time, where that
    takes too long."""
    with contextlib.suppress(GitError):
        git.tidy()


def _remove_half_packs(repository: Path) -> bool:
    """What git leaves of a pack that was too large, or came too slowly; whether it was the size."""
    found = list((repository / "objects").rglob("tmp_*"))
    too_large = any(path.stat().st_size >= MAX_PACK_BYTES for path in found)
    for path in found:
        path.unlink(missing_ok=True)
    return too_large


def _wrong(entry: TreeEntry) -> str:
    if not entry.mode.startswith("100"):
        return "links and submodules are not read"
    if entry.size_bytes > MAX_FILE_BYTES:
        return f"{entry.size_bytes} bytes; a file may have {MAX_FILE_BYTES}"
    return ""


def _about(settings: SyncSettings, text: str) -> Problem:
    return Problem(settings.ref, 1, 1, text)


def _one_line(error: KvrunError) -> str:
    return " ".join(error.message.split())[:300]
