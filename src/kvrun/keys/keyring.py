"""The durable key ring of one deployment: create, find, open, destroy, rotate, recover.

Destroying is: tombstone the slot (durable: from here on the key is gone) -> zero the key's half
and read it back -> new epoch key, new keys for the victims' groups, survivors moved, old epoch key
destroyed -> free the slot. Each step is synced before the next, and opening the folder finishes
what a crash cut short.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from kvrun.keys.entropy import RandomInto, getrandom
from kvrun.keys.errors import (
    KeysError,
    KeyUnavailableError,
    RootError,
    RootRevokedError,
    RootUnavailableError,
    SlotFileError,
    WrapError,
)
from kvrun.keys.folder import FolderLock, private_folder
from kvrun.keys.hierarchy import SessionScope, tenant_ref
from kvrun.keys.records import (
    KEY_BYTES,
    KeyringState,
    RecordKind,
    get_name,
    pack_tombstone,
    put_name,
)
from kvrun.keys.ring_entries import (
    DestructionEvidence,
    OpenedSession,
    RecoveryReport,
    SessionEntry,
    TenantEntry,
    microseconds,
    session_header,
    tenant_header,
)
from kvrun.keys.ring_groups import GroupKeys, group_slot
from kvrun.keys.ring_recovery import recover
from kvrun.keys.ring_rotation import rotate
from kvrun.keys.ring_store import EpochKeys, RingStore
from kvrun.keys.root import EpochEvidence, Root, RotatableRoot
from kvrun.keys.slots import OS_IO, SlotIO

SLOTS_NAME = "keys.slots"
GENERATIONS_AT_ONCE = 1000


class Keyring:
    """Keys on disk and the index of them in memory. Not thread-safe; one per folder.

    Any failure while slots are being changed leaves the memory's picture uncertain: the ring then
    refuses everything until the folder is opened again, which recovers.
    """

    def __init__(
        self,
        folder: Path,
        root: Root,
        *,
        workspace: str,
        deployment: str,
        now: Callable[[], float],
        strict: bool = False,
        random_into: RandomInto = getrandom,
        io: SlotIO = OS_IO,
    ) -> None:
        private_folder(folder, purpose="key")
        self._lock = FolderLock(folder, purpose="key")
        self._failure: str | None = None
        self._away = False
        # Tombstones whose rotation is not over.
        self._unfinished: list[int] | None = None
        self._root = root
        try:
            self._store = RingStore(
                folder / SLOTS_NAME, root, strict=strict, random_into=random_into, io=io
            )
        except BaseException:
            self._lock.close()
            raise
        try:
            found = recover(self._store, workspace, deployment, now())
        except BaseException:
            self.close()
            raise
        self._state: KeyringState = found.state
        self._state_slot = found.state_slot
        self._generation = found.generation
        self._groups: GroupKeys = found.groups
        self._tenants: dict[bytes, TenantEntry] = found.tenants
        self._epoch: EpochKeys = found.epoch
        self.recovery: RecoveryReport = found.report

    @property
    def store(self) -> RingStore:
        """The slot file, root and upper keys below this ring."""
        return self._store

    @property
    def epoch(self) -> int:
        """Number of the live epoch."""
        return self._epoch.epoch

    @property
    def groups(self) -> GroupKeys:
        """The keys of the groups of slots."""
        return self._groups

    def tenants(self) -> list[TenantEntry]:
        """Every tenant with a key."""
        return list(self._tenants.values())

    def sessions(self) -> list[SessionEntry]:
        """Every session with a key."""
        # By group: there are far fewer of them than tenants.
        return [entry for group in self._groups for entry in group.sessions.values()]

    @property
    def session_count(self) -> int:
        """Number of sessions with a key."""
        return sum(len(group.sessions) for group in self._groups)

    def find_tenant(self, tenant: str) -> TenantEntry | None:
        """The tenant, if it has a key."""
        self._check()
        return self._tenants.get(self._store.tags.tenant_tag(tenant))

    def find(self, tenant: str, session: str) -> SessionEntry | None:
        """The session, if it has a key."""
        entry = self.find_tenant(tenant)
        if entry is None:
            return None
        return entry.sessions.get(self._store.tags.session_tag(tenant, session))

    def create(self, tenant: str, session: str, now: float) -> SessionEntry:
        """Random keys for a session that has none; durable when this returns."""
        self._check()
        store = self._store
        owner = self.find_tenant(tenant)
        try:
            slot = store.slots.take_free()
            tenant_slot = store.slots.take_free() if owner is None else owner.slot
        except OSError as error:
            raise KeyUnavailableError(
                f"No room for a new key in {store.slots.path}: {error.strerror}"
            ) from error
        with self._changing("creating a session key"):
            if owner is None:
                owner = self._create_tenant(tenant_slot, tenant, now)
            else:
                self._groups.read_tenant(owner)
            tag = store.tags.session_tag(tenant, session)
            entry = SessionEntry(
                slot=slot,
                tenant=owner,
                key_id=store.random_id(),
                tag=tag,
                generation=self._next_generation(),
                created=now,
                used=now,
                used_on_disk=now,
            )
            payload = store.session_payload
            store.random_into(payload[: 3 * KEY_BYTES])
            put_name(payload[3 * KEY_BYTES :], session)
            group = self._groups.ensure(slot, self._epoch, microseconds(now))
            self._groups.write_record(
                slot,
                RecordKind.SESSION_KEYS,
                session_header(entry, group.made_in),
                self._groups.tenant_wrapper(owner),
                payload,
            )
            store.slots.sync()
            self._tenants[owner.tag] = owner
            self._groups.of(owner.slot).tenants[owner.slot] = owner
            owner.sessions[tag] = group.sessions[slot] = entry
            return entry

    @contextmanager
    def opened(self, entry: SessionEntry) -> Iterator[OpenedSession]:
        """The session's keys, for the length of the ``with`` block.

        Raises KeyUnavailableError when the slot does not open.
        """
        with self.opening(entry.tenant) as open_session:
            yield open_session(entry)

    @contextmanager
    def opening(self, owner: TenantEntry) -> Iterator[Callable[[SessionEntry], OpenedSession]]:
        """Opens sessions of one tenant, one after the other; raises as ``opened``."""
        store, ring = self._store, self._store.ring
        try:
            tenant, ref = self._tenant_names(owner)
            parent = self._groups.tenant_wrapper(owner)

            def open_session(entry: SessionEntry) -> OpenedSession:
                try:
                    self._groups.read_session(entry, parent)
                except (WrapError, SlotFileError, OSError) as error:
                    raise KeyUnavailableError(f"A session key does not open: {error}") from error
                payload = store.session_payload
                session = get_name(payload[3 * KEY_BYTES :])
                scope = SessionScope(ring.workspace, ring.deployment, tenant, session)
                keys = (payload[at : at + KEY_BYTES] for at in range(0, 3 * KEY_BYTES, KEY_BYTES))
                return OpenedSession(scope, ref, *keys)

            yield open_session
        finally:
            store.wipe_payloads()

    def tenant_ref(self, entry: TenantEntry) -> str:
        """The tenant's pseudonym; KeyUnavailableError when its slot does not open."""
        return self.tenant_names(entry)[1]

    def tenant_names(self, entry: TenantEntry) -> tuple[str, str]:
        """The tenant's id and pseudonym; KeyUnavailableError when its slot does not open."""
        try:
            return self._tenant_names(entry)
        finally:
            self._store.wipe_payloads()

    def destroy(
        self, sessions: Sequence[SessionEntry], tenants: Sequence[TenantEntry] = ()
    ) -> DestructionEvidence:
        """Destroy sessions, and tenants with all their sessions, in one rotation.

        When this returns, neither the folder as it is nor any older copy of it opens them.
        """
        with self._changing("destroying keys"):
            victims = {entry.slot: entry for entry in sessions}
            for tenant in tenants:
                victims.update({entry.slot: entry for entry in tenant.sessions.values()})
            slots = [*victims, *(tenant.slot for tenant in tenants)]
            store = self._store
            for slot in slots:
                store.slots.write(slot, RecordKind.TOMBSTONE, pack_tombstone(self.epoch))
            store.slots.sync()
            read_back = store.slots.zero_stale_halves(slots)
            self._drop([*victims.values(), *tenants])
            self._unfinished = slots
            evidence = self._rotate()
            return DestructionEvidence(
                read_back, evidence.epoch, evidence.root_kind, evidence.claim, evidence.method
            )

    def finish(self) -> None:
        """Finish a destruction whose rotation the root did not answer for.

        Raises KeyUnavailableError while it still does not.
        """
        with self._changing("finishing a destruction"):
            pass

    def rotate_root(self) -> None:
        """Replace the root's root key. Raises RootError when the root cannot do that by itself."""
        root = self._root
        if not isinstance(root, RotatableRoot):
            raise RootError(
                f"The key of a {root.facts.kind} root is rotated where it is kept, not here",
                hint="Every erasure, and `kvrun keys rotate epoch`, makes a new epoch key there.",
            )
        with self._changing("rotating the root key"):
            root.begin_rotation()
            self._store.finish_root_rotation(root)

    def persist_use(self, entries: Sequence[SessionEntry]) -> None:
        """Write the entries' last use to their slots, with one sync for all."""
        if not entries:
            return
        with self._changing("writing last use"):
            for slot, members in groupby(sorted(entries, key=_slot), lambda e: group_slot(e.slot)):
                self._groups.rewrap(self._groups.of(slot), list(members))
            self._store.slots.sync()

    def put_away(self) -> None:
        """Zero every key in memory; until ``take_up`` nothing can be opened or changed."""
        if not self._away:
            self._away = True
            self._groups.put_away()
            self._epoch.close()
            self._store.put_away()

    def take_up(self) -> None:
        """Open the keys again through the root. Raises KeysError when they do not open."""
        if not self._away:
            return
        try:
            self._store.take_up()
            epochs = {n: self._store.epoch(n) for n in self._groups.epochs() or {self.epoch}}
            try:
                self._groups.take_up(epochs)
                kept = epochs.pop(self.epoch, self._epoch)
            finally:
                # While a rotation is not over, groups may be under the next epoch already.
                for keys in epochs.values():
                    keys.close()
        except BaseException:
            self._groups.put_away()
            self._store.put_away()
            raise
        self._epoch, self._away = kept, False

    def close(self) -> None:
        """Zero every key in memory and let the folder go."""
        self._failure = self._failure or "the key service is closed"
        self._store.close()
        self._lock.close()

    def _rotate(self) -> EpochEvidence:
        """A new epoch, with new keys for the groups of the tombstones, which are freed."""
        slots = self._unfinished or []
        renewed = {group_slot(slot) for slot in slots}
        rotation = rotate(self._store, self._epoch, self._groups, renewed)
        self._epoch = rotation.epoch
        self._drop(rotation.lost)
        self._store.slots.erase(slots)
        self._unfinished = None
        return rotation.evidence

    def _drop(self, entries: Sequence[TenantEntry | SessionEntry]) -> None:
        """Take entries out of the index."""
        for entry in entries:
            group = self._groups.of(entry.slot)
            if isinstance(entry, TenantEntry):
                self._tenants.pop(entry.tag, None)
                group.tenants.pop(entry.slot, None)
            else:
                entry.tenant.sessions.pop(entry.tag, None)
                group.sessions.pop(entry.slot, None)

    def _tenant_names(self, entry: TenantEntry) -> tuple[str, str]:
        """As ``tenant_names``; the tenant's key is in the store's scratch afterwards."""
        self._check()
        payload, ring = self._store.tenant_payload, self._store.ring
        try:
            self._groups.read_tenant(entry)
            name = get_name(payload[KEY_BYTES:])
            return name, tenant_ref(payload[:KEY_BYTES], ring.workspace, ring.deployment, name)
        except (WrapError, SlotFileError, OSError) as error:
            raise KeyUnavailableError(f"A tenant key does not open: {error}") from error

    def _create_tenant(self, slot: int, tenant: str, now: float) -> TenantEntry:
        store = self._store
        entry = TenantEntry(slot, store.random_id(), store.tags.tenant_tag(tenant), now, now)
        store.random_into(store.tenant_payload[:KEY_BYTES])
        put_name(store.tenant_payload[KEY_BYTES:], tenant)
        group = self._groups.ensure(slot, self._epoch, microseconds(now))
        self._groups.write_record(
            slot,
            RecordKind.TENANT_KEY,
            tenant_header(entry, store.deployment_id, group.made_in),
            store.deriver.record_wrapper(store.deployment_key, store.deployment_id),
            store.tenant_payload,
        )
        return entry

    def _next_generation(self) -> int:
        self._generation += 1
        if self._generation > self._state.generation_mark:
            mark = self._generation + GENERATIONS_AT_ONCE
            self._state = replace(self._state, generation_mark=mark)
            self._store.slots.write(self._state_slot, RecordKind.STATE, self._state.pack())
        return self._generation

    def _check(self) -> None:
        if self._failure is not None:
            raise KeyUnavailableError(f"Keys cannot be used: {self._failure}")
        if self._away:
            raise KeyUnavailableError("Keys cannot be used: the key root did not confirm them")

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        self._check()
        try:
            if self._unfinished is not None:
                self._rotate()
            yield
        except (RootUnavailableError, RootRevokedError) as error:
            # Nothing is uncertain: what was begun goes on from where it is.
            raise KeyUnavailableError(f"{what} waits for the key root: {error}") from error
        except (OSError, KeysError) as error:
            self._failure = f"{what} failed ({error}); the key folder must be opened again"
            raise KeyUnavailableError(f"Keys cannot be used: {self._failure}") from error
        finally:
            self._store.wipe_payloads()


def _slot(entry: SessionEntry) -> int:
    return entry.slot
