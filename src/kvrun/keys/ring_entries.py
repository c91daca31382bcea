"""The key ring's index in memory: no keys and no plaintext ids, only where things are.

``tag`` finds an entry by its id, ``ref`` is its pseudonym, as logs have it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

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
    ref: str
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
    ref: str
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


class Loss(StrEnum):
    """What opening a key folder is about to take away for good."""

    OLDER_COPY = "is an older copy: keys that it lacks count as destroyed once it is opened"
    EMPTIED = "holds nothing that can be opened, and is emptied once it is opened"
    DAMAGED = "holds keys that do not open, which go once it is opened"


BeforeLoss = Callable[[Loss], None]
"""Called before anything is lost; it raises KeysError where that must not be."""


def let_it_go(_loss: Loss) -> None:
    """What a start does: it goes on with what is left."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a key folder found and repaired; nothing after a clean stop."""

    torn_slots: int = 0
    """Damaged slots: mostly first writes that were cut short, whose keys nobody ever got."""
    finished_destructions: int = 0
    """Destroyed keys whose destruction was completed now."""
    stale_slots: int = 0
    """Keys whose slot's key was destroyed (an old copy was restored): removed."""
    orphan_slots: int = 0
    """Keys without the key of their tenant or slot: removed."""
    lost_slots: int = 0
    """Keys that do not open: removed."""
    older_copy: bool = False
    """The key file ended before the newest key: what it lacks counts as destroyed."""
    started_over: bool = False
    """Nothing here could be opened by anyone: it was removed."""
    epoch_rotated: bool = False

    @property
    def text(self) -> str:
        """What users may notice, for people; empty where there is nothing."""
        if self.older_copy:
            return "an older copy at the last start: the keys that it lacks count as destroyed"
        if self.started_over:
            return "emptied at the last start: nothing in it could be opened"
        if gone := self.orphan_slots + self.lost_slots:
            return f"damaged at the last start: keys that did not open were removed ({gone})"
        return ""


def seconds(microseconds: int) -> float:
    """A record's time as seconds since 1970."""
    return microseconds / 1e6


def microseconds(time: float) -> int:
    """Seconds since 1970 as a record holds them."""
    return max(0, round(time * 1e6))


def tenant_header(entry: TenantEntry, deployment_id: bytes, made_in: int) -> KeyHeader:
    """The header to write for a tenant key in a slot whose key was made in epoch ``made_in``."""
    return KeyHeader(
        entry.key_id,
        deployment_id,
        0,
        made_in,
        microseconds(entry.created),
        microseconds(entry.used),
    )


def session_header(entry: SessionEntry, made_in: int) -> KeyHeader:
    """The header to write for session keys in a slot whose key was made in epoch ``made_in``."""
    return KeyHeader(
        entry.key_id,
        entry.tenant.key_id,
        entry.generation,
        made_in,
        microseconds(entry.created),
        microseconds(entry.used),
    )
