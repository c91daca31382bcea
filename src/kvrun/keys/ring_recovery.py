"""Opening a key folder: check whose it is, finish what a crash cut short, build the index."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvrun.keys.errors import KeysError, RootError, SlotFileError, WrapError, WrongRootError
from kvrun.keys.records import (
    KEY_BYTES,
    KeyHeader,
    KeyringState,
    RecordKind,
    get_name,
    key_header,
    tombstone_epoch,
)
from kvrun.keys.ring_entries import (
    RecoveryReport,
    SessionEntry,
    TenantEntry,
    microseconds,
    seconds,
)
from kvrun.keys.ring_groups import GroupKeys, group_slot
from kvrun.keys.ring_rotation import rotate
from kvrun.keys.ring_store import EpochKeys, RingStore
from kvrun.keys.root import RotatableRoot


@dataclass(slots=True)
class OpenedRing:
    """What the key ring starts from."""

    state: KeyringState
    state_slot: int
    generation: int
    groups: GroupKeys
    tenants: dict[bytes, TenantEntry]
    epoch: EpochKeys
    report: RecoveryReport


def recover(store: RingStore, workspace: str, deployment: str, now: float) -> OpenedRing:
    """Open or create the ring of one deployment.

    Raises KeysError when the folder belongs to another deployment or is damaged, RootError when
    the root is another one or older than the slots.
    """
    torn = store.slots.scrub_torn()
    found = _scan(store)
    state = _settle_state(store, found, workspace, deployment)
    store.use_ring(state.keyring_id, workspace, deployment)
    _settle_upper_keys(store, found, now)
    if isinstance(store.root, RotatableRoot) and store.root.rotating:
        store.finish_root_rotation(store.root)
    live = _settle_epochs(store, found)

    epochs = {number: store.epoch(number) for number in live}
    index = _Index(store, found, epochs)
    gone = [*index.stale, *index.orphans, *index.lost]
    if gone:
        store.slots.erase(gone)
    report = RecoveryReport(
        torn_slots=len(torn),
        finished_destructions=len(found.tombstones),
        stale_slots=len(index.stale),
        orphan_slots=len(index.orphans),
        lost_slots=len(index.lost),
    )

    epoch = epochs[live[0]]
    doomed = {group_slot(slot) for slot, number in found.tombstones.items() if number in live}
    # What was dropped as damaged must not come back with an older copy of its slot either.
    damaged = {group_slot(slot) for slot in (*torn, *index.orphans, *index.lost)}
    damaged &= {group.slot for group in index.groups}
    if len(live) == 2:
        epochs[live[1]].close()
        epoch = rotate(store, epoch, index.groups, doomed).epoch
        doomed = set()
    if doomed or damaged:
        epoch = rotate(store, epoch, index.groups, doomed | damaged).epoch
    if found.tombstones:
        store.slots.erase(list(found.tombstones))
    report = replace(report, epoch_rotated=epoch.epoch != live[0])
    generation = max([state.generation_mark, *(header.generation for _, header in found.sessions)])
    return OpenedRing(
        state, found.state_slot, generation, index.groups, index.tenants, epoch, report
    )


@dataclass(slots=True)
class _Found:
    state: KeyringState | None = None
    state_slot: int = -1
    workspace_slot: int = -1
    deployment_slot: int = -1
    groups: list[tuple[int, KeyHeader]] = field(default_factory=list)
    tenants: list[tuple[int, KeyHeader]] = field(default_factory=list)
    sessions: list[tuple[int, KeyHeader]] = field(default_factory=list)
    tombstones: dict[int, int] = field(default_factory=dict)  # slot -> epoch
    bodies: dict[int, bytes] = field(default_factory=dict)  # of tenants and sessions

    def all_keys(self) -> list[tuple[int, KeyHeader]]:
        return self.groups + self.tenants + self.sessions


def _scan(store: RingStore) -> _Found:
    found = _Found()
    lists = {
        RecordKind.GROUP_KEY: found.groups,
        RecordKind.TENANT_KEY: found.tenants,
        RecordKind.SESSION_KEYS: found.sessions,
    }
    for slot, record in store.slots.records():
        if record.kind in lists:
            lists[RecordKind(record.kind)].append((slot, key_header(record.body)))
            if record.kind != RecordKind.GROUP_KEY:
                found.bodies[slot] = bytes(record.body)
        elif record.kind == RecordKind.STATE:
            found.state, found.state_slot = KeyringState.unpack(record.body), slot
        elif record.kind == RecordKind.WORKSPACE_KEY:
            found.workspace_slot = slot
        elif record.kind == RecordKind.DEPLOYMENT_KEY:
            found.deployment_slot = slot
        elif record.kind == RecordKind.TOMBSTONE:
            found.tombstones[slot] = tombstone_epoch(record.body)
        else:
            raise SlotFileError(
                f"Slot {slot} of {store.slots.path} has kind {record.kind}, which is unknown here"
            )
    return found


def _settle_state(store: RingStore, found: _Found, workspace: str, deployment: str) -> KeyringState:
    root = store.root.facts
    state = found.state
    if state is None:
        if found.all_keys() or found.tombstones:
            raise SlotFileError(
                f"{store.slots.path} holds keys but its state record is damaged",
                hint="Remove the key folder to start with a cold cache.",
            )
        state = KeyringState(
            store.random_id(), root.root_id, root.persistent, 0, workspace, deployment
        )
        return _start_over(store, found, state)
    if (state.workspace, state.deployment) != (workspace, deployment):
        raise KeysError(
            f"{store.slots.path} belongs to deployment {state.workspace}/{state.deployment}, "
            f"not to {workspace}/{deployment}"
        )
    if state.root_id == root.root_id:
        return state
    if state.root_persistent:
        raise WrongRootError(
            f"The keys in {store.slots.path} belong to root {state.root_id.hex()}, "
            f"and this is the {root.kind} root {root.root_id.hex()}",
            hint="Give the right root, or remove the key folder to start with a cold cache.",
        )
    # The old root lived in memory and is gone: nothing here can be opened by anyone.
    state = replace(state, root_id=root.root_id, root_persistent=root.persistent)
    return _start_over(store, found, state)


def _start_over(store: RingStore, found: _Found, state: KeyringState) -> KeyringState:
    generations = [header.generation for _, header in found.sessions]
    state = replace(state, generation_mark=max([state.generation_mark, *generations]))
    upper = [slot for slot in (found.workspace_slot, found.deployment_slot) if slot >= 0]
    used = [slot for slot, _ in found.all_keys()] + list(found.tombstones) + upper
    if used:
        store.slots.erase(used)
    found.groups, found.tenants, found.sessions, found.tombstones = [], [], [], {}
    found.workspace_slot = found.deployment_slot = -1
    if found.state_slot < 0:
        found.state_slot = store.slots.take_free()
    store.slots.write(found.state_slot, RecordKind.STATE, state.pack())
    store.slots.sync()
    return state


def _settle_upper_keys(store: RingStore, found: _Found, now: float) -> None:
    if found.workspace_slot >= 0 and found.deployment_slot >= 0:
        store.load_upper_keys(found.workspace_slot, found.deployment_slot)
        return
    if found.all_keys():
        raise SlotFileError(
            f"The workspace or deployment key in {store.slots.path} is damaged",
            hint="Remove the key folder to start with a cold cache.",
        )
    for name in ("workspace_slot", "deployment_slot"):
        if getattr(found, name) < 0:
            setattr(found, name, store.slots.take_free())
    store.create_upper_keys(found.workspace_slot, found.deployment_slot, microseconds(now))
    store.slots.sync()


def _settle_epochs(store: RingStore, found: _Found) -> Sequence[int]:
    seen = [header.epoch for _, header in found.all_keys()]
    live = store.root.epochs()
    newest = max(seen, default=0)
    if newest > (live[-1] if live else 0):
        raise RootError(
            f"The key root is older than the keys: it ends at epoch {live[-1] if live else 0}, "
            f"and {store.slots.path} is at {newest}",
            hint="A copy of the root was restored. Remove the key folder to start with a cold "
            "cache.",
        )
    if not live:
        store.root.create_epoch(1)
        live = store.root.epochs()
    return live


class _Index:
    """Opens every group, tenant and session once, to find them by their ids from now on.

    ``stale`` are records of keys that were destroyed (an older copy was restored), ``orphans``
    those whose group or tenant is not there, ``lost`` those that do not open.
    """

    def __init__(self, store: RingStore, found: _Found, epochs: dict[int, EpochKeys]) -> None:
        self._store = store
        self.groups = GroupKeys(store)
        self.tenants: dict[bytes, TenantEntry] = {}
        self.stale: list[int] = []
        self.orphans: list[int] = []
        self.lost: list[int] = []
        self._tenants_by_id: dict[bytes, TenantEntry] = {}
        self._stale_groups: set[int] = set()
        try:
            for slot, _ in found.groups:
                self._add_group(slot, epochs)
            with self.groups.reading(found.bodies):
                self._add_records(found)
        finally:
            store.wipe_payloads()

    def _add_records(self, found: _Found) -> None:
        for slot, header in found.tenants:
            if self._covered(slot, header):
                self._add_tenant(slot, header)
        by_parent: dict[bytes, list[tuple[int, KeyHeader]]] = {}
        for slot, header in found.sessions:
            if self._covered(slot, header):
                by_parent.setdefault(header.parent_id, []).append((slot, header))
        for parent_id, sessions in by_parent.items():
            self._add_sessions(self._tenants_by_id.get(parent_id), sessions)

    def _add_group(self, slot: int, epochs: dict[int, EpochKeys]) -> None:
        try:
            if self.groups.load(slot, epochs) is None:
                self.stale.append(slot)
                self._stale_groups.add(slot)
        except WrapError:
            self.lost.append(slot)

    def _covered(self, slot: int, header: KeyHeader) -> bool:
        group = self.groups.get(slot)
        if group is None:
            dead = self.stale if group_slot(slot) in self._stale_groups else self.orphans
            dead.append(slot)
            return False
        if header.epoch in group.made_in_epochs:
            return True
        self.stale.append(slot)
        return False

    def _add_tenant(self, slot: int, header: KeyHeader) -> None:
        created, used = seconds(header.created_us), seconds(header.used_us)
        entry = TenantEntry(slot, header.key_id, b"", created, used)
        try:
            self.groups.read_tenant(entry)
        except WrapError:
            self.lost.append(slot)
            return
        name = get_name(self._store.tenant_payload[KEY_BYTES:])
        entry.tag = self._store.tags.tenant_tag(name)
        self.tenants[entry.tag] = self._tenants_by_id[entry.key_id] = entry
        self.groups.of(slot).tenants[slot] = entry

    def _add_sessions(
        self, owner: TenantEntry | None, sessions: Sequence[tuple[int, KeyHeader]]
    ) -> None:
        if owner is None:
            self.orphans += [slot for slot, _ in sessions]
            return
        store = self._store
        self.groups.read_tenant(owner)
        tenant = get_name(store.tenant_payload[KEY_BYTES:])
        parent = self.groups.tenant_wrapper(owner)
        for slot, header in sessions:
            created, used = seconds(header.created_us), seconds(header.used_us)
            entry = SessionEntry(
                slot, owner, header.key_id, b"", header.generation, created, used, used
            )
            try:
                self.groups.read_session(entry, parent)
            except WrapError:
                self.lost.append(slot)
                continue
            name = get_name(store.session_payload[3 * KEY_BYTES :])
            entry.tag = store.tags.session_tag(tenant, name)
            owner.sessions[entry.tag] = entry
            self.groups.of(slot).sessions[slot] = entry
