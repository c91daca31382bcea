"""What daemons and a key service say to each other: ``docs/spec/key-service.md``. Pure.

A frame is a 4-byte big-endian length and so many bytes of MessagePack: an array that begins with
the message's name. Session keys are in no message. Behind a ``lent`` come exactly 96 raw bytes,
which go from locked memory to locked memory.
"""

import struct
from typing import Any

import msgspec

from kvrun.keys.canary import KeyCanary
from kvrun.keys.daemon_state import DaemonState, Pages
from kvrun.keys.destruction import DestroyedKey
from kvrun.keys.errors import (
    KeyDestroyedError,
    KeysError,
    KeyUnavailableError,
    RootError,
    RootRevokedError,
    ScopeError,
    SessionLimitError,
)
from kvrun.keys.listing import SessionPage, SessionsAsked, TenantPage, TenantsAsked
from kvrun.keys.locked import Protection
from kvrun.keys.root import RootFacts
from kvrun.keys.selection import SelectedKey

VERSION = 3
TOKEN_BYTES = 32
NONCE_BYTES = 32
LENT_BYTES = 96
LENGTH_BYTES = 4
MAX_REQUEST_BYTES = 64 << 20
MAX_ANSWER_BYTES = 64 << 20


class WireError(KeysError):
    """A frame that the format does not allow; the connection ends."""

    status = 400


class Message(
    msgspec.Struct, frozen=True, array_like=True, tag_field="type", forbid_unknown_fields=True
):
    """Anything that is said. ``call`` pairs an answer with its request."""


class Challenge(Message, frozen=True, tag="challenge"):
    """The service, to whoever connects. ``service`` is random in each of its processes."""

    version: int
    nonce: bytes
    service: bytes


class Hello(Message, frozen=True, tag="hello"):
    """A daemon says who it is. ``holds`` are the ids of keys that it has from before.

    ``instance``: the public half of its instance key, with which ``signature`` is made.
    """

    version: int
    workspace: str
    deployment: str
    name: str
    instance: bytes
    nonce: bytes
    proof: bytes
    signature: bytes
    holds: list[bytes] = []


class Welcome(Message, frozen=True, tag="welcome"):
    """The service knows the token as well. ``gone`` of the keys that it holds exist no more."""

    proof: bytes
    gone: list[bytes] = []


class Facts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the service has: no secrets."""

    root: RootFacts
    epoch: int
    sessions: int
    protection: Protection


class Renew(Message, frozen=True, tag="renew"):
    """Prolong the lease. ``used``: keys and when they were last used (seconds since 1970)."""

    call: int
    used: list[tuple[bytes, float]] = []


class Renewed(Message, frozen=True, tag="renewed"):
    """Keys may be used for ``lease_s`` from before the request was sent."""

    call: int
    lease_s: float
    facts: Facts


class Acquire(Message, frozen=True, tag="acquire"):
    """A session's keys; made where there are none and ``create``."""

    call: int
    tenant: str
    session: str
    create: bool


class Lent(Message, frozen=True, tag="lent"):
    """They are the 96 bytes behind this: DEK, salt seed, name key. Times are seconds since 1970."""

    call: int
    key_id: bytes
    generation: int
    created_at: float
    used_at: float
    tenant_ref: str


class Absent(Message, frozen=True, tag="absent"):
    """There are none."""

    call: int


class Select(Message, frozen=True, tag="select"):
    """The keys of tenants, of a session of theirs, or (nil) of everybody."""

    call: int
    tenants: list[str] | None
    session: str | None


class Selected(Message, frozen=True, tag="selected"):
    """What a ``select`` found."""

    call: int
    keys: list[SelectedKey]
    canaries: list[KeyCanary]
    epoch: int


class Named(Message, frozen=True, tag="named"):
    """The ids of the tenants with these pseudonyms."""

    call: int
    refs: list[str]


class Living(Message, frozen=True, tag="living"):
    """Which of these keys (ids in hex) exist."""

    call: int
    key_ids: list[str]


class Names(Message, frozen=True, tag="names"):
    """The answer to ``named`` and ``living``."""

    call: int
    names: list[str]


class Destroy(Message, frozen=True, tag="destroy"):
    """Destroy these keys (ids in hex) and have everybody let go of them.

    ``erasure`` names the wish for ``settle``; it may be repeated, and tells who came since.
    ``owners`` is what engines call the pages.
    """

    call: int
    erasure: str
    key_ids: list[str]
    owners: list[bytes] = []


class Expire(Message, frozen=True, tag="expire"):
    """Destroy what is idle or too old; or, ``only_told``, tell what was destroyed by use."""

    call: int
    only_told: bool


class Gone(Message, frozen=True, tag="gone"):
    """What was destroyed, and which daemons were told, by process id and name."""

    call: int
    keys: list[DestroyedKey]
    told: list[tuple[int, str]] = []


