"""The daemon's wire messages: tagged MessagePack structs in length-prefixed frames.

A frame is a 4-byte big-endian length and that many bytes of one MessagePack map whose ``t`` names
the message. ``docs/spec/instance-protocol.md`` describes the exchange; both ends refuse a frame
above :data:`MAX_FRAME_BYTES`, an unknown message and a field of another type.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

import msgspec

from kvrun.claims.page_owner import PAGE_OWNER_BYTES as PAGE_OWNER_BYTES
from kvrun.claims.page_owner import page_owner as page_owner
from kvrun.errors import KvrunError
from kvrun.instance.claim_messages import ClaimMessage
from kvrun.instance.message import Message as Message

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 16 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class ProtocolError(KvrunError):
    """The other end of the socket sent something that the protocol does not allow."""


class Role(enum.StrEnum):
    """What a connection may do; each role has a launch token of its own."""

    SCHEDULER = "scheduler"
    WORKER = "worker"
    GATEWAY = "gateway"
    ADMIN = "admin"


class Verdict(enum.StrEnum):
    """Whether a request may use the governed cache."""

    ADMITTED = "admitted"
    DENIED = "denied"


class GroupLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One KV cache group of the engine.

    ``hashes_per_chunk`` counts the engine's block hashes that one block (chunk) spans, so block
    ``i`` is named by hash ``(i + 1) * hashes_per_chunk - 1``; ``layers`` names its layers.
    """

    tokens_per_block: int
    hashes_per_chunk: int
    layers: str


class Hello(Message, frozen=True, tag="hello"):
    """First message of every connection.

    A scheduler with ``scrubs`` answers ``Scrub``; one without is never asked. One with
    ``announced`` gets claims by ``Announced``, since its requests carry none.
    """

    version: int
    role: Role
    token: str
    pid: int
    software: str
    fingerprint: bytes = b""
    groups: tuple[GroupLayout, ...] = ()
    block_bytes: tuple[int, ...] = ()
    rank: int = 0
    world_size: int = 1
    context_window: int = 0
    scrubs: bool = False
    announced: bool = False


class Welcome(Message, frozen=True, tag="welcome"):
    """The daemon's answer; a worker's carries its staging memory as a descriptor beside it."""

    version: int
    instance_id: str
    workspace: str
    deployment: str
    stateless: bool
    claim_keys: dict[str, bytes]
    context_window: int
    match_deadline_ms: int
    transfer_deadline_ms: int
    slot_bytes: int = 0
    slots: int = 0


class Refused(Message, frozen=True, tag="refused"):
    """The connection or one message was refused; ``reason`` is for people."""

    reason: str
    hint: str = ""


class Match(Message, frozen=True, tag="match"):
    """May this request use the cache, and which of its blocks exist? Sent once a request.

    ``hashes`` is the concatenation of its block hashes of ``hash_bytes`` each. With ``handle`` an
    admitted request asks again (after preemption or a failed load), and ``claim`` is not read.
    ``traceparent`` (W3C Trace Context, or empty) places the daemon's spans in a trace.
    """

    request: int
    claim: str
    salt: str
    hash_bytes: int
    hashes: bytes
    prompt_tokens: int
    handle: int = 0
    traceparent: str = ""


class Matched(Message, frozen=True, tag="matched"):
    """One byte a block in ``tiers[group]``: 0 is a miss, else the tier that holds it.

    The blocks stay pinned until the request's ``Finished``.
    """

    request: int
    verdict: Verdict
    reason: str
    handle: int
    tiers: tuple[bytes, ...]


class Started(Message, frozen=True, tag="started"):
    """The engine scheduled the request: how many prompt tokens came from where."""

    handle: int
    engine_tokens: int
    loaded_tokens: int


class Finished(Message, frozen=True, tag="finished"):
    """The request ended; its handle opens and seals nothing more once its transfers are done."""

    handle: int


class Revoked(Message, frozen=True, tag="revoked"):
    """Push to schedulers: these handles lost their key."""

    handles: tuple[int, ...]


class Scrub(Message, frozen=True, tag="scrub"):
    """Push to schedulers: sessions were erased; evict their pages and zero those that are free.

    ``owners`` holds one :func:`page_owner` a session; with ``everything`` all pages are meant.
    Answered by ``Scrubbed`` with the same ``call`` when every rank is done, and again with what a
    request still held when that is freed and zeroed. The same ``call`` may be asked again.
    """

    call: int
    owners: tuple[bytes, ...]
    everything: bool = False


class Scrubbed(Message, frozen=True, tag="scrubbed"):
    """Pages taken out of the prefix cache, zeroed, and still held by running requests, in all."""

    call: int
    evicted: int
    scrubbed: int
    held: int


