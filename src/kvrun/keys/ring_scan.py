"""What the two files of a key ring hold, before anything of it is opened."""

from dataclasses import dataclass, field

from kvrun.keys.errors import SlotFileError
from kvrun.keys.records import (
    KeyHeader,
    KeyringState,
    Mark,
    RecordKind,
    key_header,
    tombstone_epoch,
)
from kvrun.keys.ring_store import FIRST_TABLE_SLOT, RingStore


@dataclass(slots=True)
class FoundRecords:
    """Records by kind, each with its slot; ``earlier`` are slots of the format before."""

    state: KeyringState | None = None
    state_slot: int = -1
    tenants: list[tuple[int, KeyHeader]] = field(default_factory=list)
    sessions: list[tuple[int, KeyHeader]] = field(default_factory=list)
    tombstones: dict[int, int] = field(default_factory=dict)  # slot -> epoch
    bodies: dict[int, bytes] = field(default_factory=dict)  # of tenants and sessions
    earlier: list[int] = field(default_factory=list)
    upper_state: KeyringState | None = None
    upper_keys: int = 0
    mark: Mark | None = None
    tables: list[tuple[int, KeyHeader]] = field(default_factory=list)  # by number

    def records(self) -> list[tuple[int, KeyHeader]]:
        """Of tenants and sessions."""
        return self.tenants + self.sessions


def scan_records(store: RingStore) -> FoundRecords:
    """Read every record of both files. Raises SlotFileError for a kind that is unknown here."""
    found = FoundRecords()
    lists = {RecordKind.TENANT_KEY: found.tenants, RecordKind.SESSION_KEYS: found.sessions}
    for slot, record in store.slots.records():
        if record.kind in lists:
            lists[RecordKind(record.kind)].append((slot, key_header(record.body)))
            found.bodies[slot] = bytes(record.body)
        elif record.kind == RecordKind.STATE:
            found.state_slot, body = slot, bytes(record.body)
        elif record.kind == RecordKind.TOMBSTONE:
            found.tombstones[slot] = tombstone_epoch(record.body)
        elif record.kind in _EARLIER_KINDS:
            found.earlier.append(slot)
        else:
            raise _unknown(store.slots.path, slot, record.kind)
    if found.state_slot >= 0:
        if _is_earlier_state(body):
            body = body[:_EPOCH_AT] + bytes(8) + body[_EPOCH_AT:]
        found.state = KeyringState.unpack(memoryview(body))
    for slot, record in store.upper.records():
        if record.kind == RecordKind.SLOT_KEYS:
            found.tables.append((slot - FIRST_TABLE_SLOT, key_header(record.body)))
        elif record.kind in (RecordKind.WORKSPACE_KEY, RecordKind.DEPLOYMENT_KEY):
            found.upper_keys += 1
        elif record.kind == RecordKind.STATE:
            found.upper_state = KeyringState.unpack(record.body)
        elif record.kind == RecordKind.MARK:
            found.mark = Mark.unpack(record.body)
        else:
            raise _unknown(store.upper.path, slot, record.kind)
    return found


def _unknown(path: object, slot: int, kind: int) -> SlotFileError:
    return SlotFileError(f"Slot {slot} of {path} has kind {kind}, which is unknown here")


def _is_earlier_state(body: bytes) -> bool:
    """The state of the format before had no epoch: its names begin eight bytes earlier.

    In a state of today those places are high bytes of an epoch, so 0, and no body is so short.
    """
    try:
        deployment = _EPOCH_AT + 2 + body[_EPOCH_AT + 1]
        return len(body) == deployment + 1 + body[deployment]
    except IndexError:
        return False


_EARLIER_KINDS = (RecordKind.WORKSPACE_KEY, RecordKind.DEPLOYMENT_KEY, 7)
_EPOCH_AT = 40
