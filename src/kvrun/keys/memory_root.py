"""A root only in locked memory: the strongest claim, and a cold cache after a restart."""

from kvrun.keys.entropy import RandomInto, getrandom
from kvrun.keys.errors import EpochGoneError, RootError
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.locked import Secret, SecretArena
from kvrun.keys.root import EpochEvidence, RootFacts, check_next_epoch
from kvrun.keys.wrap import KeyWrapper


class MemoryRoot:
    """Everything that was wrapped under it is unreadable once the process ends."""

    def __init__(self, *, strict: bool = False, random_into: RandomInto = getrandom) -> None:
        self._random_into = random_into
        self._arena = SecretArena(strict=strict)
        self._key = self._arena.take()
        random_into(self._key.view)
        root_id = bytearray(16)
        random_into(memoryview(root_id))
        self._epochs: dict[int, Secret] = {}
        self._facts = RootFacts(
            kind="memory",
            root_id=bytes(root_id),
            persistent=False,
            claim=ClaimClass.CRYPTOGRAPHIC,
            reason=f"keys only in memory ({self._arena.protection.value})",
        )

    @property
    def facts(self) -> RootFacts:
        """What this root is."""
        return self._facts

    def wrap(self, context: bytes, secret: memoryview) -> bytes:
        """See :meth:`Root.wrap`."""
        return self._wrapper().wrap(context, secret)

    def unwrap_into(self, context: bytes, wrapped: bytes, out: memoryview) -> None:
        """See :meth:`Root.unwrap_into`."""
        self._wrapper().unwrap_into(context, wrapped, out)

    def epochs(self) -> tuple[int, ...]:
        """Numbers of the live epoch keys in rising order."""
        return tuple(sorted(self._epochs))

    def create_epoch(self, epoch: int) -> None:
        """See :meth:`Root.create_epoch`."""
        problem = check_next_epoch(self.epochs(), epoch)
        if problem:
            raise RootError(problem)
        secret = self._arena.take()
        self._random_into(secret.view)
        self._epochs[epoch] = secret

    def load_epoch(self, epoch: int, out: memoryview) -> None:
        """See :meth:`Root.load_epoch`."""
        out[:] = self._live(epoch).view

    def destroy_epoch(self, epoch: int) -> EpochEvidence:
        """Zero the epoch key; EpochGoneError when there is none."""
        self._live(epoch).wipe()
        del self._epochs[epoch]
        return EpochEvidence("memory", epoch, self._facts.claim, "zeroed in memory")

    def close(self) -> None:
        """Zero everything: what was wrapped here opens nowhere any more."""
        self._epochs.clear()
        self._arena.close()

    def _live(self, epoch: int) -> Secret:
        secret = self._epochs.get(epoch)
        if secret is None:
            raise EpochGoneError(f"Epoch {epoch} is not among the live epochs {self.epochs()}")
        return secret

    def _wrapper(self) -> KeyWrapper:
        return KeyWrapper(self._key.view, self._random_into)
