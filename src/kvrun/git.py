"""Running ``git`` on one repository: no user configuration, no hooks, no prompt, a deadline."""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kvrun.errors import KvrunError

_AUTHOR = {"NAME": "kvrun", "EMAIL": "kvrun@localhost"}
_ABSENT = 2
_MAX_TREE_FILES = 100_000


class GitError(KvrunError):
    """A git command failed, or took too long."""


@dataclass(frozen=True, slots=True)
class GitAccess:
    """How to reach a remote. ``timeout_s`` is for one whole use of the repository.

    ``max_pack_bytes`` bounds every file that git writes and all that it says, and so what a remote
    can send; 0 is no bound.
    """

    timeout_s: float
    ssh_key_file: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    max_pack_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file of a commit. ``mode`` is 100644, 100755, 120000 (a link) or 160000 (a submodule)."""

    mode: str
    blob: str
    size_bytes: int
    path: str


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """A commit's author and subject, cut and printable; ``problem`` says why it has no signer."""

    author: str
    subject: str
    committed_at: float
    signer: str
    problem: str


class Git:
    """One repository for the length of one use; the deadline runs from its opening."""

    def __init__(self, git_dir: Path, access: GitAccess) -> None:
        self._git_dir = git_dir
        self._deadline = time.monotonic() + access.timeout_s
        self._timeout_s = access.timeout_s
        self._max_pack_bytes = access.max_pack_bytes
        self._environment = _environment(git_dir, access)
        self.is_bare = git_dir.name != ".git"

    @classmethod
    def open(cls, repository: Path, access: GitAccess, *, make: bool = True) -> Git:
        """The repository in a folder, bare or with a work tree; made, bare, where none is."""
        for git_dir in (repository / ".git", repository):
            if (git_dir / "HEAD").is_file():
                return cls(git_dir, access)
        if not make or (repository.exists() and any(repository.iterdir())):
            raise GitError(f"{repository} is no Git repository")
        try:
            repository.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise GitError(f"{repository} cannot be made: {error.strerror}") from None
        git = cls(repository, access)
        git.run("init", "--quiet", "--bare", "--template=")
        return git

    def resolve(self, ref: str) -> str | None:
        """The commit of a ref, or None."""
        found = self.run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", absent=1)
        return found.decode().strip() or None

    def head(self) -> str:
        """The branch that is checked out, as a full ref; empty when detached."""
        return self.run("symbolic-ref", "--quiet", "HEAD", absent=1).decode().strip()

    def blob(self, commit: str, path: str, max_bytes: int) -> bytes | None:
        """A file of a commit, or None. Raises GitError for one that is too large."""
        listed = self.run("ls-tree", "-l", "-z", commit, "--", path).decode()
        if not listed:
            return None
        mode, kind, name, size = listed.split("\t")[0].split()
        if kind != "blob" or not mode.startswith("100") or int(size) > max_bytes:
            raise GitError(f"{path} is no file of at most {max_bytes} bytes")
        return self.run("cat-file", "blob", name)

    def tree(self, commit: str, folder: str) -> list[TreeEntry]:
        """Every file below a folder of a commit, without reading any. GitError for too many."""
        entries = []
        listed = self.run("ls-tree", "-r", "-l", "-z", commit, "--", f"{folder}/")
        if listed.count(b"\0") > _MAX_TREE_FILES:
            raise GitError(f"{folder} has more than {_MAX_TREE_FILES} files")
        for line in listed.decode("utf-8", "replace").split("\0"):
            head, _, path = line.partition("\t")
            if path:
                mode, _, blob, size = head.split()
                entries.append(TreeEntry(mode, blob, int(size) if size.isdigit() else 0, path))
        return entries

    def blobs(self, names: Sequence[str]) -> list[bytes]:
        """The contents of blobs, in order."""
        asked = "".join(f"{name}\n" for name in names).encode()
        output = self.run("cat-file", "--batch", input_bytes=asked)
        contents, position = [], 0
        for _ in names:
            end = output.index(b"\n", position)
            size = int(output[position:end].split()[-1])
            contents.append(output[end + 1 : end + 1 + size])
            position = end + size + 2
        return contents

    def commit(self, parent: str | None, path: str, content: bytes, message: str) -> str:
        """A new commit: the parent's tree with ``content`` at ``path``. No ref is changed."""
        blob = self.run("hash-object", "-w", "--stdin", input_bytes=content).decode().strip()
        with tempfile.TemporaryDirectory(prefix="kvrun-git-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            if parent is not None:
                self.run("read-tree", parent, environment=index)
            entry = f"100644,{blob},{path}"
            self.run("update-index", "--add", "--cacheinfo", entry, environment=index)
            tree = self.run("write-tree", environment=index).decode().strip()
        parents = () if parent is None else ("-p", parent)
        made = self.run("commit-tree", tree, *parents, input_bytes=message.encode())
        return made.decode().strip()

    def update(self, ref: str, commit: str, old: str | None) -> None:
        """Move a ref from ``old`` (None: it must not exist). GitError if it is elsewhere."""
        self.run("update-ref", ref, commit, old or "0" * len(commit))

    def is_ancestor(self, ancestor: str, commit: str) -> bool:
        """Whether ``commit`` builds on ``ancestor``."""
        # Of an object that is not here, "no" is the right answer too.
        return self._finish(("merge-base", "--is-ancestor", ancestor, commit))[0] == 0

    def fetch(self, remote: str, branch: str) -> str | None:
        """Bring a remote's branch here; its commit, or None when it has no such branch."""
        listed = self.run("ls-remote", "--exit-code", "--", remote, branch, absent=_ABSENT)
        for line in listed.decode("utf-8", "replace").splitlines():
            commit, _, name = line.partition("\t")
            if name == branch:
                self.run(
                    "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", remote, branch
                )
                return commit
        return None

    def push(self, remote: str, commit: str, branch: str) -> None:
        """Move a remote's branch forward to ``commit``; GitError if that is no step forward."""
        self.run("push", "--quiet", "--no-verify", "--", remote, f"{commit}:{branch}")

    def versions(self, tip: str, folder: str, max_bytes: int) -> Iterator[tuple[str, int, bytes]]:
        """Commit, commit time and content of every file version below ``folder``.

        Newest first; files above ``max_bytes`` are passed over.
        """
        listed = self.run(
            "log", "--format=%x00%H %ct", "--name-only", "--no-renames", tip, "--", f"{folder}/"
        )
        found: list[tuple[str, int, str]] = []
        for entry in listed.decode("utf-8", "replace").split("\0")[1:]:
            head, *paths = [line for line in entry.splitlines() if line]
            commit, seconds = head.split()
            found += [(commit, int(seconds), f"{commit}:{path}") for path in paths]
        names = "".join(f"{name}\n" for _, _, name in found).encode()
        sizes = self.run("cat-file", "--batch-check", input_bytes=names).splitlines()
        kept = [item for item, line in zip(found, sizes, strict=True) if _fits(line, max_bytes)]
        names = "".join(f"{name}\n" for _, _, name in kept).encode()
        output, position = self.run("cat-file", "--batch", input_bytes=names), 0
        for commit, seconds_since, _ in kept:
            end = output.index(b"\n", position)
            size = int(output[position:end].split()[-1])
            yield commit, seconds_since, output[end + 1 : end + 1 + size]
            position = end + size + 2

    def signature(self, commit: str, allowed_signers: Path | None) -> CommitInfo:
        """Who made a commit, and which of the allowed SSH keys signed it."""
        signers = str(allowed_signers) if allowed_signers is not None else os.devnull
        if allowed_signers is not None and not allowed_signers.is_file():
            raise GitError(f"the file of allowed signers {allowed_signers} cannot be read")
        shown = self.run(
            *("-c", "gpg.format=ssh", "-c", f"gpg.ssh.allowedSignersFile={signers}"),
            # Signatures of other kinds count as none: their programs are not run.
            *("-c", "gpg.program=false", "-c", "gpg.x509.program=false"),
            *("log", "-1", "--format=%G?%x00%GS%x00%an <%ae>%x00%ct%x00%s", commit),
        )
        verdict, signer, author, seconds, subject = (
            shown.decode("utf-8", "replace").rstrip("\n").split("\0")
        )
        return CommitInfo(
            author=_plain(author),
            subject=_plain(subject),
            committed_at=float(seconds),
            signer=_plain(signer) if verdict == "G" else "",
            problem=_SIGNATURES.get(verdict, "has a signature that cannot be checked"),
        )

    def tidy(self) -> None:
        """Let git pack loose objects when there are many."""
        self.run("gc", "--auto", "--quiet")

    def run(
        self,
        *arguments: str,
        input_bytes: bytes = b"",
        environment: Mapping[str, str] | None = None,
        absent: int | None = None,
    ) -> bytes:
        """The output of a command; empty where it ends with status ``absent``. Raises GitError."""
        status, output, problem = self._finish(arguments, input_bytes, environment or {})
        if status == 0:
            return output
        if status == absent:
            return b""
        lines = problem.decode("utf-8", "replace").strip().splitlines() or [f"status {status}"]
        shown = "; ".join(lines)[:300]
        verb = next(
            (word for word in arguments if not word.startswith("-") and "=" not in word), ""
        )
        raise GitError(f"git {verb} failed: {ascii(shown)[1:-1]}")

    def _finish(
        self,
        arguments: tuple[str, ...],
        input_bytes: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes, bytes]:
        command = ["git", *_OPTIONS, *(_ONE_FILE if self._max_pack_bytes else ()), *arguments]
        with _in_memory("output") as output, _in_memory("problem") as problem:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=problem,
                    env={**self._environment, **(environment or {})},
                    start_new_session=True,
                )
            except OSError as error:
                raise GitError(
                    f"git cannot be started: {error.strerror}", hint="Install git."
                ) from None
            status = self._wait(process, input_bytes)
            for file in (output, problem):
                file.seek(0)
            return status, output.read(), problem.read()

    def _wait(self, process: subprocess.Popen[bytes], input_bytes: bytes) -> int:
        if self._max_pack_bytes:
            # Inherited by what git starts to receive a pack, which it does after a first answer.
            # What it says is bounded too: a small tree can list the same files without an end.
            limit = (self._max_pack_bytes, self._max_pack_bytes)
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limit)
                resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        with process:
            try:
                left = max(0.1, self._deadline - time.monotonic())
                process.communicate(input_bytes, timeout=left)
            except subprocess.TimeoutExpired:
                # Helpers of git (ssh, git-remote-https) hold the pipes: end all of them.
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise GitError(f"git did not finish within {self._timeout_s:g} s") from None
        return process.returncode


