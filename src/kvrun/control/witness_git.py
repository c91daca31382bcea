"""A Git repository as a witness: every checkpoint is a commit, and history is not rewritten.

The repository is driven by ``git`` itself, without the user's configuration and without hooks.
Only objects and one branch are touched, never a work tree. Where a remote is set, what the remote
holds is what counts, and a checkpoint is taken only once it has been pushed.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvrun.audit.checkpoint import Checkpoint, parse_checkpoint
from kvrun.audit.errors import NoteFormatError
from kvrun.audit.merkle import verify_consistency
from kvrun.audit.note import MAX_NOTE_BYTES, parse_note
from kvrun.control.remembered import log_folder
from kvrun.control.witness_errors import (
    WitnessOutOfStepError,
    WitnessRefusedError,
    WitnessUnavailableError,
)
from kvrun.git import Git, GitAccess, GitError

FOLDER = "checkpoints"
NAME = "checkpoint"
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint's note in a repository, and the commit time (the committer's, in seconds)."""

    note: bytes
    time: int
    commit: str


class GitWitness:
    """The branch ``branch`` of ``repository`` (made, bare, where there is none) and its remote."""

    def __init__(
        self, repository: Path, *, branch: str, remote: str | None, access: GitAccess
    ) -> None:
        self._repository = repository
        self._remote = remote
        self._access = access
        self._branch = f"refs/heads/{branch}"
        # What the remote had last: a remote that went back behind it has forgotten.
        self._seen = f"refs/kvrun/remote/{branch}"

    @property
    def name(self) -> str:
        """``git`` and where the repository is."""
        return f"git {self._remote or self._repository}"

    def add_checkpoint(self, old_size: int, proof: Sequence[bytes], note: bytes) -> bytes:
        """See :class:`kvrun.control.witness.Witness`; the evidence is the commit."""
        checkpoint = parse_checkpoint(parse_note(note).text)
        try:
            git = Git.open(self._repository, self._access)
            self._refuse_checked_out(git)
            for _ in range(_ATTEMPTS - 1):
                tip = self._tip(git)
                try:
                    self._add(git, tip, checkpoint, old_size, proof, note)
                    break
                except GitError:
                    if self._tip(git) == tip:
                        raise
                    # Somebody else committed in between: look again at what is there now.
            else:
                self._add(git, self._tip(git), checkpoint, old_size, proof, note)
            with contextlib.suppress(GitError):
                git.tidy()
        except GitError as error:
            raise WitnessUnavailableError(
                f"{self.name}: {error.message}", hint=error.hint
            ) from None
        return b""

    def _refuse_checked_out(self, git: Git) -> None:
        if not git.is_bare and git.head() == self._branch:
            raise WitnessUnavailableError(
                f"{self.name}: the branch {self._branch[11:]} is checked out there",
                hint="Name a branch of its own in witness.git_branch.",
            )

    def _tip(self, git: Git) -> str | None:
        """The commit to build on: the remote's where there is one, else the branch's."""
        if self._remote is None:
            return git.resolve(self._branch)
        seen = git.resolve(self._seen)
        tip = git.fetch(self._remote, self._branch)
        if seen is not None and (tip is None or not git.is_ancestor(seen, tip)):
            raise WitnessUnavailableError(
                f"{self.name}: history was rewritten or deleted there; it held {seen}",
                hint=f"Find out who did it. git update-ref -d {self._seen} in {self._repository} "
                "accepts what is there now.",
            )
        if tip is not None:
            git.update(self._seen, tip, seen)
        return tip

    def _add(
        self,
        git: Git,
        tip: str | None,
        checkpoint: Checkpoint,
        old_size: int,
        proof: Sequence[bytes],
        note: bytes,
    ) -> None:
        path = note_path(checkpoint.origin)
        earlier = git.blob(tip, path, MAX_NOTE_BYTES) if tip else None
        if earlier is not None and self._compare(earlier, checkpoint, old_size, proof):
            return
        message = f"checkpoint: {checkpoint.size} records of {checkpoint.origin}\n"
        commit = git.commit(tip, path, note, message)
        if self._remote is None:
            git.update(self._branch, commit, tip)
            return
        git.push(self._remote, commit, self._branch)
        git.update(self._seen, commit, tip)
        git.update(self._branch, commit, git.resolve(self._branch))

    def _compare(
        self, earlier: bytes, checkpoint: Checkpoint, old_size: int, proof: Sequence[bytes]
    ) -> bool:
        """Whether the repository holds this very tree; refuse one that does not continue it."""
        try:
            known = parse_checkpoint(parse_note(earlier).text)
        except NoteFormatError as error:
            raise WitnessUnavailableError(
                f"{self.name}: what it holds is no checkpoint: {error.message}"
            ) from None
        origin, size = checkpoint.origin, checkpoint.size
        if known.origin != origin:
            raise WitnessUnavailableError(f"{self.name}: it holds a checkpoint of another log")
        if known.size > size:
            raise WitnessRefusedError(
                f"{self.name} holds a checkpoint of {known.size} records of {origin}, and this one "
                f"covers {size}: the log may have been rolled back",
                evidence=earlier,
            )
        if known.size == size:
            if known.root == checkpoint.root:
                return True
        elif known.size != old_size:
            raise WitnessOutOfStepError(
                f"{self.name} holds {known.size} records, not {old_size}", known.size
            )
        elif verify_consistency(old_size, size, known.root, checkpoint.root, proof):
            return False
        raise WitnessRefusedError(
            f"{self.name} holds a checkpoint of {known.size} records of {origin} that is no "
            f"part of this one of {size}: the log may have been forked",
            evidence=earlier,
        )


def note_path(origin: str) -> str:
    """Where a log's checkpoint is in a repository."""
    return f"{FOLDER}/{log_folder(origin)}/{NAME}"


def committed_notes(repository: Path, branch: str, access: GitAccess) -> Iterator[Committed]:
    """Every note on a branch of a local repository, all logs, newest first. For verifiers.

    Raises WitnessUnavailableError where the repository or the branch cannot be read.
    """
    try:
        git = Git.open(repository, access, make=False)
        tip = git.resolve(f"refs/heads/{branch}")
        if tip is None:
            raise WitnessUnavailableError(f"{repository} has no branch {branch}")
        for commit, time, note in git.versions(tip, FOLDER, MAX_NOTE_BYTES):
            yield Committed(note, time, commit)
    except GitError as error:
        raise WitnessUnavailableError(f"{repository}: {error.message}") from None
