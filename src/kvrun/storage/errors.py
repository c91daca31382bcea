"""Errors of Storage."""

from kvrun.errors import KvrunError


class StorageError(KvrunError):
    """Storage cannot be used, or refused."""

    exit_code = 3
    status = 503


class ObjectExistsError(StorageError):
    """An object of that name is there already; nothing was written."""

    status = 409


class ObjectMissingError(StorageError):
    """No object has that name."""

    status = 404
