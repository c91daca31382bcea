"""Refusals and failures in the shape OpenAI's clients expect."""

import msgspec

from kvrun.errors import KvrunError


class GatewayError(KvrunError):
    """A request the gateway does not serve.

    ``param`` names the offending field or header, ``code`` is a stable word for programs,
    ``retry_after_s`` becomes the Retry-After header. ``close`` ends the client's connection.
    """

    status = 400

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
        allow: str | None = None,
        hint: str | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow = allow
        self.close = close

    def body(self) -> bytes:
        """The error as JSON: OpenAI's shape, with the outer ``type`` that Anthropic's has."""
        text = self.message if self.hint is None else f"{self.message}. {self.hint}"
        detail = {
            "message": text,
            "type": _TYPES.get(self.status, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"type": "error", "error": detail})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The response headers that belong to the error, Content-Length excluded."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.allow is not None:
            headers.append((b"allow", self.allow.encode()))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.close:
            headers.append((b"connection", b"close"))
        return headers


class GatewayConfigError(KvrunError):
    """Settings with which the gateway refuses to start."""

    exit_code = 2


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
