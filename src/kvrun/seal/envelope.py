"""The KVS1 envelope: one KV block encrypted under a key used once, with a key commitment.

From the session key, a random salt and the block's context, HKDF-Expand-SHA-512 (RFC 5869) gives a
one-time AES-256-GCM key (SP 800-38D, zero nonce) and a 32-byte commitment to key and context. The
byte format, what each field binds and what is not stopped: ``docs/spec/sealed-block.md``.
"""

from __future__ import annotations

import hmac as constant_time
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.hmac import HMAC

from kvrun.seal.buffers import flat_bytes, overlap, zero
from kvrun.seal.errors import (
    EnvelopeFormatError,
    FormatFault,
    IntegrityError,
    SealBufferError,
    SealerClosedError,
    WrongKeyOrContextError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

KEY_BYTES = 32
SALT_BYTES = 24
HEADER_BYTES = 72
TAG_BYTES = 16
OVERHEAD_BYTES = HEADER_BYTES + TAG_BYTES
MAX_PLAIN_BYTES = 2**31 - 1
MAX_GENERATION = 2**32 - 1


def sealed_size(plain_bytes: int) -> int:
    """The size of the envelope around ``plain_bytes`` bytes of plaintext."""
    return plain_bytes + OVERHEAD_BYTES


def plain_size(sealed_bytes: int) -> int:
    """The size of the plaintext inside an envelope of ``sealed_bytes`` bytes.

    Raises :class:`EnvelopeFormatError` when no envelope is that short or that long.
    """
    plain_bytes = sealed_bytes - OVERHEAD_BYTES
    if plain_bytes < 0:
        raise EnvelopeFormatError(
            f"A sealed block has at least {OVERHEAD_BYTES} bytes; this one has {sealed_bytes}.",
            fault=FormatFault.TRUNCATED,
        )
    if plain_bytes > MAX_PLAIN_BYTES:
        raise EnvelopeFormatError(
            f"A sealed block holds at most {MAX_PLAIN_BYTES} bytes; this one would hold "
            f"{plain_bytes}.",
            fault=FormatFault.LENGTH,
        )
    return plain_bytes


@dataclass(frozen=True, slots=True)
class EnvelopeHeader:
    """What the first 72 bytes say. Nothing of it is proven until the block opens."""

    generation: int
    salt: bytes
    commitment: bytes
    plain_bytes: int


def parse_header(sealed: Buffer) -> EnvelopeHeader:
    """Read the header of a whole envelope, checking every field that has a fixed value.

    Raises :class:`EnvelopeFormatError`, whose ``fault`` says which check failed, and
    :class:`SealBufferError` when ``sealed`` is not a buffer of bytes.
    """
    _, generation, salt, commitment, plain_bytes = _parse(flat_bytes("sealed", sealed, False))
    return EnvelopeHeader(generation, salt, commitment, plain_bytes)


class BlockSealer:
    """Seals and opens the blocks of one session key.

    It keeps an HMAC state that has absorbed the key and the label, not the key. It may be shared
    by threads; the AES-GCM work runs without the GIL.
    """

    __slots__ = ("_generation", "_state")

    def __init__(self, dek: memoryview | bytearray, *, generation: int) -> None:
        """``dek``: 32 random bytes, only read here; the caller owns and zeroes them.

        ``generation`` is that of the key; it stands in every header this sealer writes, and a
        block with another one is not opened. Raises :class:`SealBufferError`.
        """
        key = flat_bytes("The session key", dek, False)
        if key.nbytes != KEY_BYTES:
            raise SealBufferError(
                f"A session key has {KEY_BYTES} bytes; this one has {key.nbytes}."
            )
        if not 0 <= generation <= MAX_GENERATION:
            raise SealBufferError(
                f"The key generation is {generation}.", hint=f"Allowed are 0 to {MAX_GENERATION}."
            )
        state = HMAC(key, SHA512())
        state.update(_KEY_LABEL)
        self._state: HMAC | None = state
        self._generation = generation

    def close(self) -> None:
        """Forget the key. Every later call raises :class:`SealerClosedError`.

        A call already running in another thread finishes; wait for it before calling a key gone.
        """
        self._state = None

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._state is None

    def seal_into(self, context: bytes, plaintext: Buffer, out: Buffer, *, salt: bytes) -> None:
        """Seal ``plaintext`` for ``context`` into ``out``, ``len(plaintext) + 88`` bytes.

        ``salt``: 24 bytes from the system's random source, fresh for every call. The same salt
        twice for one context would use an AES-GCM key and nonce twice.

        Raises :class:`SealerClosedError`, and :class:`SealBufferError` when a buffer or the salt
        has a wrong size, is no buffer of bytes, or ``out`` overlaps ``plaintext``. ``out`` never
        holds plaintext.
        """
        state = self._live_state()
        source = flat_bytes("plaintext", plaintext, False)
        target = flat_bytes("out", out, True)
        _refuse_overlap("plaintext", source, target)
        if len(salt) != SALT_BYTES:
            raise SealBufferError(f"A salt has {SALT_BYTES} bytes; this one has {len(salt)}.")
        if source.nbytes > MAX_PLAIN_BYTES:
            raise SealBufferError(
                f"plaintext has {source.nbytes} bytes.", hint=f"Allowed are 0 to {MAX_PLAIN_BYTES}."
            )
        if target.nbytes != sealed_size(source.nbytes):
            raise SealBufferError(
                f"out has {target.nbytes} bytes for {source.nbytes} bytes of plaintext.",
                hint=f"It must have exactly {sealed_size(source.nbytes)}.",
            )
        okm = _derive(state, salt, context)
        header = _HEADER.pack(
            _MAGIC,
            _FORMAT,
            _ALGORITHM,
            _FLAGS,
            self._generation,
            salt,
            okm[KEY_BYTES:],
            source.nbytes,
        )
        target[:HEADER_BYTES] = header
        AESGCM(okm[:KEY_BYTES]).encrypt_into(
            _NONCE, source, header + context, target[HEADER_BYTES:]
        )

    def open_into(self, context: bytes, sealed: Buffer, out: Buffer) -> None:
        """Open ``sealed``, expected to be the block of ``context``, into ``out``.

        ``out`` has ``len(sealed) - 88`` bytes. Give it private memory: while the call runs it may
        hold plaintext that is not authenticated yet. ``sealed`` must not change meanwhile.

        Raises, with every byte of ``out`` zeroed: :class:`EnvelopeFormatError` (also when the
        sizes of ``sealed`` and ``out`` do not fit), :class:`WrongKeyOrContextError`,
        :class:`IntegrityError`, :class:`SealerClosedError`. Raises :class:`SealBufferError`, with
        ``out`` untouched, when a buffer cannot be used or the two overlap.
        """
        source = flat_bytes("sealed", sealed, False)
        target = flat_bytes("out", out, True)
        _refuse_overlap("sealed", source, target)
        try:
            self._open(context, source, target)
        except BaseException:
            zero(target)
            raise

    def _open(self, context: bytes, source: memoryview, target: memoryview) -> None:
        state = self._live_state()
        raw, generation, salt, commitment, plain_bytes = _parse(source)
        if plain_bytes != target.nbytes:
            raise EnvelopeFormatError(
                f"The sealed block holds {plain_bytes} bytes where {target.nbytes} are expected.",
                fault=FormatFault.LENGTH,
            )
        if generation != self._generation:
            raise WrongKeyOrContextError(
                f"The block was sealed under generation {generation} of its session key; "
                f"this is generation {self._generation}."
            )
        okm = _derive(state, salt, context)
        if not constant_time.compare_digest(okm[KEY_BYTES:], commitment):
            del okm
            raise WrongKeyOrContextError(
                "The key commitment differs: the block belongs to another key or another context, "
                "or its header was altered."
            )
        authentic = _decrypt(okm, raw + context, source, target)
        # An exception keeps its frames' variables alive; the block's key must not be one of them.
        del okm
        if not authentic:
            raise IntegrityError(
                "The authentication tag differs: the header or the ciphertext was altered."
            )

    def _live_state(self) -> HMAC:
        state = self._state
        if state is None:
            raise SealerClosedError(
                "The sealer is closed: its session key was destroyed or put away.",
                hint="Get a sealer for the session again.",
            )
        return state

    def __reduce__(self) -> str:
        raise TypeError("A BlockSealer holds key material and is never copied or pickled.")


# magic, format, algorithm, flags, key epoch (the generation), salt, commitment, plaintext length
_HEADER = struct.Struct("<4sBBHI24s32sI")
_MAGIC = b"KVS1"
_FORMAT = 1
_ALGORITHM = 1  # AEAD_AES_256_GCM with a zero nonce, key and commitment from HKDF-Expand-SHA-512
_FLAGS = 0
_KEY_LABEL = b"kvrun/block-key/v1\x00AEAD_AES_256_GCM\x00"
_NONCE = bytes(12)  # every key is used for one message only


def _derive(state: HMAC, salt: bytes, context: bytes) -> bytes:
    """The block's 32-byte key and 32-byte commitment: HKDF-Expand-SHA-512 with L = 64."""
    block = state.copy()
    block.update(salt + context + b"\x01")
    return block.finalize()


def _decrypt(okm: bytes, aad: bytes, source: memoryview, target: memoryview) -> bool:
    try:
        AESGCM(okm[:KEY_BYTES]).decrypt_into(_NONCE, source[HEADER_BYTES:], aad, target)
    except InvalidTag:
        return False
    return True


def _parse(source: memoryview) -> tuple[bytes, int, bytes, bytes, int]:
    """The header's bytes, generation, salt, commitment and plaintext size.

    The bytes are copied first, so that all checks and the tag see the same ones.
    """
    plain_bytes = plain_size(source.nbytes)
    raw = bytes(source[:HEADER_BYTES])
    magic, form, algorithm, flags, generation, salt, commitment, stated = _HEADER.unpack(raw)
    if magic != _MAGIC:
        raise EnvelopeFormatError(
            f"A sealed block starts with {_MAGIC!r}; this one starts with {magic!r}.",
            fault=FormatFault.MAGIC,
        )
    if form != _FORMAT:
        raise EnvelopeFormatError(
            f"The sealed block has format {form}; only format {_FORMAT} is known.",
            fault=FormatFault.VERSION,
        )
    if algorithm != _ALGORITHM:
        raise EnvelopeFormatError(
            f"The sealed block names algorithm {algorithm}; only {_ALGORITHM} "
            "(AES-256-GCM) is known.",
            fault=FormatFault.ALGORITHM,
        )
    if flags != _FLAGS:
        raise EnvelopeFormatError(
            f"The sealed block sets flags {flags:#06x}; none is defined.", fault=FormatFault.FLAGS
        )
    if stated != plain_bytes:
        raise EnvelopeFormatError(
            f"The header states {stated} bytes of plaintext, but the sealed block's "
            f"{source.nbytes} bytes hold {plain_bytes}.",
            fault=FormatFault.TRUNCATED if stated > plain_bytes else FormatFault.LENGTH,
        )
    return raw, generation, salt, commitment, stated


def _refuse_overlap(name: str, source: memoryview, target: memoryview) -> None:
    # Overlapping buffers can yield wrong bytes without any error from the cipher.
    if overlap(source, target):
        raise SealBufferError(
            f"out overlaps {name} in memory.", hint="Source and destination must be disjoint."
        )
