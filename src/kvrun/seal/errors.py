"""What can go wrong when a block is sealed or opened.

Two families must not be confused. A :class:`SealedBlockError` is about the data: the block is not
what the opener expects, so it is a cache miss, to be quarantined and audited. Every other
:class:`SealError` is about the call: the program passed something it must not pass.
"""

from enum import Enum

from kvrun.errors import KvrunError


class SealError(KvrunError):
    """Base of every error of this package."""


class SealedBlockError(SealError):
    """The sealed block does not open. Its bytes must not be used."""


class FormatFault(Enum):
    """Which check of an envelope's form failed."""

    TRUNCATED = "truncated"
    LENGTH = "length"
    MAGIC = "magic"
    VERSION = "version"
    ALGORITHM = "algorithm"
    FLAGS = "flags"


class EnvelopeFormatError(SealedBlockError):
    """The bytes are not a whole KVS1 envelope of the expected size; ``fault`` says why.

    Found before any key is used.
    """

    def __init__(self, message: str, *, fault: FormatFault) -> None:
        super().__init__(message)
        self.fault = fault


class WrongKeyOrContextError(SealedBlockError):
    """The key commitment differs: another key, another context, or an altered salt or commitment.

    Found before a byte is decrypted.
    """


class IntegrityError(SealedBlockError):
    """Key and context are right, but the header or the ciphertext was altered."""


class ContextError(SealError, ValueError):
    """A part of a session or block identity is outside what the context encoding allows."""


class SealBufferError(SealError, ValueError):
    """A buffer, salt or key cannot be used: kind, layout, size, or it overlaps another."""


class SealerClosedError(SealError):
    """The sealer was closed: its key is gone."""
