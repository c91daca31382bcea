"""Who may open what: the key hierarchy, where keys are kept, and how they are destroyed."""

from kvrun.keys.destruction import DestroyedKey
from kvrun.keys.entropy import RandomInto, getrandom
from kvrun.keys.errors import (
    EpochGoneError,
    FolderBusyError,
    FolderPermissionError,
    KeyDestroyedError,
    KeysError,
    KeyUnavailableError,
    MemoryLockError,
    RootError,
    RootRevokedError,
    RootUnavailableError,
    ScopeError,
    SessionLimitError,
    SigningKeyError,
    SlotFileError,
    WrapError,
    WrongRootError,
)
from kvrun.keys.file_root import FileRoot
from kvrun.keys.filesystem import ClaimClass, FilesystemFacts, filesystem_facts
from kvrun.keys.hierarchy import SessionScope
from kvrun.keys.limits import KeyLimits
from kvrun.keys.locked import LockedBuffer, Protection, Secret, SecretArena
from kvrun.keys.memory_root import MemoryRoot
from kvrun.keys.ring_entries import DestructionEvidence, RecoveryReport
from kvrun.keys.root import EpochEvidence, Root, RootFacts
from kvrun.keys.service import KeyService
from kvrun.keys.session import SessionInfo, SessionKeys
from kvrun.keys.signing import CurrentKey, KeyPurpose, PublicKeyRecord, SigningKey, SigningRing

__all__ = [
    "ClaimClass",
    "CurrentKey",
    "DestroyedKey",
    "DestructionEvidence",
    "EpochEvidence",
    "EpochGoneError",
    "FileRoot",
    "FilesystemFacts",
    "FolderBusyError",
    "FolderPermissionError",
    "KeyDestroyedError",
    "KeyLimits",
    "KeyPurpose",
    "KeyService",
    "KeyUnavailableError",
    "KeysError",
    "LockedBuffer",
    "MemoryLockError",
    "MemoryRoot",
    "Protection",
    "PublicKeyRecord",
    "RandomInto",
    "RecoveryReport",
    "Root",
    "RootError",
    "RootFacts",
    "RootRevokedError",
    "RootUnavailableError",
    "ScopeError",
    "Secret",
    "SecretArena",
    "SessionInfo",
    "SessionKeys",
    "SessionLimitError",
    "SessionScope",
    "SigningKey",
    "SigningKeyError",
    "SigningRing",
    "SlotFileError",
    "WrapError",
    "WrongRootError",
    "filesystem_facts",
    "getrandom",
]
