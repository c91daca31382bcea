"""Erasing a workspace, an account, and tenants by label: evidence first, then keys, one parent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_rig import Caller, World, is_problem
from api_server import serving
from click.testing import Result
from typer.testing import CliRunner

from kvrun.accounts import Role, Scope
from kvrun.cli.main import app
from kvrun.control.plane import ControlPlane
from kvrun.deployments.audit_view import AuditViews
from kvrun.deployments.model import Deployment
from kvrun.deployments.registry import TenantNote
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import ErasureStatement, RequestKind
from kvrun.erasure.commitment import commit, parse_opening
from kvrun.errors import KvrunError
from kvrun.instance.parts import certificates_folder, folder_lock, open_parts
from kvrun.keys.listing import TenantsAsked

WORKSPACE = {"kind": "workspace"}
ACME = {"kind": "tenants", "label": "customer=acme"}


@pytest.fixture
def chat(world: World) -> Deployment:
    """A deployment with two end users."""
    made = world.deployment("chat")
    world.visit(made, "alice", "bob")
    return made


@pytest.fixture
def search(world: World) -> Deployment:
    """A stopped one, with one of them."""
    made = world.deployment("search")
    world.visit(made, "alice")
    world.services.deployments.stop(made.id)
    world.services.deployments.supervise()
    return made


def place(world: World, name: str = "acme") -> str:
    return f"/workspaces/{world.ids[name]}/erasures"


async def plan(caller: Caller, where: str, scope: dict[str, str]) -> dict[str, Any]:
    answer = await caller.post(f"{where}/plan", scope)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def erase(
    caller: Caller, where: str, scope: dict[str, str], token: str, **more: object
) -> httpx.Response:
    return await caller.post(where, {**scope, "confirm": token, "reference": "END-1", **more})


def statements(world: World, *made: Deployment) -> dict[str, ErasureStatement]:
    configs = [world.services.deployments.config_of(item.id) for item in made]
    archives = [CertificateArchive(certificates_folder(config)) for config in configs]
    return {item.id: item for archive in archives for item in archive.statements()}


def living(world: World, made: Deployment) -> set[str]:
    config = world.services.deployments.config_of(made.id)
    with open_parts(config, memory_bytes=1 << 20) as parts:
        asked = TenantsAsked(begins="", named=True)
        return {row.tenant for row in parts.instance.keys.listing.tenants(asked).rows}


def label(world: World, made: Deployment, tenant: str, **labels: str) -> None:
    """Say something of an end user, as operators do: by the reference in the log."""
    config = world.services.deployments.config_of(made.id)
    with open_parts(config, memory_bytes=1 << 20) as parts:
        ref = parts.instance.keys.acquire(tenant, "one").tenant_ref
    world.services.deployments.tenants.put(made.id, [TenantNote(tenant_ref=ref, labels=labels)])


async def test_a_workspace_is_erased_with_a_certificate_over_all(
    world: World, chat: Deployment, search: Deployment
) -> None:
    counted = await plan(world.owner, place(world), WORKSPACE)
    assert (counted["tenants"], counted["sessions"]) == (3, 3)
    done = await erase(world.owner, place(world), WORKSPACE, counted["token"])
    assert done.status_code == 201, done.text
    assert living(world, chat) == living(world, search) == set()

    found = statements(world, chat, search)
    parent = found.pop(done.json()["id"])
    assert parent.request.kind is RequestKind.WORKSPACE
    assert {child.certificate_id for child in parent.children} == set(found)
    assert {item.request.kind for item in found.values()} == {RequestKind.DEPLOYMENT}
    assert sum(bool(key.session_ref) for item in found.values() for key in item.keys) == 3
    openings = done.json()["openings"]
    assert parse_opening(openings[parent.id].encode()).id == counted["subject"]
    for made, opening in openings.items():
        stated = {**found, parent.id: parent}[made]
        assert commit(opening.encode()) in stated.scope.commitments

    again = await plan(world.owner, place(world), WORKSPACE)
    done = await erase(world.owner, place(world), WORKSPACE, again["token"])
    assert {child["outcome"] for child in done.json()["deployments"]} == {"nothing_held"}


async def test_the_log_is_collected_before_a_key_goes(
    world: World, chat: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = (await plan(world.owner, place(world), WORKSPACE))["token"]

    def away(*_: object) -> None:
        raise KvrunError("the bucket does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(AuditViews, "collect_now", away)
        refused = await erase(world.owner, place(world), WORKSPACE, token)
        assert "bucket" in is_problem(refused, 409)["detail"]
    assert living(world, chat) == {"alice", "bob"}
    assert (await erase(world.owner, place(world), WORKSPACE, token)).status_code == 201
    config = world.services.deployments.config_of(chat.id)
    assert any(log.seen.size for log in ControlPlane(config).memory.all())


async def test_tenants_with_a_label_are_erased_and_nobody_else(
    world: World, chat: Deployment, search: Deployment
) -> None:
    label(world, chat, "alice", customer="acme")
    label(world, chat, "bob", customer="other")
    label(world, search, "alice", customer="acme")
    world.visit(search, "carol")
    counted = await plan(world.owner, place(world), ACME)
    assert counted["tenants"] == 2
    done = await erase(world.owner, place(world), ACME, counted["token"])
    assert done.status_code == 201, done.text
    assert living(world, chat) == {"bob"}
    assert living(world, search) == {"carol"}
    found = statements(world, chat, search)
    parent = found.pop(done.json()["id"])
    assert parent.request.kind is RequestKind.TENANTS
    assert {item.request.kind for item in found.values()} == {RequestKind.TENANTS}
    opened = {parse_opening(text.encode()).id for text in done.json()["openings"].values()}
    assert opened == {"customer=acme"}, "who is erased by a label is named by it"
    assert "alice" not in done.text
    # What was said of them is forgotten, so there is nobody left to erase.
    assert "customer=acme" in is_problem(
        await world.owner.post(f"{place(world)}/plan", ACME), 404
    )["detail"]  # fmt: skip


async def test_whoever_got_the_label_since_is_planned_anew(world: World, chat: Deployment) -> None:
    label(world, chat, "alice", customer="acme")
    token = (await plan(world.owner, place(world), ACME))["token"]
    label(world, chat, "bob", customer="acme")
    refused = await erase(world.owner, place(world), ACME, token)
    assert "another scope" in is_problem(refused, 409)["detail"]
    assert living(world, chat) == {"alice", "bob"}


async def test_an_account_is_erased_by_who_may_in_every_workspace(
    world: World, chat: Deployment
) -> None:
    other = world.deployment("theirs", "elsewhere")
    world.visit(other, "eve")
    scope = {"kind": "account"}
    ann = world.person("ann@example.com", Role.OWNER)
    refused = is_problem(await ann.post(f"{place(world)}/plan", scope), 403)
    assert "elsewhere" not in refused["detail"]
    counted = await plan(world.owner, place(world), scope)
    assert counted["tenants"] == 3
    assert counted["needs_approval"] is True, "ann is the second person in one of them"
    is_problem(await erase(world.owner, place(world), scope, counted["token"]), 403)
    wish = {**scope, "token": counted["token"]}
    (asked,) = (await world.owner.post(f"{place(world)}/approvals", wish)).json()
    assert (asked["operation"], asked["tenants"]) == ("erase_account", 3)
    where = f"/workspaces/{asked['workspace_id']}/approvals/{asked['id']}"
    assert (await ann.post(f"{where}/approve")).status_code == 200
    done = await erase(world.owner, place(world), scope, counted["token"])
    assert done.status_code == 201, done.text
    assert living(world, chat) == living(world, other) == set()
    parent = statements(world, chat, other)[done.json()["id"]]
    assert (parent.request.kind, parent.scope.workspace) == (RequestKind.ACCOUNT, "")
    opening = parse_opening(done.json()["openings"][parent.id].encode())
    assert (opening.id, opening.workspace) == (counted["subject"], "")


async def test_what_grew_since_it_was_agreed_to_is_not_erased(
    world: World, chat: Deployment
) -> None:
    ann = world.person("ann@example.com", Role.PRIVACY)
    ben = world.person("ben@example.com", Role.PRIVACY)
    token = (await plan(ann, place(world), WORKSPACE))["token"]
    wish = {**WORKSPACE, "token": token}
    (asked,) = (await ann.post(f"{place(world)}/approvals", wish)).json()
    approve = f"/workspaces/{world.ids['acme']}/approvals/{asked['id']}/approve"
    assert (await ben.post(approve)).status_code == 200
    world.visit(chat, *(f"guest-{number}" for number in range(20)))
    refused = is_problem(await erase(ann, place(world), WORKSPACE, token), 409)
    assert "plan counted 2 tenants and there are 22 now" in refused["detail"]
    assert len(living(world, chat)) == 22
    # Of one deployment as well, whose approval is not spent by that.
    token = (await ann.post(f"/deployments/{chat.id}/erasures/plan", {"kind": "deployment"})).json()
    wish = {"deployment_id": chat.id, "token": token["token"]}
    asked = (await ann.post(f"/workspaces/{world.ids['acme']}/approvals", wish)).json()
    approve = f"/workspaces/{world.ids['acme']}/approvals/{asked['id']}/approve"
    assert (await ben.post(approve)).status_code == 200
    world.visit(chat, *(f"more-{number}" for number in range(20)))
    whole = {"kind": "deployment", "confirm": token["token"]}
    is_problem(await ann.post(f"/deployments/{chat.id}/erasures", whole), 409)
    listed = (await ben.get(f"/workspaces/{world.ids['acme']}/approvals")).json()["items"]
    assert [item["taken_at"] for item in listed] == [None, None]


async def test_a_deployment_that_is_away_is_erased_when_asked_again(
    world: World, chat: Deployment, search: Deployment
) -> None:
    ann = world.person("ann@example.com", Role.PRIVACY)
    ben = world.person("ben@example.com", Role.PRIVACY)
    token = (await plan(ann, place(world), WORKSPACE))["token"]
    wish = {**WORKSPACE, "token": token}
    (asked,) = (await ann.post(f"{place(world)}/approvals", wish)).json()
    approve = f"/workspaces/{world.ids['acme']}/approvals/{asked['id']}/approve"
    assert (await ben.post(approve)).status_code == 200
    config = world.services.deployments.config_of(search.id)
    with folder_lock(config.layout.data_dir):  # a daemon that starts and does not answer yet
        refused = await erase(ann, place(world), WORKSPACE, token)
        assert refused.is_error
    assert (living(world, chat), living(world, search)) == (set(), {"alice"})
    # One agreement is for one erasure, however often it has to be asked for.
    done = await erase(ann, place(world), WORKSPACE, token)
    assert done.status_code == 201, done.text
    assert living(world, search) == set()
    found = statements(world, chat, search)
    assert sum(bool(item.children) for item in found.values()) == 1
    is_problem(await erase(ann, place(world), WORKSPACE, token), 403)


async def test_without_a_plans_token_nothing_is_erased(world: World, chat: Deployment) -> None:
    for token in ("", f"{chat.id}:", "x:y", ",:,"):
        is_problem(await erase(world.owner, place(world), WORKSPACE, token), 404)
    is_problem(await erase(world.owner, place(world), WORKSPACE, f"{chat.id}:made-up"), 409)
    for wrong in ({"kind": "tenants"}, {"kind": "tenants", "label": "acme"}, {"kind": "user"}):
        answer = await world.owner.post(f"{place(world)}/plan", wrong)
        assert answer.status_code in (400, 422)
    assert living(world, chat) == {"alice", "bob"}


async def test_a_workspace_that_never_ran_anything_says_so(world: World) -> None:
    nothing = is_problem(await world.owner.post(f"{place(world)}/plan", WORKSPACE), 404)
    assert "nothing is held" in nothing["detail"]


def test_the_commands_do_the_same(
    world: World, chat: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    label(world, chat, "alice", customer="acme")
    world.ids["default"] = world.services.accounts.ensure_workspace(
        world.services.first_workspace
    ).id
    key = world.key(world.owner_actor, [Scope.ADMIN]).headers["Authorization"].split()[1]
    monkeypatch.chdir(world.services.config.layout.data_dir)

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["erase", *words])

    with serving(world) as url:
        for name, value in (
            ("KVRUN_API_URL", url), ("KVRUN_API_KEY", key), ("KVRUN_WORKSPACE", "acme"),
            ("COLUMNS", "100"),
        ):  # fmt: skip
            monkeypatch.setenv(name, value)
        shown = run("tenants", "--label", "customer=acme", "--plan")
        assert shown.exit_code == 0, shown.output
        command = shown.stdout.rpartition("kvrun erase ")[2].split()
        done = run(*command, "--ref", "END-2")
        assert done.exit_code == 0, done.output
        assert "erased" in done.stdout
        assert living(world, chat) == {"bob"}
        whole = run("workspace", "acme", "--plan", "--json")
        token = json.loads(whole.stdout)["token"]
        done = run("workspace", "acme", "--confirm", token, "--json")
        assert json.loads(done.stdout)["deployments"][0]["outcome"] == "erased", done.output
        refused = run("account", "--plan")
        assert "may not do this" in refused.stderr
        own = Path("other.key")
        other = world.key(world.owner_actor, [Scope.ADMIN], "default")
        own.write_text(other.headers["Authorization"].split()[1])
        own.chmod(0o600)
        nothing = run("account", "--also-key-file", str(own), "--plan", "--json")
        assert json.loads(nothing.stdout)["tenants"] == 0, nothing.output
    assert living(world, chat) == set()
