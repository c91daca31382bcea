"""What can go wrong with keys. Every error says what, where and what is allowed."""

from kvrun.errors import KvrunError


class KeysError(KvrunError):
    """Any failure of the key service or of what it stands on."""


class KeyUnavailableError(KeysError):
    """A key cannot be used or created now; the caller goes on without the cache."""

    status = 503


class KeyDestroyedError(KeysError):
    """The key was destroyed while its handle was still held. It will not come back."""

    status = 410


class SessionLimitError(KeysError):
    """The tenant already has as many sessions as its limit allows."""

    status = 429


class ScopeError(KeysError):
    """A workspace, deployment, tenant or session id has a form that is not allowed."""

    status = 400


class FolderBusyError(KeysError):
    """Another process holds the folder."""

    exit_code = 3
    status = 409


class FolderPermissionError(KeysError):
    """Others than the owner can read a folder or file that holds keys."""

    exit_code = 3


class SlotFileError(KeysError):
    """A slot file is damaged, of another version, or not a slot file."""


class ReadBackError(KeysError):
    """An erased slot did not read back as zeros."""


class WrapError(KeysError):
    """A wrapped key does not open: wrong key, wrong context or changed bytes."""


class RootError(KeysError):
    """The key root is missing, wrong or older than the slots it should open."""

    exit_code = 3


class WrongRootError(RootError):
    """The root is not the one that these keys were wrapped under."""


class RootRevokedError(RootError):
    """The root answers and refuses: the right to use it was withdrawn, or its key is gone."""


class RootUnavailableError(RootError):
    """The root cannot be asked now; it may answer again later."""

    status = 503


class EpochGoneError(RootError):
    """The epoch key was destroyed, or this root never had it."""


class MemoryLockError(KeysError):
    """Memory for keys could not be locked and the caller asked for locked memory only."""

    exit_code = 3


class SigningKeyError(KeysError):
    """A signing key is missing, malformed, revoked or out of its validity."""
