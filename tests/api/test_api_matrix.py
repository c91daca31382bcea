"""Every role and every kind of API key at every operation of the API: exactly who may do what.

The operations come from the OpenAPI document; one without a row here fails.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_rig import Caller, World, is_problem, open_world

from kvrun.accounts import Role, Scope
from kvrun.accounts.oidc import challenge_of
from kvrun.api.app import openapi_text
from kvrun.launch import erasing

DOCUMENT: dict[str, Any] = json.loads(openapi_text())

# y: may; -: is known here and may not (403); .: has no business here (404).
WHO = ("owner", "admin", "developer", "privacy", "auditor",
       "key infer", "key erase", "key audit.read", "key evidence", "key admin")  # fmt: skip
PERMISSIONS = {
    #                   ow  ad  de  pr  au  in  er  re  ev  ad
    "view":            " y   y   y   y   y   .   y   y   y   y ",
    "deploy":          " y   y   y   -   -   .   -   -   -   y ",
    "deploy and erase wide":
                        " y   y   -   -   -   .   -   -   -   y ",
    "keys":            " y   y   y   y   -   .   -   -   -   y ",
    "members":         " y   y   -   -   -   .   -   -   -   y ",
    "settings":        " y   y   -   -   -   .   -   -   -   y ",
    "erase":           " y   y   -   y   -   .   y   -   -   y ",
    "erase wide":      " y   y   -   y   -   .   -   -   -   y ",
    "second person":   " y   y   -   y   -   .   -   -   -   - ",
    "whois":           " y   y   -   y   -   .   -   -   -   y ",
    "certificates":    " y   y   -   y   y   .   y   -   y   y ",
    "audit read":      " y   y   y   y   y   .   -   y   y   y ",
    "alerts":          " y   y   -   -   -   .   -   -   -   y ",
    "evidence":         " y   y   -   -   y   .   -   -   y   y ",
    "delete workspace":" y   -   -   -   -   .   -   -   -   y ",
    "new workspace":   " y   -   -   -   -   -   -   -   -   - ",
    "people":          " y   y   y   y   y   -   -   -   -   - ",
    "anybody signed in": " y y   y   y   y   y   y   y   y   y ",
}  # fmt: skip

SESSION = {"kind": "session", "tenant": "nobody-known", "session": "one"}
WHOLE = {"kind": "deployment"}
SPEC = {"name": "made-here", "model": "tiny", "multi_tenant": True}
NOTE = {"tenants": [{"tenant_ref": "a1" * 16, "tenant_class": "gold"}]}


@dataclass(frozen=True)
class Row:
    """What one operation needs, and a request that is whole."""

    operation: str
    permission: str
    body: object = None
    query: str = ""
    path: str = ""
    """Path parameters in place of the usual ones, ``name=value``."""


ROWS = (
    Row("get_me", "anybody signed in"),
    Row("list_logins", "people"),
    Row("end_login", "people"),
    Row("list_workspaces", "anybody signed in"),
    Row("create_workspace", "new workspace", {"name": "another-{who}"}),
    Row("get_workspace", "view"),
    Row("list_members", "view"),
    Row("add_member", "members", {"email": "new@example.com", "role": "auditor"}),
    Row("set_member_role", "members", {"role": "auditor"}),
    Row("remove_member", "members"),
    Row("list_service_accounts", "view"),
    Row("create_service_account", "members", {"name": "robot-{who}", "role": "developer"}),
    Row("delete_service_account", "members"),
    Row("list_api_keys", "view"),
    Row("create_api_key", "keys", {"name": "k", "scopes": ["{scope}"]}),
    Row("rotate_api_key", "keys", {}),
    Row("revoke_api_key", "keys"),
    Row("list_deployments", "view"),
    Row("create_deployment", "deploy", {**SPEC, "name": "made-by-{who}"}),
    Row("get_deployment", "view"),
    Row("start_deployment", "deploy"),
    Row("restart_deployment", "deploy"),
    Row("rebuild_deployment", "deploy"),
    Row("drain_deployment", "deploy"),
    Row("stop_deployment", "deploy"),
    Row("delete_deployment", "deploy and erase wide", {"name": "not its name"}),
    Row("create_attach_token", "deploy", {"name": "theirs-{who}"}),
    Row("detach_deployment", "deploy"),
    Row("get_overview", "view"),
    Row("get_cache", "view"),
    Row("get_policy", "view"),
    Row("list_policy_revisions", "view"),
    Row("compare_policies", "audit read", query="after=active"),
    Row("simulate_policy", "audit read"),
    Row("list_policy_violations", "audit read"),
    Row("sync_policy", "deploy"),
    Row("get_process_log", "deploy", path="process=engine"),
    Row("search_users", "view", {}),
    Row("search_users", "whois", {"query": "alice"}),
    Row("search_users", "whois", {"reason": "ticket 1"}),
    Row("search_sessions", "whois", {"tenant": "alice"}),
    Row("where_is", "whois", {"user": "alice"}),
    Row("put_tenants", "settings", NOTE),
    Row("import_tenants", "settings", {"csv": f"tenant_ref,class\n{'a1' * 16},gold\n"}),
    Row("get_tenants", "view", {"tenant_refs": ["a1" * 16]}),
    Row("plan_erasure", "erase", SESSION),
    Row("plan_erasure", "erase wide", WHOLE),
    Row("erase", "erase", SESSION),
    Row("list_erasures", "certificates"),
    Row("get_erasure", "certificates"),
    Row("plan_user_erasure", "erase", {"user": "alice"}),
    Row("erase_user", "erase", {"user": "alice", "confirm": {}}),
    Row("plan_wide_erasure", "erase wide", {"kind": "workspace"}),
    Row("plan_wide_erasure", "erase wide", {"kind": "tenants", "label": "customer=acme"}),
    Row("ask_wide_approval", "erase wide", {"kind": "workspace", "token": "no:token"}),
    Row("erase_wide", "erase wide", {"kind": "workspace", "confirm": "no:token"}),
    Row("ask_approval", "erase wide", {"deployment_id": "{deployment_id}", "token": "plan"}),
    Row("list_approvals", "erase wide"),
    Row("approve", "second person"),
    Row("refuse_approval", "erase wide"),
    Row("list_certificates", "certificates"),
    Row("list_certificates", "certificates", query="deployment_id={deployment_id}"),
    Row("get_certificate", "certificates"),
    Row("get_certificate_page", "certificates"),
    Row("get_certificate_pdf", "certificates"),
    Row("get_trust_anchor", "view"),
    Row("get_audit", "audit read"),
    Row("list_records", "audit read"),
    Row("collect_now", "audit read"),
    Row("get_segment", "audit read", path="name=segment-0000000000000000.jsonl"),
    Row("browse_storage", "view"),
    Row("browse_storage", "view", query="prefix=deployments/{deployment_id}/audit"),
    Row("get_object", "view", query="key=deployments/{deployment_id}/kv/a"),
    Row("get_object", "audit read", query="key=deployments/{deployment_id}/audit/a"),
    Row("get_object", "certificates", query="key=deployments/{deployment_id}/certificates/a"),
    Row("list_finetunes", "view"),
    Row("get_finetune", "view", path="name=none"),
    Row("get_finetune_statement", "view", path="name=none"),
    Row("create_finetune", "deploy", {"name": "none", "base": "none", "data": "x"}),
    Row("resume_finetune", "deploy", path="name=none"),
    Row("cancel_finetune", "deploy", path="name=none"),
    Row("delete_finetune", "deploy", path="name=none"),
    Row("get_served_evaluation", "view"),
    Row("list_isolation", "view"),
    Row("run_isolation", "deploy", {}),
    Row("get_controls", "evidence", query="from=2026-01-01&to=2026-02-01"),
    Row("start_evidence", "evidence", {"from": "2026-01-01", "to": "2026-02-01"}),
    Row("start_deployment_evidence", "evidence", {"from": "2026-01-01", "to": "2026-02-01"}),
    Row("list_evidence", "evidence"),
    Row("get_evidence", "evidence"),
    Row("get_bundle", "evidence"),
    Row("get_evidence_anchor", "evidence"),
    Row("list_alerts", "view"),
    Row("acknowledge_alerts", "alerts", {"log": "acme/chat/host", "reason": "seen"}),
    Row(
        "acknowledge_alerts",
        "alerts",
        {"log": "acme/chat/host", "reason": "seen", "deployment_id": "{deployment_id}"},
    ),
    # The last one: nothing new is made in a workspace whose deletion began.
    Row("delete_workspace", "delete workspace"),
)
WITHOUT_ROLES = {
    "sign_in_methods", "claim_owner_link", "start_oidc", "finish_oidc", "healthz", "readyz",
    "sign_out", "finish_login", "attach_deployment", "announce_policy_push",
}  # fmt: skip
"""Not a matter of roles: signing in and out, a command line's code, health, what an attach token
opens, and what a Git host signs."""

OPERATIONS = {
    operation["operationId"]: (method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
ITEMS = ("user_id", "account_id", "key_id", "erasure_id", "approval_id", "certificate_id",
         "evidence_id", "login_id")  # fmt: skip


def row_name(row: Row) -> str:
    """A row's name: the operation, and what tells it from another row of the same one."""
    return f"{row.operation} {row.permission}{' ' + row.query.split('=')[0] if row.query else ''}"