class Settle(Message, frozen=True, tag="settle"):
    """What became of an erasure at these daemons.

    With ``pages_within_s`` it is answered once none of them can use its keys, and each spoke of its
    pages or that time is over; with nil at once.
    """

    call: int
    erasure: str
    daemons: list[str]
    pages_within_s: float | None


class Settled(Message, frozen=True, tag="settled"):
    """The state of each daemon, in the order that was asked."""

    call: int
    states: list[DaemonState]


class Opens(Message, frozen=True, tag="opens"):
    """Which of these copies of wrapped keys still open."""

    call: int
    canaries: list[KeyCanary]


class Opened(Message, frozen=True, tag="opened"):
    """Those that do."""

    call: int
    canaries: list[KeyCanary]


class EpochLives(Message, frozen=True, tag="epoch_lives"):
    """Whether the root still holds an epoch's key."""

    call: int
    epoch: int


class Rotate(Message, frozen=True, tag="rotate"):
    """Put a new ``epoch`` or ``root`` key in the place of the present one."""

    call: int
    what: str


class Done(Message, frozen=True, tag="done"):
    """It is so, or was done."""

    call: int
    value: bool


class ListTenants(Message, frozen=True, tag="tenants"):
    """Some of the tenants that have sessions."""

    call: int
    asked: TenantsAsked


class ListedTenants(Message, frozen=True, tag="tenants_page"):
    """Those."""

    call: int
    page: TenantPage


class ListSessions(Message, frozen=True, tag="sessions"):
    """Some of a tenant's sessions."""

    call: int
    asked: SessionsAsked


class ListedSessions(Message, frozen=True, tag="sessions_page"):
    """Those."""

    call: int
    page: SessionPage


class Failed(Message, frozen=True, tag="failed"):
    """It was not done; ``code`` names the kind of error."""

    call: int
    code: str
    message: str
    hint: str = ""


class End(Message, frozen=True, tag="end"):
    """Let go of these keys now, and say so with the same number.

    Then have engines zero the pages of the sessions, and of these ``owners``, and say that too.
    """

    number: int
    key_ids: list[bytes]
    owners: list[bytes] = []


class Ended(Message, frozen=True, tag="ended"):
    """They are zeroed."""

    number: int


class Cleared(Message, frozen=True, tag="cleared"):
    """Every engine answered; said again when pages that were held are zeroed."""

    number: int
    pages: Pages


class LeaseOver(Message, frozen=True, tag="lease_over"):
    """No key may be used from now on."""

    reason: str


class Bye(Message, frozen=True, tag="bye"):
    """A daemon holds no key any more and closes the connection."""


Request = (
    Hello | Renew | Acquire | Select | Named | Living | Destroy | Settle | Expire | Opens
    | EpochLives | Rotate | ListTenants | ListSessions | Ended | Cleared | Bye
)  # fmt: skip
Answer = (
    Challenge | Welcome | Renewed | Lent | Absent | Selected | Names | Gone | Settled | Opened
    | Done | ListedTenants | ListedSessions | Failed | End | LeaseOver
)  # fmt: skip


def encode(message: Message) -> bytes:
    """A message as a frame."""
    payload = _ENCODER.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def frame_length(head: bytes | bytearray | memoryview, *, at_most: int) -> int:
    """How many bytes follow the first four. Raises WireError."""
    length = int(_LENGTH.unpack(head)[0])
    if not 0 < length <= at_most:
        raise WireError(f"a frame of {length} bytes; 1 to {at_most} are allowed")
    return length


def decode_request(payload: bytes | bytearray) -> Request:
    """What a daemon said. Raises WireError."""
    return _decode(_REQUESTS, payload)  # type: ignore[no-any-return]


def decode_answer(payload: bytes | bytearray) -> Answer:
    """What a key service said. Raises WireError."""
    return _decode(_ANSWERS, payload)  # type: ignore[no-any-return]


def failure(call: int, error: KeysError) -> Failed:
    """An error as it is said."""
    code = next((code for code, kind in _ERRORS.items() if type(error) is kind), "keys")
    return Failed(call, code, error.message, error.hint or "")


def error_of(failed: Failed) -> KeysError:
    """The error that was said."""
    return _ERRORS.get(failed.code, KeysError)(failed.message, hint=failed.hint or None)


_ERRORS: dict[str, type[KeysError]] = {
    "keys": KeysError,
    "unavailable": KeyUnavailableError,
    "destroyed": KeyDestroyedError,
    "limit": SessionLimitError,
    "scope": ScopeError,
    "root": RootError,
    "revoked": RootRevokedError,
}
_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS = msgspec.msgpack.Decoder(Request)
_ANSWERS = msgspec.msgpack.Decoder(Answer)


def _decode(decoder: Any, payload: bytes | bytearray) -> Any:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise WireError(f"a message is malformed: {error}") from None
