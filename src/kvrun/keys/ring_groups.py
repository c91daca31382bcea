"""Group keys: what stands between the epoch key and the records of 128 neighbouring slots.

Destroying a key needs everything that may still open it to change. With one key for a group of
slots only the victims' groups are wrapped again, and the other groups' keys stand for their
records. A group key that ever covered a destroyed record is never wrapped under a later epoch key.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvrun.keys.errors import SlotFileError, WrapError
from kvrun.keys.locked import Secret
from kvrun.keys.records import (
    HEADER_BYTES,
    KEY_BYTES,
    MADE_IN,
    SESSION_PAYLOAD_BYTES,
    TENANT_PAYLOAD_BYTES,
    KeyHeader,
    RecordKind,
    made_in_of,
    moved_header,
    split_key_record,
)
from kvrun.keys.ring_entries import SessionEntry, TenantEntry, microseconds
from kvrun.keys.ring_store import GROUP_SLOTS, EpochKeys, RingStore
from kvrun.keys.wrap import OVERHEAD_BYTES, KeyWrapper, Moving


@dataclass(slots=True, eq=False)
class Group:
    """One group: its key in locked memory and the records under it, by slot.

    ``earlier`` is the key before, with the epoch it was made in, while records move from it.
    """

    slot: int
    header: KeyHeader
    key: Secret
    earlier: tuple[int, Secret] | None = None
    tenants: dict[int, TenantEntry] = field(default_factory=dict)
    sessions: dict[int, SessionEntry] = field(default_factory=dict)

    @property
    def made_in(self) -> int:
        """The epoch in which the key was made; records name it."""
        return self.header.made_in

    @property
    def made_in_epochs(self) -> tuple[int, ...]:
        """The ``made_in`` of every key it has: two while records move."""
        return (self.made_in,) if self.earlier is None else (self.made_in, self.earlier[0])

    def secret(self, made_in: int) -> memoryview:
        """The key that a record names. Raises WrapError when the group has it no more."""
        if made_in == self.header.made_in:
            return self.key.view
        if self.earlier is not None and made_in == self.earlier[0]:
            return self.earlier[1].view
        raise WrapError(f"The group at slot {self.slot} has no key of epoch {made_in}")

    def forget_earlier(self) -> None:
        """Zero the key before the present one."""
        if self.earlier is not None:
            self.earlier[1].wipe()
            self.earlier = None


class GroupKeys:
    """All groups of one ring. Not thread-safe."""

    def __init__(self, store: RingStore) -> None:
        self._store = store
        self._groups: dict[int, Group] = {}
        self._bodies: Mapping[int, bytes] = {}
        self._outers: dict[tuple[int, int], KeyWrapper] | None = None

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def get(self, slot: int) -> Group | None:
        """The group that covers a slot."""
        return self._groups.get(group_slot(slot))

    def of(self, slot: int) -> Group:
        """The group that covers a slot. Raises SlotFileError when its key is not there."""
        group = self.get(slot)
        if group is None:
            raise SlotFileError(f"The key of the group of slot {slot} is missing")
        return group

    def ensure(self, slot: int, epoch: EpochKeys, now_us: int) -> Group:
        """The group that covers a slot, made when it has no key yet; no sync."""
        found = self.get(slot)
        if found is not None:
            return found
        store = self._store
        header = KeyHeader(
            store.random_id(), store.deployment_id, epoch.epoch, epoch.epoch, now_us, now_us
        )
        group = Group(group_slot(slot), header, store.arena.take())
        store.random_into(group.key.view)
        self._groups[group.slot] = group
        self.write(group, epoch)
        return group

    def load(self, slot: int, epochs: dict[int, EpochKeys]) -> Group | None:
        """Open a group's key, and the one before it while both of their epochs live.

        None when the record is of an epoch that is gone. Raises WrapError when it does not open.
        """
        store = self._store
        record = store.slots.read(slot)
        assert record is not None
        header = KeyHeader.unpack(split_key_record(record.body)[0])
        epoch = epochs.get(header.epoch)
        if epoch is None:
            return None
        group = Group(slot, header, store.arena.take())
        try:
            store.read(slot, RecordKind.GROUP_KEY, epoch.wrapper, group.key.view)
        except WrapError:
            group.key.wipe()
            raise
        if header.made_in == header.epoch and len(epochs) == 2:
            group.earlier = self._load_earlier(slot, epochs)
        self._groups[slot] = group
        return group

    def renew(self, group: Group, epoch: int) -> None:
        """Give a group a fresh key of ``epoch``, keeping the one before until records moved.

        It is not written yet.
        """
        group.earlier = (group.made_in, group.key)
        group.key = self._store.arena.take()
        self._store.random_into(group.key.view)
        old = group.header
        group.header = KeyHeader(
            self._store.random_id(), old.parent_id, epoch, old.epoch, old.created_us, old.used_us
        )

    def write(self, group: Group, epoch: EpochKeys) -> None:
        """Wrap the group's key under ``epoch``; no sync."""
        old = group.header
        group.header = KeyHeader(
            old.key_id, old.parent_id, old.generation, epoch.epoch, old.created_us, old.used_us
        )
        self._store.write(
            group.slot, RecordKind.GROUP_KEY, group.header, epoch.wrapper, group.key.view
        )

    def epochs(self) -> set[int]:
        """The epochs that group keys are wrapped under: two while a rotation is not over."""
        return {group.header.epoch for group in self._groups.values()}

    def put_away(self) -> None:
        """Zero every group key in memory until ``take_up``."""
        for group in self._groups.values():
            group.forget_earlier()
            group.key.wipe()

    def take_up(self, epochs: Mapping[int, EpochKeys]) -> None:
        """Open the group keys again, each under the epoch that wraps it.

        Raises WrapError or SlotFileError when one does not open.
        """
        store = self._store
        for group in self._groups.values():
            if group.key.wiped:
                key = store.arena.take()
                try:
                    wrapper = epochs[group.header.epoch].wrapper
                    store.read(group.slot, RecordKind.GROUP_KEY, wrapper, key.view)
                except BaseException:
                    key.wipe()
                    raise
                group.key = key

    def write_record(
        self,
        slot: int,
        kind: RecordKind,
        header: KeyHeader,
        parent: KeyWrapper,
        payload: memoryview,
    ) -> None:
        """Wrap a payload under its parent's key and that under the group's; no sync."""
        store = self._store
        packed = header.pack()
        inner = parent.wrap(store.ring.inner_aad(kind, packed), payload)
        outer = self.wrapper(self.of(slot))
        store.write(slot, kind, header, outer, memoryview(inner))

    def read_tenant(self, entry: TenantEntry) -> None:
        """Unwrap a tenant's key into the store's scratch.

        Raises WrapError or SlotFileError when it does not open.
        """
        store = self._store
        parent = store.deriver.record_wrapper(store.deployment_key, store.deployment_id)
        self._read(entry.slot, RecordKind.TENANT_KEY, parent, store.tenant_payload)

    def tenant_wrapper(self, entry: TenantEntry) -> KeyWrapper:
        """The inner wrap of the tenant's sessions; its key must be in the store's scratch."""
        key = self._store.tenant_payload[:KEY_BYTES]
        return self._store.deriver.record_wrapper(key, entry.key_id)

    def read_session(self, entry: SessionEntry, parent: KeyWrapper | None = None) -> None:
        """Unwrap a session's keys into the store's scratch, where its tenant's must be already.

        ``parent`` is ``tenant_wrapper``'s, for who reads several. Raises as ``read_tenant``.
        """
        parent = parent or self.tenant_wrapper(entry.tenant)
        self._read(entry.slot, RecordKind.SESSION_KEYS, parent, self._store.session_payload)

    def rewrap(self, group: Group, entries: Iterable[TenantEntry | SessionEntry]) -> list[int]:
        """Wrap records again under the group's present key, with their last use; no sync.

        No key of a tenant or session is in the clear here: only the outer wrap changes. The slots
        that do not open are returned; they keep what they held.
        """
        store = self._store
        target = self.wrapper(group)
        made_in = group.made_in.to_bytes(8, "big")
        sources = {made_in: target}
        if group.earlier is not None:
            earlier, key = group.earlier
            sources[earlier.to_bytes(8, "big")] = KeyWrapper(key.view, store.random_into)
        wanted = {entry.slot: entry for entry in entries}
        out = store.slots.renewed
        head = out[:HEADER_BYTES]
        forms = {int(kind): self._form(kind, target, out) for kind in _COVERED}

        def renew(slot: int, kind: int, old: memoryview) -> int:
            entry, form = wanted.get(slot), forms.get(kind)
            if entry is None or form is None or type(entry) is not form.entry:
                return 0
            header = bytes(old[:HEADER_BYTES])
            source = sources.get(header[MADE_IN])
            if source is None or not header.startswith(entry.key_id):
                return 0
            # What else is in the header is authenticated below, and stays.
            fresh = moved_header(header, made_in, microseconds(entry.used))
            prefix = form.prefix
            try:
                form.move(source, prefix + header, old[HEADER_BYTES:], prefix + fresh)
            except WrapError:
                return 0
            head[:] = fresh
            if type(entry) is SessionEntry:
                entry.used_on_disk = entry.used
            del wanted[slot]
            return form.body_bytes

        store.slots.rewrite(group.slot, GROUP_SLOTS, renew)
        return list(wanted)

    def wrapper(self, group: Group) -> KeyWrapper:
        """The outer wrap of a group's records."""
        return KeyWrapper(group.key.view, self._store.random_into)

    @contextmanager
    def reading(self, bodies: Mapping[int, bytes]) -> Iterator[None]:
        """Read records from ``bodies``, by slot, for the length of one pass over all of them."""
        self._bodies, self._outers = bodies, {}
        try:
            yield
        finally:
            self._bodies, self._outers = {}, None

    def _form(self, kind: RecordKind, target: KeyWrapper, out: memoryview) -> "_Form":
        """How records of a kind move under a wrapper's key into ``out``."""
        size = _COVERED[kind] + OVERHEAD_BYTES
        end = HEADER_BYTES + size + OVERHEAD_BYTES
        moving = Moving(target, size, out[HEADER_BYTES:end])
        entry = SessionEntry if kind is RecordKind.SESSION_KEYS else TenantEntry
        return _Form(entry, self._store.ring.record_prefix(kind), moving.move, end)

    def _read(self, slot: int, kind: RecordKind, parent: KeyWrapper, out: memoryview) -> None:
        store = self._store
        body = self._bodies.get(slot)
        if body is None:
            record = store.slots.read(slot)
            if record is None or record.kind != kind:
                raise SlotFileError(f"Slot {slot} of {store.slots.path} holds no {kind.name}")
            body = bytes(record.body)
        header, wrapped = split_key_record(memoryview(body))
        outer = self._outer(self.of(slot), made_in_of(header))
        inner = memoryview(bytearray(len(out) + OVERHEAD_BYTES))
        outer.unwrap_into(store.ring.aad(kind, header), wrapped, inner)
        parent.unwrap_into(store.ring.inner_aad(kind, header), inner, out)

    def _outer(self, group: Group, made_in: int) -> KeyWrapper:
        # Each holds a key schedule: they are kept for one pass only.
        found = self._outers.get((group.slot, made_in)) if self._outers is not None else None
        if found is None:
            found = KeyWrapper(group.secret(made_in), self._store.random_into)
            if self._outers is not None:
                self._outers[group.slot, made_in] = found
        return found

    def _load_earlier(self, slot: int, epochs: dict[int, EpochKeys]) -> tuple[int, Secret] | None:
        store = self._store
        record = store.slots.read_earlier(slot)
        if record is None or record.kind != RecordKind.GROUP_KEY:
            return None
        packed, wrapped = split_key_record(record.body)
        header = KeyHeader.unpack(packed)
        epoch = epochs.get(header.epoch)
        if epoch is None:
            return None
        secret = store.arena.take()
        try:
            epoch.wrapper.unwrap_into(
                store.ring.aad(RecordKind.GROUP_KEY, packed), wrapped, secret.view
            )
        except WrapError:
            secret.wipe()
            return None
        return header.made_in, secret


def group_slot(slot: int) -> int:
    """Where the key of a slot's group is: the group's first slot."""
    return slot - slot % GROUP_SLOTS


@dataclass(frozen=True, slots=True)
class _Form:
    """The entries of a kind of record, its AAD prefix, how its records move, their bodies' size."""

    entry: type[SessionEntry] | type[TenantEntry]
    prefix: bytes
    move: Callable[[KeyWrapper, bytes, memoryview, bytes], None]
    body_bytes: int


_COVERED = {
    RecordKind.TENANT_KEY: TENANT_PAYLOAD_BYTES,
    RecordKind.SESSION_KEYS: SESSION_PAYLOAD_BYTES,
}
