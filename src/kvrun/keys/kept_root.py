"""A root whose keys are kept by another system: OpenBao, a PKCS#11 token, a cloud's KMS.

A folder holds the root key and the epoch keys, each wrapped under a key of the keeper's.
Destroying an epoch destroys its key at the keeper: the wrapped copy, here or in a backup, opens no
more. Where a keeper cannot destroy single keys, the copy here is overwritten instead, and the
folder is marked as not to be backed up. Format: ``docs/spec/kept-root.md``.
"""

import struct
from pathlib import Path
from typing import NamedTuple

from kvrun.keys.entropy import RandomInto, getrandom
from kvrun.keys.errors import (
    EpochGoneError,
    RootError,
    RootRevokedError,
    WrapError,
    WrongRootError,
)
from kvrun.keys.filesystem import ClaimClass, FilesystemFacts, filesystem_facts
from kvrun.keys.folder import FolderLock, private_folder
from kvrun.keys.held_root import HeldRoot
from kvrun.keys.keeper import Keeper, KeeperFacts
from kvrun.keys.locked import LockedBuffer
from kvrun.keys.markers import mark_do_not_back_up
from kvrun.keys.root import KEY_BYTES, EpochEvidence, RootFacts
from kvrun.keys.slots import OS_IO, ReadBack, SlotFile, SlotIO
from kvrun.keys.wrap import context as wrap_context

SLOTS_NAME = "kept.slots"


class KeptEpoch(NamedTuple):
    """Where a live epoch's wrapped key is: slot here, number of its key at the keeper."""

    slot: int
    ref: int


