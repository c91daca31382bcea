"""Opening a key folder: check whose it is, finish what a crash cut short, build the index."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvrun.keys.errors import KeysError, RootError, SlotFileError, WrapError, WrongRootError
from kvrun.keys.hierarchy import session_ref, tenant_ref
from kvrun.keys.records import (
    KEY_BYTES,
    KeyHeader,
    KeyringState,
    RecordKind,
    get_name,
)
from kvrun.keys.ring_entries import (
    BeforeLoss,
    Loss,
    RecoveryReport,
    SessionEntry,
    TenantEntry,
    microseconds,
    seconds,
)
from kvrun.keys.ring_rotation import rotate
from kvrun.keys.ring_scan import FoundRecords, scan_records
from kvrun.keys.ring_store import RingStore
from kvrun.keys.root import RotatableRoot
from kvrun.keys.slot_keys import SlotKeys

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenedRing:
    """What the key ring starts from."""

    state: KeyringState
    state_slot: int
    generation: int
    slot_keys: SlotKeys
    tenants: dict[bytes, TenantEntry]
    sessions: dict[int, SessionEntry]
    report: RecoveryReport


def recover(
    store: RingStore, workspace: str, deployment: str, now: float, before_loss: BeforeLoss
) -> OpenedRing:
    """Open or create the ring of one deployment.

    Raises what ``before_loss`` raises, before anything is lost, KeysError when the folder belongs
    to another deployment or is damaged, RootError when the root is another one or older than the
    slots.
    """
    try:
        return _recover(store, workspace, deployment, now, before_loss)
    finally:
        store.wipe_scratch()


def _recover(
    store: RingStore, workspace: str, deployment: str, now: float, before_loss: BeforeLoss
) -> OpenedRing:
    found = scan_records(store)
    torn, torn_upper = store.slots.torn(), store.upper.torn()
    if _is_older_copy(store, found):
        before_loss(Loss.OLDER_COPY)
    elif torn or torn_upper:
        before_loss(Loss.DAMAGED)
    store.slots.scrub_torn(torn)
    store.upper.scrub_torn(torn_upper)
    state, started_over = _settle_state(store, found, workspace, deployment, before_loss)
    store.use_ring(state.keyring_id, workspace, deployment)
    _settle_upper_keys(store, found, now)
    if isinstance(store.root, RotatableRoot) and store.root.rotating:
        store.finish_root_rotation(store.root)
    older_copy = _is_older_copy(store, found)
    # No start that came to its end leaves epoch 0: keys were removed, and older copies of them are
    # under an epoch key that was there before.
    leave_epoch = state.epoch == 0 and bool(store.root.epochs())
    live = _settle_epochs(store, found, state)

    index = _Index(store, found, live)
    if index.orphans or index.lost or index.lost_tables:
        before_loss(Loss.DAMAGED)
    slot_keys = index.slot_keys
    doomed = {slot for slot, number in found.tombstones.items() if number in live}
    # What was dropped must not come back with another copy of its slot, nor what a stale record is
    # in the place of.
    dropped = {*torn, *index.orphans, *index.lost, *index.stale}
    if older_copy:
        _log.warning("%s is an older copy: keys that it lacks are destroyed", store.slots.path)
    if older_copy or (torn_upper and found.mark is None):  # without a mark it may be one
        # Nor what the copy lacks: who looks for it to erase it finds nothing.
        dropped = set(slot_keys.slots()) - index.living()
    dropped = {slot for slot in dropped if slot_keys.covers(slot)}
    epoch = live[0]
    if len(live) == 2:
        rotate(store, slot_keys, epoch, doomed)
        epoch, doomed = live[1], set()
    if doomed or dropped or torn_upper or index.lost_tables or leave_epoch:
        rotate(store, slot_keys, epoch, doomed | dropped)
        epoch += 1
    gone = [*index.stale, *index.orphans, *index.lost, *found.tombstones, *found.earlier]
    if older_copy:
        _outrun(store, found)
    if gone or older_copy or epoch != state.epoch:
        state = replace(state, epoch=epoch)
        store.write_state(state, found.state_slot)
        store.slots.erase(gone)  # syncs
    store.settle_mark(None if older_copy else found.mark)
    report = RecoveryReport(
        torn_slots=len(torn),
        finished_destructions=len(found.tombstones),
        stale_slots=len(index.stale),
        orphan_slots=len(index.orphans),
        lost_slots=len(index.lost),
        older_copy=older_copy,
        started_over=started_over,
        epoch_rotated=epoch != live[0],
    )
    generation = max([state.generation_mark, *(header.generation for _, header in found.sessions)])
    return OpenedRing(
        state, found.state_slot, generation, slot_keys, index.tenants, index.sessions, report
    )


def _settle_state(
    store: RingStore,
    found: FoundRecords,
    workspace: str,
    deployment: str,
    before_loss: BeforeLoss,
) -> tuple[KeyringState, bool]:
    """Whose folder it is, and whether it had to be emptied first."""
    root, upper = store.root.facts, found.upper_state
    state = found.state or upper
    if state is None:
        if found.records() or found.tombstones:
            raise SlotFileError(
                f"{store.slots.path} holds keys but its state record is damaged",
                hint=_anew(store),
            )
        return _start_over(
            store,
            found,
            KeyringState(
                store.random_id(), root.root_id, root.persistent, 0, 0, workspace, deployment
            ),
        )
    if (state.workspace, state.deployment) != (workspace, deployment):
        raise KeysError(
            f"{store.slots.path} belongs to deployment {state.workspace}/{state.deployment}, "
            f"not to {workspace}/{deployment}"
        )
    if state.root_id != root.root_id:
        if state.root_persistent:
            raise WrongRootError(
                f"The keys in {store.slots.path} belong to root {state.root_id.hex()}, "
                f"and this is the {root.kind} root {root.root_id.hex()}",
                hint="Give the right root, or remove the key folder to start with a cold cache.",
            )
        # The old root lived in memory and is gone: nothing here can be opened by anyone.
        state = replace(state, root_id=root.root_id, root_persistent=root.persistent)
        return _start_over(store, found, state)
    if upper is None:
        if found.records() or found.earlier:
            before_loss(Loss.EMPTIED)
            _log.warning(
                "the keys in %s cannot be opened any more and are removed: the cache starts cold "
                "(%s)",
                store.slots.path,
                "an earlier version made them" if found.earlier else f"{store.upper.path} is new",
            )
        return _start_over(store, found, state)
    if upper.keyring_id != state.keyring_id:
        raise KeysError(
            f"{store.slots.path} does not belong to the keys in {store.upper.path}",
            hint=f"Put back the key folder that this root had. {_anew(store)}",
        )
    mark = max(state.generation_mark, upper.generation_mark)
    state = replace(state, generation_mark=mark)
    if found.state is None:
        found.state_slot = store.slots.take_free()
        store.write_state(state, found.state_slot)
        store.slots.sync()
    return state, False


def _start_over(
    store: RingStore, found: FoundRecords, state: KeyringState
) -> tuple[KeyringState, bool]:
    """Empty both files, of which nothing can be opened, if anything is there at all."""
    generations = [header.generation for _, header in found.sessions]
    state = replace(state, generation_mark=max([state.generation_mark, *generations]), epoch=0)
    used = [slot for slot, _ in found.records()] + list(found.tombstones) + found.earlier
    upper = [slot for slot, _ in store.upper.records()]
    if used:
        store.slots.erase(used)
    if upper:
        store.upper.erase(upper)
    found.tenants, found.sessions, found.tombstones, found.tables = [], [], {}, []
    found.upper_keys, found.mark, found.earlier = 0, None, []
    if found.state_slot < 0:
        found.state_slot = store.slots.take_free()
    store.write_state(state, found.state_slot)
    store.slots.sync()
    store.upper.sync()
    return state, bool(used)


def _settle_upper_keys(store: RingStore, found: FoundRecords, now: float) -> None:
    if found.upper_keys == 2:
        store.load_upper_keys()
        return
    if found.records() or found.tables:
        raise SlotFileError(
            f"The workspace or deployment key in {store.upper.path} is damaged",
            hint=_anew(store),
        )
    store.create_upper_keys(microseconds(now))


def _anew(store: RingStore) -> str:
    return f"To start with a cold cache, remove the key folder and {store.upper.path}."


def _is_older_copy(store: RingStore, found: FoundRecords) -> bool:
    """Whether the key file ends before the newest key that was ever made in it."""
    mark, slots = found.mark, store.slots
    return mark is not None and (mark.file_id != slots.file_id or slots.sequence < mark.sequence)


def _outrun(store: RingStore, found: FoundRecords) -> None:
    """Let every other copy of the file end before this one from now on, the newest included.

    The mark first, and durable: after a crash this file is an older copy once more.
    """
    assert found.mark is not None
    store.slots.leap(found.mark.sequence)
    store.write_mark()
    store.upper.sync()


def _settle_epochs(store: RingStore, found: FoundRecords, state: KeyringState) -> Sequence[int]:
    seen = [header.epoch for _, header in found.records() + found.tables]
    live = store.root.epochs()
    newest = max([state.epoch, *seen])
    if newest > (live[-1] if live else 0):
        raise RootError(
            f"The key root is older than the keys: it ends at epoch {live[-1] if live else 0}, "
            f"and {store.slots.path} is at {newest}",
            hint=f"A copy of the root was restored. {_anew(store)}",
        )
    if not live:
        store.root.create_epoch(1)
        live = store.root.epochs()
    return live


class _Index:
    """Opens every table, tenant and session once, to find them by their ids from now on.

    ``stale`` are records of keys that were destroyed (an older copy was restored), ``orphans``
    those whose slot or tenant has no key, ``lost`` those that do not open.
    """

    def __init__(self, store: RingStore, found: FoundRecords, live: Sequence[int]) -> None:
        self._store = store
        self.slot_keys = SlotKeys(store)
        self.tenants: dict[bytes, TenantEntry] = {}
        self.sessions: dict[int, SessionEntry] = {}
        self.stale: list[int] = []
        self.orphans: list[int] = []
        self.lost: list[int] = []
        self.lost_tables = 0
        self._tenants_by_id: dict[bytes, tuple[TenantEntry, KeyHeader]] = {}
        self._inner: dict[int, bytes] = {}
        self._top = self.slot_keys.top_wrapper()
        self._add_tables(found, live)
        self._take_off_outer(found)
        self._add_tenants(found)
        by_parent: dict[bytes, list[tuple[int, KeyHeader]]] = {}
        for slot, header in found.sessions:
            if slot in self._inner:
                by_parent.setdefault(header.parent_id, []).append((slot, header))
        for parent_id, sessions in by_parent.items():
            self._add_sessions(self._tenants_by_id.get(parent_id), sessions)

    def living(self) -> set[int]:
        """The slots of what opened."""
        return {*self.sessions, *(tenant.slot for tenant in self.tenants.values())}

    def _add_tables(self, found: FoundRecords, live: Sequence[int]) -> None:
        for number, header in found.tables:
            try:
                if header.epoch not in live:
                    raise WrapError("wrapped under an epoch that is gone")
                self.slot_keys.add(number, header)
            except (WrapError, SlotFileError):
                self.lost_tables += 1

    def _take_off_outer(self, found: FoundRecords) -> None:
        """Slot by slot, so that each table is opened once."""
        kinds = [(found.tenants, RecordKind.TENANT_KEY), (found.sessions, RecordKind.SESSION_KEYS)]
        records = [(slot, header, kind) for keys, kind in kinds for slot, header in keys]
        records.sort(key=lambda record: record[0])
        for slot, header, kind in records:
            try:
                if not self.slot_keys.covers(slot):
                    self.orphans.append(slot)
                elif self.slot_keys.made_in(slot) != header.epoch:
                    self.stale.append(slot)
                else:
                    body = memoryview(found.bodies.pop(slot))
                    self._inner[slot] = self.slot_keys.outer(slot, kind, body)
            except WrapError:
                self.lost.append(slot)

    def _add_tenants(self, found: FoundRecords) -> None:
        for slot, header in found.tenants:
            if slot not in self._inner:
                continue
            created, used = seconds(header.created_us), seconds(header.used_us)
            try:
                name = self._open_tenant(slot, header)
            except WrapError:
                self.lost.append(slot)
                continue
            key, ring = self._store.tenant_payload[:KEY_BYTES], self._store.ring
            ref = tenant_ref(key, ring.workspace, ring.deployment, name)
            tag = self._store.tags.tenant_tag(name)
            entry = TenantEntry(slot, header.key_id, tag, ref, created, used)
            self.tenants[entry.tag] = entry
            self._tenants_by_id[entry.key_id] = entry, header

    def _open_tenant(self, slot: int, header: KeyHeader) -> str:
        """The tenant's id; its key is in the scratch then."""
        store, payload = self._store, self._store.tenant_payload
        aad = store.ring.inner_aad(RecordKind.TENANT_KEY, header.pack())
        self._top.unwrap_into(aad, self._inner[slot], payload)
        return get_name(payload[KEY_BYTES:])

    def _add_sessions(
        self,
        owner: tuple[TenantEntry, KeyHeader] | None,
        sessions: Sequence[tuple[int, KeyHeader]],
    ) -> None:
        if owner is None:
            self.orphans += [slot for slot, _ in sessions]
            return
        entry_of_owner, its_header = owner
        store, payload, kind = self._store, self._store.session_payload, RecordKind.SESSION_KEYS
        tenant = self._open_tenant(entry_of_owner.slot, its_header)
        parent = self.slot_keys.tenant_wrapper(entry_of_owner)
        for slot, header in sessions:
            aad = store.ring.inner_aad(kind, header.pack())
            try:
                parent.unwrap_into(aad, self._inner[slot], payload)
            except WrapError:
                self.lost.append(slot)
                continue
            created, used = seconds(header.created_us), seconds(header.used_us)
            name = get_name(payload[3 * KEY_BYTES :])
            tag = store.tags.session_tag(tenant, name)
            name_key = payload[2 * KEY_BYTES : 3 * KEY_BYTES]
            ref = session_ref(name_key, store.ring.scope(tenant, name))
            key_id, generation = header.key_id, header.generation
            entry = SessionEntry(
                slot, entry_of_owner, key_id, tag, ref, generation, created, used, used
            )
            entry_of_owner.sessions[tag] = self.sessions[slot] = entry
