"""Errors of erasure and of its certificates."""

from kvrun.errors import KvrunError


class ErasureError(KvrunError):
    """An erasure cannot be planned, run or certified."""


class CertificateFormatError(ErasureError):
    """A certificate, statement or opening is malformed, or of a version nobody here knows."""

    status = 400

    def __init__(
        self, message: str, *, hint: str | None = None, unknown_version: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.unknown_version = unknown_version
