"""The durable key ring of one deployment: create, find, open, destroy, rotate, recover.

Destroying is: tombstone the slot (durable: from here on the key is gone) -> zero the key's half
and read it back -> new epoch key, new keys for the victims' slots, all slots' keys moved under it,
old epoch key destroyed -> free the slot. Each step is synced before the next, and opening the
folder finishes what a crash cut short.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from kvrun.keys.hierarchy import session_ref, tenant_ref
from kvrun.keys.records import (
    KEY_BYTES,
    KeyringState,
    RecordKind,
    get_name,
    pack_tombstone,
    put_name,
)
from kvrun.keys.ring_entries import (
    BeforeLoss,
    DestructionEvidence,
    OpenedSession,
    RecoveryReport,
    SessionEntry,
    TenantEntry,
    let_it_go,
    microseconds,
    session_header,
    tenant_header,
)
from kvrun.keys.ring_recovery import recover
from kvrun.keys.ring_rotation import rotate
from kvrun.keys.ring_store import RingStore
from kvrun.keys.root import EpochEvidence, Root, RotatableRoot
from kvrun.keys.slot_keys import SlotKeys
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
        before_loss: BeforeLoss = let_it_go,
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
            found = recover(self._store, workspace, deployment, now(), before_loss)
        except BaseException:
            self.close()
            raise
        self._state: KeyringState = found.state
        self._state_slot = found.state_slot
        self._generation = found.generation
        self._slot_keys: SlotKeys = found.slot_keys
        self._tenants: dict[bytes, TenantEntry] = found.tenants
        self._sessions = {entry.key_id: entry for entry in found.sessions.values()}
        self.recovery: RecoveryReport = found.report

    @property
    def store(self) -> RingStore:
        """The slot files, root and upper keys below this ring."""
        return self._store

    @property
    def epoch(self) -> int:
        """Number of the live epoch."""
        return self._state.epoch

    @property
    def slot_keys(self) -> SlotKeys:
        """The keys of the slots."""
        return self._slot_keys

    @property
    def by_tag(self) -> Mapping[bytes, TenantEntry]:
        """Every tenant with a key, by tag, as it changes."""
        return self._tenants

    def tenants(self) -> list[TenantEntry]:
        """Every tenant with a key."""
        return list(self._tenants.values())

    def sessions(self) -> list[SessionEntry]:
        """Every session with a key."""
        return list(self._sessions.values())

    def session_of(self, key_id: bytes) -> SessionEntry | None:
        """The session whose key has that id."""
        return self._sessions.get(key_id)

    @property
    def session_count(self) -> int:
        """Number of sessions with a key."""
        return len(self._sessions)

    def find_tenant(self, tenant: str) -> TenantEntry | None:
        """The tenant, if it has a key."""
        self.check()
        return self._tenants.get(self._store.tags.tenant_tag(tenant))

    def find(self, tenant: str, session: str) -> SessionEntry | None:
        """The session, if it has a key."""
        entry = self.find_tenant(tenant)
        if entry is None:
            return None
        return entry.sessions.get(self._store.tags.session_tag(tenant, session))

    def create(self, tenant: str, session: str, now: float) -> SessionEntry:
        """Random keys for a session that has none; durable when this returns."""
        self.check()
        store = self._store
        owner = self.find_tenant(tenant)
        taken: list[int] = []
        try:
            for _ in range(1 if owner else 2):
                taken.append(store.slots.take_free())
                self._slot_keys.reserve(taken[-1])
        except OSError as error:
            store.slots.give_back(taken)
            raise KeyUnavailableError(
                f"No room for a new key in {store.slots.path}: {error.strerror}"
            ) from error
        slot, tenant_slot = taken[0], owner.slot if owner else taken[1]
        with self._changing("creating a session key"):
            for one in (slot, tenant_slot):
                self._slot_keys.ensure(one, store.epoch(self.epoch), microseconds(now))
            if owner is None:
                owner = self._create_tenant(tenant_slot, tenant, now)
            else:
                self._slot_keys.read_tenant(owner)
            payload = store.session_payload
            store.random_into(payload[: 3 * KEY_BYTES])
            put_name(payload[3 * KEY_BYTES :], session)
            name_key = payload[2 * KEY_BYTES : 3 * KEY_BYTES]
            entry = SessionEntry(
                slot=slot,
                tenant=owner,
                key_id=store.random_id(),
                tag=store.tags.session_tag(tenant, session),
                ref=session_ref(name_key, store.ring.scope(tenant, session)),
                generation=self._next_generation(),
                created=now,
                used=now,
                used_on_disk=now,
            )
            self._slot_keys.write_record(
                slot,
                RecordKind.SESSION_KEYS,
                session_header(entry, self._slot_keys.made_in(slot)),
                self._slot_keys.tenant_wrapper(owner),
                payload,
            )
            store.slots.sync()
            store.write_mark()  # after it, so that no mark is beyond what a power cut leaves
            self._tenants[owner.tag] = owner
            owner.sessions[entry.tag] = self._sessions[entry.key_id] = entry
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
        store = self._store
        try:
            tenant = self._tenant_name(owner)
            parent = self._slot_keys.tenant_wrapper(owner)

            def open_session(entry: SessionEntry) -> OpenedSession:
                try:
                    self._slot_keys.read_session(entry, parent)
                except (WrapError, SlotFileError, OSError) as error:
                    raise KeyUnavailableError(f"A session key does not open: {error}") from error
                payload = store.session_payload
                scope = store.ring.scope(tenant, get_name(payload[3 * KEY_BYTES :]))
                keys = (payload[at : at + KEY_BYTES] for at in range(0, 3 * KEY_BYTES, KEY_BYTES))
                return OpenedSession(scope, owner.ref, *keys)

            yield open_session
        finally:
            store.wipe_scratch()

    def tenant_name(self, entry: TenantEntry) -> str:
        """The tenant's id; KeyUnavailableError when its slot does not open."""
        try:
            return self._tenant_name(entry)
        finally:
            self._store.wipe_scratch()

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
            for entry in sorted(entries, key=_slot):  # so that each table is opened once
                self._slot_keys.write_use(entry)
            self._store.slots.sync()

    def put_away(self) -> None:
        """Zero every key in memory; until ``take_up`` nothing can be opened or changed."""
        if not self._away:
            self._away = True
            self._store.put_away()

    def take_up(self) -> None:
        """Open the keys again through the root. Raises KeysError when they do not open."""
        if not self._away:
            return
        try:
            self._store.take_up()
        except BaseException:
            self._store.put_away()
            raise
        self._away = False

    def check(self) -> None:
        """Raises KeyUnavailableError while nothing can be opened or changed."""
        if self._failure is not None:
            raise KeyUnavailableError(f"Keys cannot be used: {self._failure}")
        if self._away:
            raise KeyUnavailableError("Keys cannot be used: the key root did not confirm them")

    def close(self) -> None:
        """Zero every key in memory and let the folder go."""
        self._failure = self._failure or "the key service is closed"
        self._store.close()
        self._lock.close()

    def _rotate(self) -> EpochEvidence:
        """A new epoch, with new keys for the slots of the tombstones, which are freed."""
        slots, store = self._unfinished or [], self._store
        evidence = rotate(store, self._slot_keys, self.epoch, slots)
        self._state = replace(self._state, epoch=self.epoch + 1)
        store.write_state(self._state, self._state_slot)
        store.slots.erase(slots)
        self._unfinished = None
        return evidence

    def _drop(self, entries: Sequence[TenantEntry | SessionEntry]) -> None:
        """Take entries out of the index."""
        for entry in entries:
            if isinstance(entry, TenantEntry):
                self._tenants.pop(entry.tag, None)
            else:
                entry.tenant.sessions.pop(entry.tag, None)
                self._sessions.pop(entry.key_id, None)

    def _tenant_name(self, entry: TenantEntry) -> str:
        """As ``tenant_name``; the tenant's key is in the store's scratch afterwards."""
        self.check()
        try:
            self._slot_keys.read_tenant(entry)
            return get_name(self._store.tenant_payload[KEY_BYTES:])
        except (WrapError, SlotFileError, OSError) as error:
            raise KeyUnavailableError(f"A tenant key does not open: {error}") from error

    def _create_tenant(self, slot: int, tenant: str, now: float) -> TenantEntry:
        store, ring, payload = self._store, self._store.ring, self._store.tenant_payload
        store.random_into(payload[:KEY_BYTES])
        put_name(payload[KEY_BYTES:], tenant)
        ref = tenant_ref(payload[:KEY_BYTES], ring.workspace, ring.deployment, tenant)
        entry = TenantEntry(slot, store.random_id(), store.tags.tenant_tag(tenant), ref, now, now)
        self._slot_keys.write_record(
            slot,
            RecordKind.TENANT_KEY,
            tenant_header(entry, store.deployment_id, self._slot_keys.made_in(slot)),
            self._slot_keys.top_wrapper(),
            payload,
        )
        return entry

    def _next_generation(self) -> int:
        self._generation += 1
        if self._generation > self._state.generation_mark:
            mark = self._generation + GENERATIONS_AT_ONCE
            self._state = replace(self._state, generation_mark=mark)
            self._store.write_state(self._state, self._state_slot)
            self._store.upper.sync()
        return self._generation

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        self.check()
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
            self._store.wipe_scratch()


def _slot(entry: SessionEntry) -> int:
    return entry.slot
