"""Opening a key folder: check whose it is, finish what a crash cut short, build the index."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvrun.keys.errors import KeysError, RootError, SlotFileError, WrongRootError
from kvrun.keys.hierarchy import RingContext
from kvrun.keys.records import (
    KeyHeader,
    KeyringState,
    RecordKind,
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
from kvrun.keys.ring_rotation import rotate
from kvrun.keys.ring_store import EpochKeys, RingStore


@dataclass(slots=True)
class OpenedRing:
    """What the key ring starts from."""

    state: KeyringState
    state_slot: int
    generation: int
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
    store.ring = RingContext(state.keyring_id, workspace, deployment)
    _settle_upper_keys(store, found, now)
    live = _settle_epochs(store, found)
    report = RecoveryReport(torn_slots=torn, finished_destructions=len(found.tombstones))

    stale = [slot for slot, header in found.all_keys() if header.epoch < live[0]]
    tenants, orphans = _index(found, live[0])
    if stale or orphans:
        store.slots.erase([*stale, *orphans])
    report = replace(report, stale_slots=len(stale), orphan_slots=len(orphans))

    epoch = store.epoch(live[0])
    unfinished = any(number in live for number in found.tombstones.values())
    if len(live) == 2 or unfinished:
        rotation = rotate(store, epoch, {entry.tag: entry for entry in tenants})
        epoch, by_tag = rotation.epoch, rotation.tenants
        report = replace(report, epoch_rotated=True, lost_slots=rotation.lost_slots)
    else:
        by_tag = {entry.tag: entry for entry in tenants}
    if found.tombstones:
        store.slots.erase(list(found.tombstones))
    generation = max([state.generation_mark, *(header.generation for _, header in found.sessions)])
    return OpenedRing(state, found.state_slot, generation, by_tag, epoch, report)


@dataclass(slots=True)
class _Found:
    state: KeyringState | None = None
    state_slot: int = -1
    workspace_slot: int = -1
    deployment_slot: int = -1
    tenants: list[tuple[int, KeyHeader]] = field(default_factory=list)
    sessions: list[tuple[int, KeyHeader]] = field(default_factory=list)
    tombstones: dict[int, int] = field(default_factory=dict)  # slot -> epoch

    def all_keys(self) -> list[tuple[int, KeyHeader]]:
        return self.tenants + self.sessions


def _scan(store: RingStore) -> _Found:
    found = _Found()
    for slot, record in store.slots.records():
        if record.kind == RecordKind.STATE:
            found.state, found.state_slot = KeyringState.unpack(record.body), slot
        elif record.kind == RecordKind.WORKSPACE_KEY:
            found.workspace_slot = slot
        elif record.kind == RecordKind.DEPLOYMENT_KEY:
            found.deployment_slot = slot
        elif record.kind == RecordKind.TENANT_KEY:
            found.tenants.append((slot, key_header(record.body)))
        elif record.kind == RecordKind.SESSION_KEYS:
            found.sessions.append((slot, key_header(record.body)))
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
    found.tenants, found.sessions, found.tombstones = [], [], {}
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


def _index(found: _Found, oldest: int) -> tuple[list[TenantEntry], list[int]]:
    by_id: dict[bytes, TenantEntry] = {}
    for slot, header in found.tenants:
        if header.epoch >= oldest:
            created, used = seconds(header.created_us), seconds(header.used_us)
            by_id[header.key_id] = TenantEntry(
                slot, header.key_id, header.tag, header.epoch, created, used
            )
    orphans = []
    for slot, header in found.sessions:
        if header.epoch < oldest:
            continue
        owner = by_id.get(header.parent_id)
        if owner is None:
            orphans.append(slot)
            continue
        used = seconds(header.used_us)
        owner.sessions[header.tag] = SessionEntry(
            slot,
            owner,
            header.key_id,
            header.tag,
            header.generation,
            header.epoch,
            seconds(header.created_us),
            used,
            used,
        )
    return list(by_id.values()), orphans
