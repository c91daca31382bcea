"""A root only in locked memory: the strongest claim, and a cold cache after a restart."""

from kvrun.keys.entropy import RandomInto, getrandom
from kvrun.keys.errors import WrapError
from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.held_root import HeldRoot
from kvrun.keys.locked import Secret, SecretArena
from kvrun.keys.root import EpochEvidence, RootFacts
from kvrun.keys.wrap import KeyWrapper


class MemoryRoot(HeldRoot[Secret]):
    """Everything that was wrapped under it is unreadable once the process ends."""

    def __init__(self, *, strict: bool = False, random_into: RandomInto = getrandom) -> None:
        self._arena = SecretArena(strict=strict)
        super().__init__(self._arena.take().view, random_into)
        random_into(self._key)
        self._earlier: Secret | None = None
        root_id = bytearray(16)
        random_into(memoryview(root_id))
        self._facts = RootFacts(
            kind="memory",
            root_id=bytes(root_id),
            persistent=False,
            claim=ClaimClass.CRYPTOGRAPHIC,
            reason=f"keys only in memory ({self._arena.protection.value})",
            snapshot_retention_days=0,
        )

    def create_epoch(self, epoch: int) -> None:
        """See :meth:`Root.create_epoch`."""
        with self._busy:
            self._require_next(epoch)
            secret = self._arena.take()
            self._random_into(secret.view)
            self._epochs[epoch] = secret

    def load_epoch(self, epoch: int, out: memoryview) -> None:
        """See :meth:`Root.load_epoch`."""
        with self._busy:
            out[:] = self._place_of(epoch).view

    def destroy_epoch(self, epoch: int) -> EpochEvidence:
        """Zero the epoch key; EpochGoneError when there is none."""
        with self._busy:
            self._place_of(epoch).wipe()
            del self._epochs[epoch]
            return EpochEvidence("memory", epoch, self._facts.claim, "zeroed in memory")

    @property
    def rotating(self) -> bool:
        """See :attr:`RotatableRoot.rotating`."""
        return self._earlier is not None

    def unwrap_into(self, context: bytes, wrapped: bytes, out: memoryview) -> None:
        """See :meth:`Root.unwrap_into`; the key before opens too while it is being replaced."""
        with self._busy:
            try:
                self._wrapper().unwrap_into(context, wrapped, out)
            except WrapError:
                if self._earlier is None:
                    raise
                KeyWrapper(self._earlier.view, self._random_into).unwrap_into(context, wrapped, out)

    def begin_rotation(self) -> None:
        """See :meth:`RotatableRoot.begin_rotation`."""
        with self._busy:
            if self._earlier is None:
                self._earlier = self._arena.take()
                self._earlier.view[:] = self._key
                self._random_into(self._key)

    def finish_rotation(self) -> None:
        """See :meth:`RotatableRoot.finish_rotation`; epoch keys are not wrapped here."""
        with self._busy:
            if self._earlier is not None:
                self._earlier.wipe()
                self._earlier = None

    def check(self) -> None:
        """Nobody else holds this root: there is nothing to ask."""

    def close(self) -> None:
        """Zero everything: what was wrapped here opens nowhere any more."""
        self._epochs.clear()
        self._arena.close()
