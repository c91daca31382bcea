"""The key ring's index in memory: no keys and no plaintext ids, only where things are."""

from dataclasses import dataclass, field

from kvrun.keys.filesystem import ClaimClass
from kvrun.keys.hierarchy import SessionScope
from kvrun.keys.records import KeyHeader
from kvrun.keys.slots import ReadBack


@dataclass(slots=True, eq=False)
class TenantEntry:
    """A tenant key's slot and readable header; ``sessions`` by tag."""

    slot: int
    key_id: bytes
    tag: bytes
    created: float
    used: float
    sessions: "dict[bytes, SessionEntry]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class SessionEntry:
    """A session's slot and readable header. Times are seconds since 1970.

    ``used`` moves with every use and is written back lazily; ``used_on_disk`` is what a restart
    would see.
    """

    slot: int
    tenant: TenantEntry
    key_id: bytes
    tag: bytes
    generation: int
    created: float
    used: float
    used_on_disk: float


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session's keys as views of locked scratch memory, valid inside ``Keyring.opened`` only."""

    scope: SessionScope
    tenant_ref: str
    dek: memoryview
    salt_seed: memoryview
    name_key: memoryview


@dataclass(frozen=True, slots=True)
class DestructionEvidence:
    """What happened to destroyed keys: slots zeroed and read back, epoch key destroyed."""

    read_back: ReadBack
    epoch_destroyed: int
    root_kind: str
    claim: ClaimClass
    method: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a key folder found and repaired; all zero after a clean stop."""

    torn_slots: int = 0
    """Damaged slots: mostly first writes that were cut short, whose keys nobody ever got."""
    finished_destructions: int = 0
    """Destroyed keys whose destruction was completed now."""
    stale_slots: int = 0
    """Keys of an epoch that was destroyed (an old copy was restored): removed."""
    orphan_slots: int = 0
    """Keys without the key of their tenant or group: removed."""
    lost_slots: int = 0
    """Keys that do not open: removed."""
    epoch_rotated: bool = False


def seconds(microseconds: int) -> float:
    """A record's time as seconds since 1970."""
    return microseconds / 1e6


def microseconds(time: float) -> int:
    """Seconds since 1970 as a record holds them."""
    return max(0, round(time * 1e6))


def tenant_header(entry: TenantEntry, deployment_id: bytes, made_in: int) -> KeyHeader:
    """The header to write for a tenant key under the group key made in epoch ``made_in``."""
    return KeyHeader(
        entry.key_id,
        deployment_id,
        0,
        made_in,
        microseconds(entry.created),
        microseconds(entry.used),
    )


def session_header(entry: SessionEntry, made_in: int) -> KeyHeader:
    """The header to write for session keys under the group key made in epoch ``made_in``."""
    return KeyHeader(
        entry.key_id,
        entry.tenant.key_id,
        entry.generation,
        made_in,
        microseconds(entry.created),
        microseconds(entry.used),
    )
