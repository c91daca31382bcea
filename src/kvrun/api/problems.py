"""Errors as RFC 9457 problem documents. Nothing of the program's inside is in them."""

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from kvrun.errors import KvrunError

MEDIA_TYPE = "application/problem+json"
_MAX_TEXT = 2000
_MAX_FIELDS = 20
_log = logging.getLogger(__name__)


class FieldProblem(BaseModel):
    """One value that is not allowed."""

    where: str = Field(description="Where it stands, such as `body.name` or `query.limit`.")
    message: str = Field(description="What is allowed there.")


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str = Field(default="about:blank", description="Always about:blank: see `code`.")
    title: str = Field(description="The HTTP status in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What was wrong, and where.")
    code: str = Field(description="A stable word for programs, such as `not_found`.")
    hint: str | None = Field(default=None, description="What is allowed, or what to do next.")
    request_id: str = Field(default="", description="Names the request in the control plane's log.")
    errors: list[FieldProblem] = Field(default=[], description="The values that are not allowed.")


class RequestRefusedError(KvrunError):
    """A request that is refused before any of its content counts."""

    exit_code = 2
    status = 400

    def __init__(
        self, message: str, *, status: int = 400, code: str = "refused", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


def describe(document: dict[str, Any], statuses: Sequence[int]) -> dict[str, Any]:
    """Add the error responses to every operation of an OpenAPI document, which is returned.

    Done here and not with FastAPI's ``responses``: that would build a validator for each.
    """
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= schema.pop("$defs", {}) | {"Problem": schema}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for methods in document["paths"].values():
        for operation in methods.values():
            answers = operation["responses"]
            named = {int(status) for status in answers if status >= "400"}
            for status in sorted(named.union(statuses)):
                answers[str(status)] = {"description": _title(status), "content": content}
    return document


def problem_of(error: KvrunError) -> Problem:
    """The problem document of an error."""
    status = status_of(error)
    return Problem(
        title=_title(status),
        status=status,
        detail=error.message[:_MAX_TEXT],
        code=getattr(error, "code", None) or _code(type(error)),
        hint=error.hint[:_MAX_TEXT] if error.hint else None,
    )


def status_of(error: KvrunError) -> int:
    """The HTTP status of an error; errors that were made for commands have an exit status only."""
    if error.status != 500:
        return error.status
    return {2: 400, 3: 409}.get(error.exit_code, 500)


def problem_response(
    problem: Problem, *, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The response that says it."""
    content = problem.model_copy(update={"request_id": request_id})
    sent = dict(headers or {})
    if problem.status == 401:
        sent.setdefault("WWW-Authenticate", 'Bearer realm="kvrun"')
    return Response(
        content.model_dump_json(exclude_defaults=False),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers=sent,
    )


def unexpected(request_id: str) -> Response:
    """The response to a fault of our own. Call it where the exception is being handled."""
    _log.exception("request %s failed", request_id)
    problem = Problem(
        title=_title(500),
        status=500,
        detail="the control plane failed; its log says why under this request id",
        code="internal",
    )
    return problem_response(problem, request_id=request_id)


def install(app: FastAPI) -> None:
    """Answer with problem documents."""

    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, KvrunError)
        problem = problem_of(error)
        if problem.status >= 500:
            _log.error("request %s: %s", request_id_of(request), type(error).__name__)
        return problem_response(problem, request_id=request_id_of(request))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problem = Problem(
            title=_title(422),
            status=422,
            detail="the request has values that are not allowed",
            code="invalid",
            errors=_fields(error.errors()),
        )
        return problem_response(problem, request_id=request_id_of(request))

    async def plain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problem = Problem(
            title=_title(error.status_code),
            status=error.status_code,
            detail=str(error.detail)[:_MAX_TEXT],
            code=_title(error.status_code).lower().replace(" ", "_"),
        )
        return problem_response(
            problem, request_id=request_id_of(request), headers=error.headers or {}
        )

    app.add_exception_handler(KvrunError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, plain)


def request_id_of(request: Request) -> str:
    """The request's id, which the guard gave it."""
    return str(getattr(request.state, "request_id", ""))


def _fields(errors: Sequence[Mapping[str, object]]) -> list[FieldProblem]:
    # What was sent is not repeated: it may be a secret or somebody's id.
    found = []
    for error in errors[:_MAX_FIELDS]:
        place = error.get("loc")
        where = ".".join(map(str, place)) if isinstance(place, tuple | list) else ""
        found.append(FieldProblem(where=where[:200], message=str(error.get("msg", ""))[:300]))
    return found


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _code(kind: type[KvrunError]) -> str:
    name = kind.__name__.removesuffix("Error")
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
