"""A system that keeps keys for us and gives none away: what :class:`KeptRoot` asks of it.

The keeper makes a key for each epoch, encrypts and decrypts 32 bytes under it, and destroys it.
The keys are named by rising numbers (``ref``). Implementations: ``openbao``, ``pkcs11_token``,
``aws_kms``. Not thread-safe; the root calls one at a time.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from kvrun.keys.filesystem import ClaimClass


@dataclass(frozen=True, slots=True)
class KeeperFacts:
    """What a keeper is. ``name`` says in errors and evidence which key of which system it uses."""

    kind: str
    name: str
    destroys: bool
    """False where single keys cannot be destroyed: then the wrapped copy on disk is what dies."""
    claim: ClaimClass
    """What a key that it destroyed may be said to be; without meaning where it destroys none."""
    reason: str


class Keeper(Protocol):
    """Errors: RootUnavailableError when it cannot be asked, RootRevokedError when it refuses."""

    @property
    def facts(self) -> KeeperFacts:
        """What it is; known once it is connected."""

    def greet(self) -> None:
        """Ask whether it answers and lets us in; changes nothing, for reports on a set-up."""
        ...

    def bind(self, root_id: bytes, *, fresh: bool) -> None:
        """Before anything else: whose keys these are. ``fresh``: this root has none yet.

        Raises RootError when the place is used by someone else, or is set up so that keys could
        leave it.
        """
        ...

    def new_key(self, after: int) -> int:
        """Make a key; its number is larger than ``after``, and than that of any key before it."""
        ...

    def live(self, refs: Collection[int]) -> set[int]:
        """Those of ``refs`` whose keys still open what they closed."""
        ...

    def encrypt(self, ref: int, context: bytes, secret: memoryview) -> bytes:
        """Encrypt 32 bytes, bound to ``context``; at most 430 bytes come back."""
        ...

    def decrypt_into(self, ref: int, context: bytes, wrapped: bytes, out: memoryview) -> None:
        """Open what ``encrypt`` made. WrapError when it does not open; EpochGoneError when the key
        is no longer there."""
        ...

    def destroy(self, ref: int) -> str:
        """Destroy a key (and with it any older one); doing it again is allowed.

        Returns what was done, in words. A newer key must exist.
        """
        ...

    def renew(self) -> None:
        """Let go of what was granted once and still holds: the next call is granted anew."""
        ...

    def close(self) -> None:
        """End sessions and connections; nothing is destroyed."""
        ...
