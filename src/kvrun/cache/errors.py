"""What can go wrong with the places where sealed blocks are kept."""

from kvrun.errors import KvrunError


class CacheError(KvrunError):
    """Base of the cache's own errors."""


class CacheFolderError(CacheError):
    """The folder of the disk tier cannot be used as it is."""

    exit_code = 2


class CacheBusyError(CacheError):
    """The memory tier cannot change its cell size while cells are in use."""

    status = 503


class SessionDroppedError(CacheError):
    """The session was dropped; nothing may be stored or read under it again."""

    status = 410


class DiskWriteError(CacheError):
    """A sealed block was not written to the disk tier."""

    status = 507


class PackFormatError(CacheError):
    """An object in Storage is no whole pack of the session that asks."""


class ObjectTierOffError(CacheError):
    """The object tier does not answer now; what it holds is a miss until it does."""

    status = 503


class TierBoundError(CacheError):
    """A tenant's blocks would take more room in a tier than the policy allows."""

    status = 507
