"""Errors of evidence bundles."""

from kvrun.errors import KvrunError


class EvidenceError(KvrunError):
    """A bundle cannot be made, or what was asked of one makes no sense."""

    status = 422


class EvidenceNotFoundError(EvidenceError):
    """There is no such bundle."""

    status = 404


class EvidenceBusyError(EvidenceError):
    """Somebody else makes this bundle now."""

    exit_code = 3
    status = 409


class BundleFormatError(EvidenceError):
    """A file is no bundle, or is one that this version refuses to read.

    ``name`` is the part of it that shows so, as far as one does.
    """

    def __init__(self, message: str, *, name: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.name = name
