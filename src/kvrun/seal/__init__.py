"""Sealed KV blocks: the envelope, the context it binds, and the errors of opening one.

Pure code: no files, no clock, no randomness of its own. The byte format is specified in
``docs/spec/sealed-block.md``.
"""

from kvrun.seal.context import BlockIdentity, ContextEncoder, SessionContext
from kvrun.seal.envelope import (
    KEY_BYTES,
    MAX_PLAIN_BYTES,
    OVERHEAD_BYTES,
    SALT_BYTES,
    BlockSealer,
    EnvelopeHeader,
    parse_header,
    plain_size,
    sealed_size,
)
from kvrun.seal.errors import (
    ContextError,
    EnvelopeFormatError,
    FormatFault,
    IntegrityError,
    SealBufferError,
    SealedBlockError,
    SealerClosedError,
    SealError,
    WrongKeyOrContextError,
)

__all__ = [
    "KEY_BYTES",
    "MAX_PLAIN_BYTES",
    "OVERHEAD_BYTES",
    "SALT_BYTES",
    "BlockIdentity",
    "BlockSealer",
    "ContextEncoder",
    "ContextError",
    "EnvelopeFormatError",
    "EnvelopeHeader",
    "FormatFault",
    "IntegrityError",
    "SealBufferError",
    "SealError",
    "SealedBlockError",
    "SealerClosedError",
    "SessionContext",
    "WrongKeyOrContextError",
    "parse_header",
    "plain_size",
    "sealed_size",
]