class KeptRoot(HeldRoot[KeptEpoch]):
    """The root of one key service in ``folder``, under keys of ``keeper``.

    ``close`` closes the keeper too; a constructor that fails leaves it to the caller.

    A missing or empty folder becomes a new root. ``snapshot_retention_days``: for how long
    snapshots of the keeper's storage are kept; None when nobody said so, which makes the claim
    ``LOGICAL`` where a restored snapshot would bring keys back. Raises RootError,
    RootRevokedError, RootUnavailableError, FolderBusyError or FolderPermissionError.
    """

    def __init__(
        self,
        folder: Path,
        keeper: Keeper,
        *,
        strict: bool = False,
        snapshot_retention_days: int | None = None,
        random_into: RandomInto = getrandom,
        io: SlotIO = OS_IO,
    ) -> None:
        self._folder: Path = folder
        self._keeper = keeper
        self._closed = False
        private_folder(folder, purpose="key root")
        self._lock = FolderLock(folder, purpose="key root")
        self._buffer = LockedBuffer(3 * KEY_BYTES, strict=strict)
        view = self._buffer.view
        super().__init__(view[:KEY_BYTES], random_into)
        self._spare, self._answer = view[KEY_BYTES : 2 * KEY_BYTES], view[2 * KEY_BYTES :]
        self._usable = False
        self._probe: _Probe | None = None
        self._root_id, self._root_slot, self._root_ref, self._root_wrap = b"", -1, 0, b""
        try:
            self._slots = SlotFile(folder / SLOTS_NAME, grow_by=4, io=io)
            try:
                self._open()
                if not keeper.facts.destroys:
                    mark_do_not_back_up(folder)
            except BaseException:
                self._slots.close()
                raise
        except BaseException:
            self._release()
            raise
        retention, kind = snapshot_retention_days, keeper.facts.kind
        claim, reason = claim_of(keeper.facts, retention, filesystem_facts(folder))
        self._facts = RootFacts(kind, self._root_id, True, claim, reason, retention)

    def wrap(self, context: bytes, secret: memoryview) -> bytes:
        """See :meth:`Root.wrap`."""
        with self._busy:
            self._require_usable()
            return super().wrap(context, secret)

    def unwrap_into(self, context: bytes, wrapped: bytes, out: memoryview) -> None:
        """See :meth:`Root.unwrap_into`."""
        with self._busy:
            self._require_usable()
            super().unwrap_into(context, wrapped, out)

    def create_epoch(self, epoch: int) -> None:
        """See :meth:`Root.create_epoch`."""
        with self._busy:
            self._require_usable()
            self._require_next(epoch)
            slot = self._slots.take_free()
            # The key that the root key is under serves the first epoch that comes to it.
            ref = self._root_ref
            if any(place.ref >= ref for place in self._epochs.values()):
                ref = self._keeper.new_key(self._newest_ref())
            self._random_into(self._spare)
            try:
                wrapped = self._keeper.encrypt(ref, self._context(b"epoch", epoch), self._spare)
            finally:
                self._spare[:] = bytes(KEY_BYTES)
            self._slots.write(slot, _KIND_EPOCH, _EPOCH.pack(epoch, ref) + wrapped)
            if ref != self._root_ref:
                self._write_root(ref)  # so that it outlives the older epoch's key
            self._slots.sync()
            self._epochs[epoch] = KeptEpoch(slot, ref)

    def load_epoch(self, epoch: int, out: memoryview) -> None:
        """See :meth:`Root.load_epoch`."""
        with self._busy:
            self._require_usable()
            place = self._place_of(epoch)
            try:
                self._keeper.decrypt_into(
                    place.ref, self._context(b"epoch", epoch), self._wrapped(epoch, place), out
                )
            except WrapError as error:
                raise RootError(
                    f"Epoch {epoch} in {self._folder} does not open at {self._name}: {error}"
                ) from None

    def destroy_epoch(self, epoch: int) -> EpochEvidence:
        """See :meth:`Root.destroy_epoch`; the older of two live epochs goes first."""
        with self._busy:
            self._require_usable()
            place = self._place_of(epoch)
            if epoch != min(self._epochs):
                raise RootError(f"Epoch {min(self._epochs)} must be destroyed before {epoch}")
            facts = self._keeper.facts
            if not facts.destroys:
                way = self._slots.erase([place.slot])
                del self._epochs[epoch]
                method = f"{self._keeper.destroy(place.ref)}; {_erased(way)}"
                return EpochEvidence(facts.kind, epoch, self._facts.claim, method)
            if self._root_ref <= place.ref:
                self._write_root(self._keeper.new_key(self._newest_ref()))
                self._slots.sync()
            wrapped = self._wrapped(epoch, place)
            method = self._keeper.destroy(place.ref)
            self._prove_gone(epoch, place, wrapped)
            way = self._slots.erase([place.slot])
            del self._epochs[epoch]
            method += f"; its epoch key was offered again and refused; {_erased(way)}"
            return EpochEvidence(facts.kind, epoch, self._facts.claim, method)

    def check(self) -> None:
        """See :meth:`Root.check`: the keeper opens again what it closed under the newest key.

        A refusal zeroes the root key; it is fetched again once the keeper agrees.
        """
        with self._busy:
            self._keeper.renew()
            try:
                if self._usable:
                    self._ask()
                else:
                    self._fetch_root_key()
            except (RootRevokedError, WrongRootError, EpochGoneError, WrapError) as error:
                self._usable, self._probe = False, None
                self._key[:] = bytes(KEY_BYTES)
                raise RootRevokedError(
                    f"{self._name} refuses what it agreed to before: {error}", hint=error.hint
                ) from None

    def close(self) -> None:
        """Zero what is in memory and let folder and keeper go; nothing is destroyed."""
        with self._busy:
            if self._closed:
                return
            self._closed = True
            self._usable = False
            self._slots.close()
            self._release()
            self._keeper.close()

    @property
    def _name(self) -> str:
        return self._keeper.facts.name

    def _open(self) -> None:
        for slot, record in self._slots.records():
            body = bytes(record.body)
            if record.kind == _KIND_ROOT and len(body) >= _ROOT.size:
                self._root_id, self._root_ref = _ROOT.unpack_from(body)
                self._root_slot, self._root_wrap = slot, body[_ROOT.size :]
            elif record.kind == _KIND_EPOCH and len(body) > _EPOCH.size:
                epoch, ref = _EPOCH.unpack_from(body)
                self._epochs[epoch] = KeptEpoch(slot, ref)
            else:
                raise RootError(f"Slot {slot} of {self._slots.path} is not of a kept root")
        self._slots.scrub_torn()
        if not self._root_id and self._epochs:
            raise RootError(f"{self._folder} holds epoch keys but its root key is damaged")
        fresh = not self._root_id
        if fresh:
            random = bytearray(16)
            self._random_into(memoryview(random))
            self._root_id = bytes(random)
        self._keeper.bind(self._root_id, fresh=fresh)
        if fresh:
            # The place is ours before anything is made at the keeper: a crash in between resumes.
            self._root_slot = self._slots.take_free()
            self._slots.write(self._root_slot, _KIND_ROOT, _ROOT.pack(self._root_id, 0))
            self._slots.sync()
        if self._root_wrap:
            self._finish_destructions()
            self._fetch_root_key()
            return
        self._random_into(self._key)
        self._write_root(self._keeper.new_key(0))
        self._slots.sync()
        self._usable = True

    def _finish_destructions(self) -> None:
        """Forget epochs whose keys the keeper has destroyed already, as a crash can leave them."""
        refs = {place.ref for place in self._epochs.values()} | {self._root_ref}
        live = self._keeper.live(refs)
        gone = {number: p for number, p in self._epochs.items() if p.ref not in live}
        if self._root_ref not in live or any(p.ref >= self._root_ref for p in gone.values()):
            newest = max(refs)
            raise RootRevokedError(
                f"{self._name}: key {newest}, under which {self._folder} is wrapped, is gone, "
                "disabled or not there yet",
                hint="Let the key be used again; or, if it is gone for good, remove the key folder "
                f"and {self._folder} to start with a cold cache.",
            )
        for number, place in gone.items():
            self._keeper.destroy(place.ref)
            self._slots.erase([place.slot])
            del self._epochs[number]

    def _fetch_root_key(self) -> None:
        self._usable = False
        try:
            self._keeper.decrypt_into(
                self._root_ref, self._context(b"root", 0), self._root_wrap, self._key
            )
        except WrapError as error:
            self._key[:] = bytes(KEY_BYTES)
            raise WrongRootError(
                f"{self._name} does not open the root key in {self._folder}: {error}",
                hint="The key there was replaced, or the folder belongs to another key.",
            ) from None
        except EpochGoneError as error:
            raise RootRevokedError(str(error.message), hint=error.hint) from None
        self._usable = True

    def _write_root(self, ref: int) -> None:
        """Wrap the root key under another key of the keeper's; no sync."""
        self._root_wrap = self._keeper.encrypt(ref, self._context(b"root", 0), self._key)
        self._root_ref = ref
        self._slots.write(
            self._root_slot, _KIND_ROOT, _ROOT.pack(self._root_id, ref) + self._root_wrap
        )

    def _ask(self) -> None:
        context = self._context(b"probe", 0)
        probe = self._probe
        if probe is None or probe.ref != self._root_ref:
            self._random_into(self._spare)
            wrapped = self._keeper.encrypt(self._root_ref, context, self._spare)
            probe = self._probe = _Probe(self._root_ref, wrapped, bytes(self._spare))
        self._keeper.decrypt_into(probe.ref, context, probe.wrapped, self._answer)
        if self._answer != probe.text:
            raise WrapError("another text came back")

    def _prove_gone(self, epoch: int, place: KeptEpoch, wrapped: bytes) -> None:
        try:
            self._keeper.decrypt_into(
                place.ref, self._context(b"epoch", epoch), wrapped, self._spare
            )
        except (EpochGoneError, WrapError):
            return
        finally:
            self._spare[:] = bytes(KEY_BYTES)
        raise RootError(f"{self._name} still opens epoch {epoch} after it was told to destroy it")

    def _wrapped(self, epoch: int, place: KeptEpoch) -> bytes:
        record = self._slots.read(place.slot)
        if record is None or record.kind != _KIND_EPOCH:
            raise EpochGoneError(f"Epoch {epoch} has vanished from {self._folder}")
        return bytes(record.body[_EPOCH.size :])

    def _newest_ref(self) -> int:
        return max([self._root_ref, *(place.ref for place in self._epochs.values())])

    def _context(self, purpose: bytes, epoch: int) -> bytes:
        return wrap_context(b"kept", purpose, self._root_id, _NUMBER.pack(epoch))

    def _require_usable(self) -> None:
        if not self._usable:
            raise RootRevokedError(
                "The root is closed" if self._closed else f"{self._name} refused at its last check"
            )

    def _release(self) -> None:
        self._key.release()
        self._spare.release()
        self._answer.release()
        self._buffer.close()
        self._lock.close()


def claim_of(
    facts: KeeperFacts, retention_days: int | None, disk: FilesystemFacts
) -> tuple[ClaimClass, str]:
    """What a destroyed epoch may be said to be, and why. ``disk``: where the wrapped copies are."""
    if not facts.destroys:
        # The wrapped copy here dies instead: as good as the filesystem, as with a file root.
        return disk.claim, f"{facts.reason}; {disk.reason}"
    if retention_days is None:
        return (
            ClaimClass.LOGICAL,
            f"{facts.reason}; for how long its snapshots are kept is not declared",
        )
    return facts.claim, facts.reason


class _Probe(NamedTuple):
    """A random text that protects nothing, and what the keeper made of it."""

    ref: int
    wrapped: bytes
    text: bytes


_KIND_ROOT = 18
_KIND_EPOCH = 19
_ROOT = struct.Struct(">16sQ")
_EPOCH = struct.Struct(">QQ")
_NUMBER = struct.Struct(">Q")


def _erased(way: ReadBack) -> str:
    return f"its wrapped copy overwritten in place, fdatasync, read back {way.value}"
