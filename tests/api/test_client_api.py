"""The Python client against a control plane, over HTTP, and against what the API says of itself."""

from __future__ import annotations

import inspect
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

import jsonschema
import msgspec
import pytest
from api_rig import World
from api_server import serving

from kvrun.accounts import Scope
from kvrun.api.app import openapi_text
from kvrun.client import (
    AsyncClient,
    Client,
    ConflictError,
    NotFoundError,
    NotSignedInError,
    RequestRefusedError,
    WaitedInVainError,
    WaitedTooLongError,
)
from kvrun.client.call import Call, Listing, Page
from kvrun.client.calls import deployments, evidence, models, people
from kvrun.client.results.deployments import DeploymentSpec, TenantNote

DOCUMENT: dict[str, Any] = json.loads(openapi_text())
GUIDE = Path(__file__).parents[2] / "docs" / "python-client.md"
WITHOUT_METHOD = {
    "sign_in_methods", "claim_owner_link", "start_oidc", "finish_oidc", "healthz",
    "readyz", "announce_policy_push",
}  # fmt: skip
"""For browsers, supervisors and Git hosts."""


def builders() -> dict[str, Callable[..., Call[Any] | Listing[Any]]]:
    """Every function that builds a request, by name."""
    return {
        name: found
        for module in (people, deployments, evidence, models)
        for name, found in inspect.getmembers(module, inspect.isfunction)
        if found.__module__ == module.__name__ and not name.startswith("_")
    }


EXAMPLES: dict[str, Any] = {
    "scopes": ["infer"],
    "rounds": 20,
    "words": 300,
    "erase_user.confirm": {"d-1": "token"},
    "memory_bytes": 2**30,
    "tenants": [TenantNote(tenant_ref="a1", labels={"a": "b"})],
    "tenant_refs": ["a1"],
    "verifier": "v" * 43,
    "email": "ada@example.com",
    "role": "auditor",
    "kind": "session",
    "also": ["kv_key"],
    "plan_wide_erasure.kind": "tenants",
    "ask_wide_approval.kind": "workspace",
    "erase_wide.kind": "account",
    "labels": {"team": "a"},
    "gpu_ids": [0],
    "settings": {"engine.seed": 1},
    "spec": DeploymentSpec(
        name="chat",
        model="tiny",
        engine="vllm",
        multi_tenant=True,
        stateless=False,
        context_window=None,
        memory_bytes=2**30,
        disk_bytes=0,
        labels={},
        gpu_ids=[],
        allow_shared_gpu=False,
        settings={"engine.seed": 1},
    ),
    "process": "engine",
    "config_file": "/srv/kvrun.toml",
    **{
        f"{name}.{field}": day
        for name in ("get_controls", "start_evidence", "start_deployment_evidence")
        for field, day in (("since", "2026-01-01"), ("until", "2026-02-01"))
    },
    "evidence_id": "0123456789abcdef",
    **{f"create_finetune.{name}": 1 for name in ("epochs", "batch_size", "rank", "alpha")},
    "create_finetune.learning_rate": 0.5,
    "create_finetune.tasks": ["colours"],
    "create_finetune.task_files": {"colours.yaml": "task: colours"},
}


def made(name: str) -> Call[Any]:
    """A request with every parameter given."""
    values: dict[str, Any] = {}
    for parameter in inspect.signature(builders()[name]).parameters.values():
        kind = str(parameter.annotation)
        usual = True if "bool" in kind else 70_000 if "int" in kind or "float" in kind else "x-1"
        example = EXAMPLES.get(f"{name}.{parameter.name}", EXAMPLES.get(parameter.name, usual))
        values[parameter.name] = example
    built = builders()[name](**values)
    return built.first if isinstance(built, Listing) else built


