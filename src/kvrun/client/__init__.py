"""The control plane's API from Python: ``Client``, ``AsyncClient``, what they raise and return."""

from kvrun.client.address import AddressError
from kvrun.client.aio import AsyncClient
from kvrun.client.errors import (
    ApiError,
    BadAnswerError,
    ClientError,
    ConflictError,
    ForbiddenError,
    NotAvailableError,
    NotFoundError,
    NotSignedInError,
    RequestRefusedError,
    ServerError,
    TooManyRequestsError,
    UnreachableError,
    WaitedInVainError,
    WaitedTooLongError,
)
from kvrun.client.retry import RetryPolicy
from kvrun.client.sync import Client

__all__ = [
    "AddressError",
    "ApiError",
    "AsyncClient",
    "BadAnswerError",
    "Client",
    "ClientError",
    "ConflictError",
    "ForbiddenError",
    "NotAvailableError",
    "NotFoundError",
    "NotSignedInError",
    "RequestRefusedError",
    "RetryPolicy",
    "ServerError",
    "TooManyRequestsError",
    "UnreachableError",
    "WaitedInVainError",
    "WaitedTooLongError",
]
