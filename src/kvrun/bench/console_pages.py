"""Which pages and answers ``kvrun bench console`` asks for: every GET of console and API, and the
POSTs that only read.

A route that is neither asked for nor named in ``LEFT_OUT`` is an error, so that no page is
forgotten.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.routing import APIRoute

from kvrun.errors import KvrunError

LEFT_OUT: Mapping[str, str] = {
    "events": "it never ends",
    "/": "it leads to another page",
    "/finetunes/{name}": "it reads every byte of a model",
    "/finetunes/{name}/job": "there is one while a model is trained",
    "/finetunes/{name}/statement": "a file",
    "/{section}/runs/{run_id}": "it follows an erasure, as a deployment's run does",
    "/openings/{certificate_id}": "a file",
    "/bundle": "a file",
    "/segments/{name:path}": "a file",
    "/storage/object": "a file",
    "/static/{version}/{name}": "a file",
    "/{rest:path}": "it is no page",
    "/sign-in": "whoever is signed in is led on",
    "/logs/{process}": "a file",
    "/sign-in/oidc": "it leads to the identity provider",
    "/sign-in/oidc/callback": "the identity provider leads there",
    "/api/v1/deployments/{deployment_id}/policy/diff": "it compares two revisions of a repository",
    "/api/v1/deployments/{deployment_id}/policy/simulation": "it decides anew about a whole log",
}
"""By how a path ends, and why."""
_PERIOD = "from=2026-01-01&to=2027-01-01"
_QUERY = {
    "list_deployments": "limit=200",
    "get_controls": _PERIOD,
}
_API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Question:
    """A page, or an answer of the API, and what is sent for it."""

    name: str
    method: str
    path: str
    form: dict[str, str] | None = None
    body: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What stands for the parts of addresses, and about whom one asks.

    ``ids`` by the parameters' names; ``person`` is an end user's id, who has a session, and
    ``csrf_token`` that of whoever is signed in.
    """

    ids: Mapping[str, str]
    person: str
    csrf_token: str


def questions(app: FastAPI, asked: Asked) -> list[Question]:
    """All of them. Raises KvrunError for a route that nobody thought of."""
    found = []
    for route in app.routes:
        if not isinstance(route, APIRoute) or "GET" not in route.methods:
            continue
        if any(route.path.endswith(end) if end != "/" else route.path == end for end in LEFT_OUT):
            continue
        unknown = set(route.param_convertors) - set(asked.ids)
        if unknown:
            raise KvrunError(f"nothing stands for {sorted(unknown)} of {route.path}")
        query = _QUERY.get(route.name, "")
        path = route.path.format(**asked.ids) + (f"?{query}" if query else "")
        found.append(Question(_name(route), "GET", path))
    return [*found, *_searches(asked), *_pages_that_answer(asked)]


def _pages_that_answer(asked: Asked) -> list[Question]:
    """Pages that answer a form and change nothing."""
    ids, person = asked.ids, asked.person
    workspace = f"/workspaces/{ids['workspace_id']}"
    deployment = f"{workspace}/deployments/{ids['deployment_id']}"
    pages: list[tuple[str, str, dict[str, str]]] = [
        ("deployment, users, by id", f"{deployment}/users", {"q": person}),
        ("deployment, users, with ids", f"{deployment}/users", {"reveal": "a benchmark"}),
        (
            "deployment, user, with ids",
            f"{deployment}/users/{ids['tenant_ref']}",
            {"reveal": "a benchmark"},
        ),
        (
            "deployment, erase, plan",
            f"{deployment}/erase/plan",
            {"kind": "tenant", "tenant": person},
        ),
        ("where, for a person", f"{workspace}/where", {"user": person}),
        ("where, plan", f"{workspace}/where/plan", {"user": person}),
    ]
    return [
        Question(f"page {name}", "POST", path, form={"csrf_token": asked.csrf_token, **form})
        for name, path, form in pages
    ]


def _searches(asked: Asked) -> list[Question]:
    """Operations of the API that take what they look for in a body."""
    ids, person = asked.ids, asked.person
    deployment = f"{_API}/deployments/{ids['deployment_id']}"
    workspace = f"{_API}/workspaces/{ids['workspace_id']}"
    operations: list[tuple[str, str, dict[str, object]]] = [
        ("search_users", f"{deployment}/users/search", {}),
        ("search_users, by id", f"{deployment}/users/search", {"query": person}),
        ("search_users, with ids", f"{deployment}/users/search", {"reason": "a benchmark"}),
        ("search_sessions", f"{deployment}/sessions/search", {"tenant": person}),
        ("get_tenants", f"{deployment}/tenants/search", {"tenant_refs": [ids["tenant_ref"]]}),
        ("where_is", f"{workspace}/where-is", {"user": person}),
        ("plan_erasure", f"{deployment}/erasures/plan", {"kind": "tenant", "tenant": person}),
        ("plan_user_erasure", f"{workspace}/user-erasures/plan", {"user": person}),
    ]
    found = [Question(f"API {name}", "POST", path, body=body) for name, path, body in operations]
    records = f"{deployment}/audit/records"
    return [*found, Question("API list_records, of one event", "GET", f"{records}?event=whois")]


def _name(route: APIRoute) -> str:
    if route.path.startswith(_API) or not route.path.startswith("/workspaces"):
        return f"API {route.name}" if route.include_in_schema else f"page {route.path.strip('/')}"
    tail = route.path.removeprefix("/workspaces/{workspace_id}").removeprefix("/workspaces")
    tail = tail.replace("/deployments/{deployment_id}", "deployment").strip("/")
    for before, after in (
        ("deployment/", "deployment, "),
        ("users/{tenant_ref}", "user"),
        ("certificates/{certificate_id}", "certificate"),
        ("evidence/{job_id}", "evidence, one"),
        ("runs/{run_id}", "run"),
    ):
        tail = tail.replace(before, after)
    return f"page {tail or 'workspaces'}"
