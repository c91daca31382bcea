"""The OpenAPI document: current, complete, and true in what it says of errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from api_rig import World, is_problem

from kvrun.api.app import openapi_text

PAGE = Path(__file__).parents[2] / "docs" / "openapi.json"
DOCUMENT: dict[str, Any] = json.loads(openapi_text())
OPERATIONS = [
    (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
OPEN = {
    "sign_in_methods", "claim_owner_link", "start_oidc", "finish_oidc", "healthz", "readyz",
    "finish_login", "attach_deployment", "announce_policy_push",
}  # fmt: skip
"""What nobody has to sign in for. The last three have a code, a token or a secret of their own."""


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == openapi_text(), "run scripts/write_pages.py"


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("path", "operation"),
    [(path, operation) for _, path, operation in OPERATIONS],
    ids=[operation["operationId"] for _, _, operation in OPERATIONS],
)
def test_every_operation_says_what_it_does_and_how_it_fails(
    path: str, operation: dict[str, Any]
) -> None:
    assert operation["summary"]
    assert operation["description"]
    assert operation["tags"]
    statuses = set(operation["responses"])
    assert "400" in statuses
    if path.startswith("/api/v1/"):
        assert {"401", "403", "404", "409", "413", "422"} <= statuses
    for status, answer in operation["responses"].items():
        if status >= "400":
            assert list(answer["content"]) == ["application/problem+json"]
    signed = "security" in operation
    assert signed is (operation["operationId"] not in OPEN)


def test_the_guide_lists_every_status_of_an_error() -> None:
    guide = PAGE.with_name("api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"(?m)^\| ([45]\d\d) \| .+ \|$", guide))
    answers = {status for _, _, operation in OPERATIONS for status in operation["responses"]}
    assert listed == {status for status in answers if status >= "400"} | {"500"}


async def test_nobody_gets_anything_without_a_credential(world: World) -> None:
    for method, path, operation in OPERATIONS:
        if operation["operationId"] not in OPEN:
            where = path.replace("{process}", "engine").replace("{", "").replace("}", "")
            answer = await world.nobody.ask(method.upper(), where)
            assert answer.status_code == 401, f"{method} {path}"
            is_problem(answer, 401)


def test_no_end_users_id_goes_into_an_address() -> None:
    for _, path, operation in OPERATIONS:
        names = {parameter["name"] for parameter in operation.get("parameters", [])}
        assert not names & {"tenant", "user", "session", "query"}, path
        assert "{tenant}" not in path


async def test_the_application_serves_the_document(world: World) -> None:
    served = await world.nobody.get("/openapi.json")
    assert served.json() == DOCUMENT


async def test_health_is_for_everybody(world: World) -> None:
    assert (await world.nobody.get("/healthz")).json() == {"status": "ok"}
    assert (await world.nobody.get("/readyz")).json() == {"status": "ok"}
