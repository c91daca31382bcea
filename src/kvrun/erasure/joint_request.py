"""The durable request to erase in several deployments, until all of it is handed out.

It keeps a random seed from which the ids and the salts of all its erasures follow. Asked again
after a crash it therefore finds what was done instead of doing it twice, and every opening can be
made again. No id is in the file; but who has it can test guesses against the certificates, so it
is removed once the openings are out.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from kvrun.durable import replace_private_file, sync_folder
from kvrun.erasure.certificate import ChildEntry, RequestKind
from kvrun.erasure.commitment import SALT_BYTES, ErasedSubject, make_opening
from kvrun.erasure.errors import ErasureError
from kvrun.erasure.job import ID_BYTES
from kvrun.filelock import FileTakenError, hold_file

_MAX_BYTES = 16 << 20
_SUFFIX = ".request"


class JointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. ``id`` is the parent certificate's, ``seed`` 32 random bytes in hex, ``whose``
    tells that the same is asked about again, ``requested_at`` in seconds since 1970. ``agreed`` is
    the digest of the plan to which a second person agreed.

    ``workspace`` is where it was asked; ``workspaces`` what the configurations of deployments call
    theirs, under the name "" that of the parent's home. ``children`` are the certificates so far;
    once ``certifying`` they are what the parent lists.
    """

    id: str
    seed: str
    whose: str
    workspace: str
    requester: str
    reference: str
    legal_basis: str
    requested_at: float
    workspaces: dict[str, str] = {}
    children: list[ChildEntry] = []
    certifying: bool = False
    kind: RequestKind = RequestKind.USER
    agreed: str = ""

    def erasure_id(self, deployment: str, attempt: int) -> str:
        """The id of an erasure in one deployment; ``attempt`` counts them from 0."""
        return _derive(self.seed, f"erasure {attempt} {deployment}")[:ID_BYTES].hex()

    def salt(self, certificate_id: str) -> bytes:
        """The salt of that certificate's opening."""
        return _derive(self.seed, f"salt {certificate_id}")[:SALT_BYTES]

    def opening(self, subject: ErasedSubject, certificate_id: str) -> bytes:
        """The opening of the parent, or of a deployment's own certificate."""
        return make_opening(subject, self.salt(certificate_id))

    def is_about(self, kind: RequestKind, workspace: str, subject: str, reference: str) -> bool:
        """Whether this is the request that is asked again."""
        if (self.kind, self.workspace, self.reference) != (kind, workspace, reference):
            return False
        return hmac.compare_digest(self.whose, _derive(self.seed, f"{kind} {subject}").hex())

    def with_children(self, deployment: str, children: Iterable[ChildEntry]) -> JointRequest:
        """With these certificates of a deployment in place of those that it had."""
        others = [child for child in self.children if child.deployment != deployment]
        return msgspec.structs.replace(self, children=[*others, *children])


def new_request(
    kind: RequestKind,
    workspace: str,
    subject: str,
    reference: str,
    *,
    requester: str,
    legal_basis: str,
    now: float,
    random_bytes: Callable[[int], bytes],
) -> JointRequest:
    """A request that nobody asked before, about ``subject``: a user's id, a label, a name.

    ``now`` in seconds since 1970.
    """
    seed = random_bytes(32).hex()
    return JointRequest(
        id=random_bytes(ID_BYTES).hex(),
        seed=seed,
        whose=_derive(seed, f"{kind} {subject}").hex(),
        workspace=workspace,
        requester=requester,
        reference=reference,
        legal_basis=legal_basis,
        requested_at=now,
        kind=kind,
    )


class JointRequestStore:
    """The open requests in ``folder`` (0700, made at the first one)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the one process that works on them. Raises ErasureError while another one does."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = hold_file(self._folder / "lock", str(os.getpid()))
        except FileTakenError as error:
            raise ErasureError(
                f"process {error.holder or '?'} erases in several deployments from {self._folder}",
                hint="Wait until it has ended, then ask again.",
            ) from None
        except OSError as error:
            raise ErasureError(f"{self._folder} cannot be used: {error.strerror}") from None
        try:
            yield
        finally:
            os.close(held)

    def all(self) -> list[JointRequest]:
        """Every open request, oldest first. Raises ErasureError for a damaged file."""
        paths = self._folder.glob(f"*{_SUFFIX}") if self._folder.is_dir() else []
        return sorted(map(self._load, paths), key=lambda found: (found.requested_at, found.id))

    def find(
        self, kind: RequestKind, workspace: str, subject: str, reference: str
    ) -> JointRequest | None:
        """The open request about that subject with that reference. Raises ErasureError."""
        asked = (kind, workspace, subject, reference)
        return next((item for item in self.all() if item.is_about(*asked)), None)

    def save(self, request: JointRequest) -> None:
        """Write it durably in place of what was there. Raises ErasureError."""
        path = self._folder / f"{request.id}{_SUFFIX}"
        try:
            replace_private_file(path, msgspec.json.encode(request) + b"\n")
        except OSError as error:
            raise ErasureError(
                f"the request {path} cannot be written: {error.strerror}",
                hint="free some space and ask again",
            ) from error

    def remove(self, request: JointRequest) -> None:
        """Everything of it was handed out, or nothing of it was begun."""
        (self._folder / f"{request.id}{_SUFFIX}").unlink(missing_ok=True)
        sync_folder(self._folder)

    def _load(self, path: Path) -> JointRequest:
        try:
            with path.open("rb") as file:
                found = msgspec.json.decode(file.read(_MAX_BYTES), type=JointRequest)
            if len(bytes.fromhex(found.seed)) != 32 or path.stem != found.id:
                raise ValueError("its seed or its name is wrong")
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise ErasureError(
                f"the open request {path} cannot be read: {error}",
                hint="What it was about may not be certified. Remove the file, then ask again.",
            ) from None
        return found


def _derive(seed: str, what: str) -> bytes:
    message = b"kvrun/user-erasure/v1\0" + what.encode()
    return hmac.digest(bytes.fromhex(seed), message, sha256)