@dataclass(frozen=True)
class Place:
    """Ids that fill a path, and what is in a body or a query."""

    workspace_id: str
    deployment_id: str
    item_id: str = "usr-0123456789abcdef0123"

    def fill(self, text: str, who: str = "", scope: str = "infer") -> str:
        """``text`` with the names in braces replaced."""
        for name in ITEMS:
            text = text.replace("{" + name + "}", self.item_id)
        for name, value in (
            ("workspace_id", self.workspace_id),
            ("deployment_id", self.deployment_id),
            ("who", who.replace(" ", "-").replace(".", "-")),
            ("scope", scope),
        ):
            text = text.replace("{" + name + "}", value)
        return text


class Matrix:
    """A control plane with one caller of each kind, and two workspaces."""

    def __init__(self, world: World) -> None:
        self.world = world
        deployment = world.deployment("chat")
        self.here = Place(world.workspace("acme"), deployment.id)
        self.elsewhere = Place("ws-0123456789abcdef0123", "d-0123456789ab")
        self.callers = {role.value: world.person(f"{role}@example.com", role) for role in Role}
        self.stranger = world.person("stranger@example.com", Role.OWNER, "other")
        owner = world.actor(self.callers["owner"])
        for name in WHO[len(Role) :]:
            self.callers[name] = world.key(owner, [name.removeprefix("key ")])
        second = world.deployment("second")
        self.second = Place(self.here.workspace_id, second.id)
        self.bound = world.key(owner, ["admin"], deployment_id=second.id)
        accounts, acme = world.services.accounts, self.here.workspace_id
        self.items = {
            "user_id": self.callers["auditor"].user_id,
            "account_id": accounts.create_service_account(owner, acme, "theirs", Role.ADMIN).id,
            "key_id": accounts.create_key(owner, acme, "theirs", [Scope.INFER])[0].id,
            "approval_id": accounts.ask_approval(
                owner, acme, "erase_deployment", "a-plan", deployment_id=deployment.id
            ).id,
        }

    async def ask(self, caller: Caller, row: Row, place: Place, who: str) -> httpx.Response:
        """One request of a row."""
        method, path = OPERATIONS[row.operation]
        for item in filter(None, row.path.split(",")):
            name, _, value = item.partition("=")
            path = path.replace("{" + name + "}", value)
        scope = "audit.read" if who == "privacy" else "infer"
        url = place.fill(path) + ("?" + place.fill(row.query) if row.query else "")
        if row.body is None:
            return await caller.ask(method, url)
        body = json.loads(place.fill(json.dumps(row.body), who, scope))
        return await caller.ask(method, url, json=body)


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    folder = Path(tempfile.mkdtemp(prefix="kvr-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch, open_world(folder) as world:
        # The test's process is to stay one that a debugger may look at.
        patch.setattr(erasing, "harden_process", lambda: None)
        yield Matrix(world)
    shutil.rmtree(folder, ignore_errors=True)


def same(answer: httpx.Response) -> tuple[int, dict[str, Any]]:
    """What an answer says, without the id of its request."""
    said = is_problem(answer, answer.status_code)
    return answer.status_code, {name: said[name] for name in said if name != "request_id"}


def test_every_operation_has_a_row() -> None:
    assert {row.operation for row in ROWS} | WITHOUT_ROLES == set(OPERATIONS)
    assert not {row.operation for row in ROWS} & WITHOUT_ROLES


def test_the_table_says_something_about_everybody() -> None:
    assert {len(line.split()) for line in PERMISSIONS.values()} == {len(WHO)}
    assert {row.permission for row in ROWS} == set(PERMISSIONS)


@pytest.mark.parametrize("row", ROWS, ids=row_name)
async def test_exactly_those_may_who_are_listed(matrix: Matrix, row: Row) -> None:
    found = {}
    for who in WHO:
        answer = await matrix.ask(matrix.callers[who], row, matrix.here, who)
        # A deployment that never ran has nobody to ask.
        away = answer.status_code == 503 and answer.json()["code"] == "unreachable"
        assert answer.status_code < 500 or away, answer.text
        # A known caller who may not is told so; what is allowed may still not be there.
        known = {401: "?", 403: "-"}.get(answer.status_code, "y")
        hidden = answer.status_code == 404 and "no such workspace or deployment" in answer.text
        found[who] = "." if hidden else known
    assert found == dict(zip(WHO, PERMISSIONS[row.permission].split(), strict=True))


@pytest.mark.parametrize("who", ["privacy", "auditor"])
async def test_a_login_on_a_command_line_may_what_its_person_may(matrix: Matrix, who: str) -> None:
    accounts, verifier = matrix.world.services.accounts, "v" * 43
    browser = matrix.callers[who].headers["Cookie"].partition("=")[2]
    code = accounts.allow_login(browser, challenge_of(verifier), 3600)
    token = accounts.finish_login(code, verifier).token
    caller = Caller(matrix.world.app, {"Authorization": f"Bearer {token}"})
    for row in ROWS:
        answer = await matrix.ask(caller, row, matrix.here, who)
        expected = PERMISSIONS[row.permission].split()[WHO.index(who)]
        if row.operation == "rotate_api_key":  # its successor would end with the login
            expected = "-"
        assert {401: "?", 403: "-"}.get(answer.status_code, "y") == expected, row


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if "{workspace_id}" in OPERATIONS[row.operation][1]
     or "{deployment_id}" in OPERATIONS[row.operation][1]],
    ids=row_name,
)  # fmt: skip
async def test_what_is_another_workspaces_looks_like_what_is_not_there(
    matrix: Matrix, row: Row
) -> None:
    theirs = await matrix.ask(matrix.stranger, row, matrix.here, "stranger")
    random = await matrix.ask(matrix.stranger, row, matrix.elsewhere, "stranger")
    assert same(theirs) == same(random)
    assert theirs.status_code == 404


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if "{deployment_id}" in str((row.body, row.query))],
    ids=row_name,
)
async def test_an_id_in_a_body_or_a_query_leads_nowhere_else_either(
    matrix: Matrix, row: Row
) -> None:
    own = matrix.world.workspace("other")
    theirs = Place(own, matrix.here.deployment_id)
    random = Place(own, matrix.elsewhere.deployment_id)
    answers = [await matrix.ask(matrix.stranger, row, place, "s") for place in (theirs, random)]
    assert same(answers[0]) == same(answers[1])
    assert answers[0].status_code == 404