class BlockAt(msgspec.Struct, frozen=True, array_like=True):
    """One block and its place in the staging memory."""

    block_hash: bytes
    group: int
    index: int
    slot: int
    generation: int


class Load(Message, frozen=True, tag="load"):
    """Open these blocks into these slots."""

    job: int
    handle: int
    blocks: tuple[BlockAt, ...]


class Loaded(Message, frozen=True, tag="loaded"):
    """Some blocks of a load are in their slots, or could not be opened."""

    job: int
    slots: tuple[int, ...]
    failed: tuple[int, ...]


class Store(Message, frozen=True, tag="store"):
    """Seal these blocks out of these slots. Answered by ``Released`` only."""

    handle: int
    blocks: tuple[BlockAt, ...]


class Release(Message, frozen=True, tag="release"):
    """The worker copied these slots out; zero them."""

    slots: tuple[int, ...]
    generations: tuple[int, ...]


class Released(Message, frozen=True, tag="released"):
    """These slots are zero and free again."""

    slots: tuple[int, ...]
    generations: tuple[int, ...]


class OpenSession(Message, frozen=True, tag="open_session"):
    """Gateway: the salt and generation of a session, its key made if it has none."""

    call: int
    tenant: str
    session: str


class SessionOpened(Message, frozen=True, tag="session_opened"):
    """The answer to ``OpenSession``; with ``status`` other than 200 an error.

    ``elsewhere``: regions of the same deployment where a tenant may be processed who may not here.
    """

    call: int
    status: int
    salt: str
    generation: int
    reason: str
    elsewhere: tuple[str, ...] = ()


class SessionInvalidated(Message, frozen=True, tag="session_invalidated"):
    """Push to gateways: forget this session's salt; an empty session means every session of the
    tenant, an empty tenant everything.

    With ``erasing`` the session's erasure begins: its running requests are to end.
    """

    tenant: str
    session: str
    erasing: bool = False


class EraseUser(Message, frozen=True, tag="erase_user"):
    """Gateway: erase a session, or with an empty ``session`` the whole tenant.

    ``requester`` names who asked; ``reference`` and ``legal_basis`` go into the certificate.
    """

    call: int
    tenant: str
    session: str
    requester: str
    reference: str
    legal_basis: str


class UserErased(Message, frozen=True, tag="user_erased"):
    """The answer to ``EraseUser``: the certificate as JSON; not 200: an error."""

    call: int
    status: int
    certificate: bytes
    reason: str


class AdminCall(Message, frozen=True, tag="admin_call"):
    """One operation of the command line."""

    call: int
    operation: str
    arguments: dict[str, str]


class AdminReply(Message, frozen=True, tag="admin_reply"):
    """Its result as JSON, or an error with the HTTP status it corresponds to."""

    call: int
    status: int
    result: bytes
    reason: str = ""
    hint: str = ""


AnyMessage = (
    Hello
    | Welcome
    | Refused
    | Match
    | Matched
    | Started
    | Finished
    | Revoked
    | Scrub
    | Scrubbed
    | Load
    | Loaded
    | Store
    | Release
    | Released
    | OpenSession
    | SessionOpened
    | SessionInvalidated
    | EraseUser
    | UserErased
    | ClaimMessage
    | AdminCall
    | AdminReply
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode_frame(message: Message) -> bytes:
    """The message as one frame.

    Raises:
        ProtocolError: it is longer than :data:`MAX_FRAME_BYTES`.
    """
    payload = _encoder.encode(message)
    if len(payload) > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"a {type(message).__name__} message of {len(payload)} bytes does not fit a frame",
            hint=f"at most {MAX_FRAME_BYTES} bytes are allowed",
        )
    return _LENGTH.pack(len(payload)) + payload


def decode_payload(payload: bytes | bytearray | memoryview) -> AnyMessage:
    """One frame's payload as a message.

    Raises:
        ProtocolError: not MessagePack, an unknown message, or a field of another type.
    """
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise ProtocolError(f"a frame on the instance socket cannot be read: {error}") from error


class FrameReader:
    """Turns a byte stream into messages; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[AnyMessage]:
        """Yield every message that ``data`` completes.

        Raises:
            ProtocolError: a frame is too long or cannot be read.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._buffer, start)
                if length > MAX_FRAME_BYTES:
                    raise ProtocolError(
                        f"a frame announces {length} bytes",
                        hint=f"at most {MAX_FRAME_BYTES} bytes are allowed",
                    )
                end = start + _LENGTH.size + length
                if len(self._buffer) < end:
                    break
                payload = bytes(memoryview(self._buffer)[start + _LENGTH.size : end])
                start = end
                yield decode_payload(payload)
        finally:
            del self._buffer[:start]
