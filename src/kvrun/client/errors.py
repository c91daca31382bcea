"""What goes wrong between a client and the control plane, as errors that say what to do."""

from http import HTTPStatus

import msgspec

from kvrun.errors import KvrunError

_LONGEST_TEXT = 2000
_MOST_FIELDS = 20


class ClientError(KvrunError):
    """The control plane could not be asked, or said no."""


class UnreachableError(ClientError):
    """Nothing answered: no control plane there, or the connection broke."""

    exit_code = 3
    status = 503


class BadAnswerError(ClientError):
    """What answered is no control plane of this version."""

    exit_code = 3
    status = 502


class BadIdError(ClientError):
    """An id that cannot be one."""

    exit_code = 2
    status = 400


class NotAvailableError(ClientError):
    """Nobody can say at present, since a deployment does not answer."""

    exit_code = 3
    status = 503


class WaitedTooLongError(ClientError):
    """What was waited for did not happen in the given time; it may still."""

    exit_code = 3
    status = 504


class WaitedInVainError(ClientError):
    """What was waited for does not happen any more: the deployment failed or is deleted."""

    status = 409


class ApiError(ClientError):
    """The control plane answered with a problem (RFC 9457).

    ``status`` is the HTTP status, ``code`` a stable word such as ``not_found`` and ``request_id``
    what the control plane's log has the request under; both are empty where something else
    answered, such as a proxy.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "",
        request_id: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.request_id = request_id


class RequestRefusedError(ApiError):
    """400, 413, 422 and other 4xx: something is not allowed; the message names it."""

    exit_code = 2


class NotSignedInError(ApiError):
    """401: no API key, or one that is wrong, ended or expired."""


class ForbiddenError(ApiError):
    """403: the role or the key's scopes do not allow it."""


class NotFoundError(ApiError):
    """404 or 410: not there, or not yours to know of."""


class ConflictError(ApiError):
    """409 or 412: not possible in the present state; read it again."""


class TooManyRequestsError(ApiError):
    """429: more than is allowed at a time."""


class ServerError(ApiError):
    """5xx: the control plane failed, or something that it needs does not answer."""

    exit_code = 3


class _Field(msgspec.Struct):
    where: str = ""
    message: str = ""


class _Problem(msgspec.Struct):
    """The parts of a problem document that are read."""

    title: str = ""
    detail: str = ""
    code: str = ""
    hint: str | None = None
    request_id: str = ""
    errors: list[_Field] = []


def error_of(status: int, content: bytes) -> ApiError:
    """The error that an answer with ``status`` (400 or above) and this body stands for."""
    try:
        problem = msgspec.json.decode(content, type=_Problem)
    except (msgspec.MsgspecError, UnicodeError):
        problem = _Problem()
    said = problem.detail or f"the control plane answered {status} {_phrase(status)}"
    fields = "; ".join(f"{item.where}: {item.message}" for item in problem.errors[:_MOST_FIELDS])
    return _class_of(status)(
        _clean(f"{said}: {fields}" if fields else said),
        status=status,
        code=_clean(problem.code),
        request_id=_clean(problem.request_id),
        hint=_clean(problem.hint or "") or None,
    )


def _class_of(status: int) -> type[ApiError]:
    if status >= 500:
        return ServerError
    return _CLASSES.get(status, RequestRefusedError)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "(unknown)"


def _clean(text: str) -> str:
    """Text of an answer as one that a terminal can show: bounded, no control characters."""
    return "".join(c if c.isprintable() else " " for c in text[:_LONGEST_TEXT]).strip()


_CLASSES: dict[int, type[ApiError]] = {
    401: NotSignedInError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: NotFoundError,
    412: ConflictError,
    429: TooManyRequestsError,
}