async def test_items_of_another_workspace_are_not_found_in_ones_own(matrix: Matrix) -> None:
    own, deployment = matrix.world.workspace("other"), matrix.here.deployment_id
    tried = 0
    for row in ROWS:
        path = OPERATIONS[row.operation][1]
        for name, item in matrix.items.items():
            if "{" + name + "}" in path:
                theirs = await matrix.ask(matrix.stranger, row, Place(own, deployment, item), "s")
                random = await matrix.ask(matrix.stranger, row, Place(own, deployment), "s")
                assert same(theirs) == same(random)
                assert theirs.status_code == 404
                tried += 1
    assert tried == 7


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.permission != "anybody signed in"],
    ids=row_name,
)
async def test_a_key_for_one_deployment_reaches_nothing_beside_it(matrix: Matrix, row: Row) -> None:
    answer = await matrix.ask(matrix.bound, row, matrix.here, "bound")
    if row.operation == "list_deployments":
        assert [item["spec"]["name"] for item in answer.json()["items"]] == ["second"]
        return
    named = f"{OPERATIONS[row.operation][1]} {row.body} {row.query}"
    is_problem(answer, 404 if "{deployment_id}" in named else 403)


async def test_a_key_for_one_deployment_works_there(matrix: Matrix) -> None:
    row = next(row for row in ROWS if row.operation == "get_deployment")
    answer = await matrix.ask(matrix.bound, row, matrix.second, "bound")
    assert answer.status_code == 200, answer.text


async def test_an_attach_token_that_was_never_given_opens_nothing(matrix: Matrix) -> None:
    body = {"token": "made-up", "config_file": "/etc/kvrun.toml"}
    answer = await matrix.world.nobody.post("/attached-deployments", body)
    assert 400 <= answer.status_code < 500