def _in_memory(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(f"kvrun-git-{name}"), "w+b")


def _fits(line: bytes, max_bytes: int) -> bool:
    """Whether a line of ``cat-file --batch-check`` is of a file that is small enough."""
    fields = line.split()
    return len(fields) == 3 and fields[1] == b"blob" and int(fields[2]) <= max_bytes


def _plain(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:200]


_SIGNATURES = {
    "G": "",
    "N": "is not signed",
    "B": "has a bad signature",
    "U": "is signed by a key that is not among the allowed signers",
    "X": "has a signature that has expired",
    "Y": "is signed by a key that has expired",
    "R": "is signed by a key that was revoked",
}
_OPTIONS = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.quotePath=false",
    "-c",
    "commit.gpgSign=false",
    "-c",
    "protocol.allow=never",
    "-c",
    "protocol.https.allow=always",
    "-c",
    "protocol.http.allow=always",
    "-c",
    "protocol.ssh.allow=always",
    "-c",
    "protocol.file.allow=always",
    "-c",
    "transfer.fsckObjects=true",
    "-c",
    "http.followRedirects=false",
)


# What is received stays the one file that the bound on files is for.
_ONE_FILE = ("-c", "fetch.unpackLimit=1", "-c", "transfer.unpackLimit=1")


def _environment(git_dir: Path, access: GitAccess) -> dict[str, str]:
    """All that git sees of this process's environment, and what replaces the user's settings."""
    kept = ("PATH", "HOME", "SSH_AUTH_SOCK", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
    result = {name: os.environ[name] for name in kept if name in os.environ}
    result |= {
        "GIT_DIR": str(git_dir),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_SSH_VARIANT": "ssh",
        "LC_ALL": "C",
    }
    for role in ("AUTHOR", "COMMITTER"):
        result |= {f"GIT_{role}_{name}": value for name, value in _AUTHOR.items()}
    result["GIT_SSH_COMMAND"] = "ssh -o BatchMode=yes"
    if access.ssh_key_file is not None:
        quoted = str(access.ssh_key_file).replace("'", "'\\''")
        result["GIT_SSH_COMMAND"] += f" -o IdentitiesOnly=yes -i '{quoted}'"
    if access.ca_file is not None:
        result["GIT_SSL_CAINFO"] = str(access.ca_file)
    if access.token_file is not None:
        # Through the environment: arguments are readable for every user of the machine.
        result |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "http.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {_basic(access.token_file)}",
        }
    return result


def _basic(token_file: Path) -> str:
    try:
        token = token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise GitError(f"the token file {token_file} cannot be read: {error}") from None
    return base64.b64encode(f"x-access-token:{token}".encode()).decode()