def matching(call: Call[Any]) -> tuple[str, dict[str, Any]]:
    """The operation of the API that a request reaches."""
    for path, methods in DOCUMENT["paths"].items():
        pattern = re.sub(r"\\\{[a-z_]+(:path)?\\\}", ".+", re.escape(path))
        whole = "/api/v1" + call.path
        fixed = re.sub(r"\{[^}]+\}", "", path).count("/") == whole.count("/")
        if re.fullmatch(pattern, whole) and fixed and call.method.lower() in methods:
            operation = methods[call.method.lower()]
            return operation["operationId"], operation
    raise AssertionError(f"no operation for {call.method} {call.path}")


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema behind its reference."""
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


@pytest.mark.parametrize("name", sorted(builders()))
def test_a_request_is_one_that_the_api_describes(name: str) -> None:
    call = made(name)
    _, operation = matching(call)
    known = {parameter["name"] for parameter in operation.get("parameters", [])}
    assert {key for key, _ in call.query} <= known
    body = operation.get("requestBody")
    if call.body is None:
        assert body is None or not body.get("required")
        return
    schema = body["content"]["application/json"]["schema"]
    jsonschema.validate(
        json.loads(call.content or b"null"), {**DOCUMENT, **schema}, jsonschema.Draft202012Validator
    )
    alternatives = schema.get("anyOf", [schema])
    properties = [resolved(item).get("properties", {}) for item in alternatives]
    assert any(set(call.body) <= set(found) for found in properties)


def test_every_operation_has_a_method() -> None:
    reached = {matching(made(name))[0] for name in builders()}
    described = {
        operation["operationId"]
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
    }
    assert reached | WITHOUT_METHOD == described


def check_type(result: Any, schema: dict[str, Any], where: str) -> None:
    """That a result has the fields of a schema, all of them and no other, all the way down."""
    schema = resolved(schema)
    if "anyOf" in schema:
        schema = resolved(next(item for item in schema["anyOf"] if item.get("type") != "null"))
    arguments = [item for item in get_args(result) if item is not type(None)]
    if get_origin(result) is list:
        check_type(arguments[0], schema["items"], where)
    elif get_origin(result) is Page:
        check_type(arguments[0], schema["properties"]["items"]["items"], where)
    elif type(None) in get_args(result) and len(arguments) == 1:
        check_type(arguments[0], schema, where)
    elif inspect.isclass(result) and issubclass(result, msgspec.Struct):
        fields = {field.encode_name: field for field in msgspec.structs.fields(result)}
        assert set(fields) == set(schema["properties"]), where
        for name, field in fields.items():
            check_type(field.type, schema["properties"][name], f"{where}.{name}")


@pytest.mark.parametrize("name", sorted(builders()))
def test_a_result_has_the_fields_that_the_api_describes(name: str) -> None:
    call = made(name)
    _, operation = matching(call)
    success = next(value for key, value in operation["responses"].items() if key < "300")
    content = success.get("content", {})
    if call.result is None:
        assert not content
    elif call.result in (bytes, str):
        assert "application/json" not in content or call.result is bytes
    else:
        check_type(call.result, content["application/json"]["schema"], name)


@pytest.fixture
def api(world: World) -> Iterator[tuple[str, str]]:
    """The address of a control plane, and an API key of its owner."""
    key = world.key(world.owner_actor, [Scope.ADMIN])
    with serving(world) as url:
        yield url, key.headers["Authorization"].removeprefix("Bearer ")


def test_deployments_are_made_started_waited_for_and_deleted(
    world: World, api: tuple[str, str]
) -> None:
    with Client(*api, sleep=lambda _: world.services.deployments.supervise() and None) as client:
        (workspace,) = [item for item in client.workspaces.list() if item.name == "acme"]
        made = client.deployments.create(workspace.id, "chat", "tiny", multi_tenant=True)
        assert (made.state, made.spec.disk_bytes) == ("created", 10 * 2**30)
        client.deployments.start(made.id)
        assert client.deployments.wait(made.id).state == "running"
        assert [item.id for item in client.deployments.list(workspace.id)] == [made.id]
        assert client.deployments.overview(made.id).endpoint.startswith("http")
        with pytest.raises(ConflictError) as caught:
            client.workspaces.delete(workspace.id)
        assert "chat" in caught.value.message
        client.deployments.stop(made.id)
        client.deployments.wait(made.id, "stopped")
        with pytest.raises(RequestRefusedError, match="name"):
            client.deployments.delete(made.id, "another")
        gone = client.deployments.delete(made.id, "chat")
        assert gone.deployment.state == "deleted"
        with pytest.raises(WaitedInVainError, match="deleted"):
            client.deployments.wait(made.id)


def test_an_erasure_is_planned_confirmed_and_certified(world: World, api: tuple[str, str]) -> None:
    deployment = world.deployment()
    world.visit(deployment, "alice", "bob")
    with Client(*api) as client:
        workspace = deployment.workspace_id
        found = [place for place in client.users.where_is(workspace, "alice") if place.found]
        assert [place.deployment.id for place in found] == [deployment.id]
        plan = client.erasures.plan(deployment.id, kind="tenant", tenant="alice")
        assert (plan.sessions, bool(plan.token)) == (1, True)
        with pytest.raises(ConflictError):
            client.erasures.erase(deployment.id, kind="tenant", tenant="alice")
        done = client.erasures.erase(
            deployment.id, kind="tenant", tenant="alice", confirm=plan.token, reference="T-1"
        )
        assert client.erasures.wait(deployment.id, done.id).state == "certified"
        (listed,) = client.erasures.list(deployment.id, reference="T-1")
        assert listed.id == done.id
        certificate = client.certificates.download(deployment.id, done.id)
        assert b'"payload"' in certificate
        assert not [p for p in client.users.where_is(workspace, "alice") if p.found]


def test_members_and_keys_are_made_and_ended(world: World, api: tuple[str, str]) -> None:
    with Client(*api) as client:
        place = world.workspace("acme")
        ada = client.members.add(place, "ada@example.com", "privacy")
        assert client.members.set_role(place, ada.user_id, "auditor").role == "auditor"
        client.members.remove(place, ada.user_id)
        assert "ada@example.com" not in [item.email for item in client.members.list(place)]
        made = client.api_keys.create(place, "reader", ["audit.read"])
        assert made.secret not in repr(made)
        with Client(api[0], made.secret) as reader:
            assert reader.me().scopes == ["audit.read"]
            assert client.api_keys.revoke(place, made.key.id).active is False
            with pytest.raises(NotSignedInError):
                reader.me()


def test_a_list_is_whole_whatever_the_size_of_its_pages(world: World, api: tuple[str, str]) -> None:
    place = world.workspace("acme")
    with Client(*api) as client:
        for number in range(5):
            client.api_keys.create(place, f"k{number}", ["infer"])
        whole = [item.id for item in client.api_keys.list(place)]
        listing = people.list_api_keys(place)
        by_two = Listing(replace(listing.first, query=(("limit", "2"),)))
        assert [item.id for item in client._link.each(by_two)] == whole
        assert len(whole) == 6


def test_what_is_not_there_is_an_error_with_its_code(api: tuple[str, str]) -> None:
    with Client(*api) as client:
        with pytest.raises(NotFoundError) as caught:
            client.deployments.get("d-0123456789ab")
        assert caught.value.code == "not_found"
        assert caught.value.request_id
        with pytest.raises(RequestRefusedError, match=r"body\.scopes"):
            client.api_keys.create("w", "n", ["everything"])


async def test_the_same_with_asyncio(world: World, api: tuple[str, str]) -> None:
    async with AsyncClient(*api) as client:
        place = world.workspace("acme")
        made = await client.deployments.create(place, "chat", "tiny", multi_tenant=False)
        assert [item.id async for item in client.deployments.list(place)] == [made.id]
        assert (await client.me()).roles[place] == "owner"
        with pytest.raises(NotFoundError):
            await client.deployments.get("d-0123456789ab")
        with pytest.raises(WaitedTooLongError):
            await client.deployments.wait(made.id, timeout_s=0)


def test_the_examples_of_the_guide_run(
    world: World, api: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deployment = world.deployment("support")
    world.visit(deployment, "alice")
    monkeypatch.setenv("KVRUN_API_URL", api[0])
    monkeypatch.setenv("KVRUN_API_KEY", api[1])
    monkeypatch.chdir(tmp_path)
    stop = threading.Event()

    def supervise() -> None:
        while not stop.is_set():
            world.services.deployments.supervise()
            stop.wait(0.05)

    thread = threading.Thread(target=supervise)
    thread.start()
    try:
        examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
        assert len(examples) >= 5
        known: dict[str, Any] = {}
        for example in examples:
            exec(compile(example, str(GUIDE), "exec"), known)
    finally:
        stop.set()
        thread.join()
    assert {item.name for item in tmp_path.iterdir()} >= {"certificate.json"}
    assert os.environ["KVRUN_API_KEY"] == api[1]
