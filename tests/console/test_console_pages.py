"""Every page without a browser: rules of HTML, sign-in, escaping, what each form does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from console_rig import Reader, base, console_world
from page_check import check

from api.api_rig import Caller, World
from kvrun.accounts import Role, Scope, write_owner_link
from kvrun.deployments.model import (
    Deployment,
    DeploymentSpec,
    DeploymentState,
    ForeignProcess,
    GpuNote,
)
from kvrun.deployments.records import DeploymentRow, encode
from kvrun.engines.checked import recorded
from kvrun.keys.filesystem import ClaimClass
from support.filesystems import pretend_filesystem

HOSTILE = '"><script>alert(1)</script><img/src=x/onerror=alert(1)>{{7*191919}}'
WORKSPACE_PAGES = (
    "deployments",
    "new-deployment",
    "where",
    "erase",
    "certificates",
    "evidence",
    "policies",
    "storage",
    "finetunes",
    "alerts",
    "approvals",
    "keys",
    "members",
    "settings",
)
SECTIONS = ("", "/cache", "/policy", "/users", "/audit", "/storage",
            "/certificates", "/isolation", "/settings", "/erase", "/labels", "/rebuild",
            "/logs")  # fmt: skip


@pytest.fixture
def chat(world: World) -> Deployment:
    """A deployment with two users and a collected log."""
    made = world.deployment("chat")
    world.visit(made, "alice", "bob")
    return made


def place(world: World, deployment: Deployment) -> str:
    return f"{base(world)}/deployments/{deployment.id}"


async def test_who_is_not_signed_in_is_sent_to_sign_in_and_back(world: World) -> None:
    nobody = Reader(world.nobody)
    asked = f"{base(world)}/members"
    answer = await nobody.ask("GET", asked)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/sign-in?next={asked}"
    page = await nobody.get(answer.headers["location"])
    assert "owner link" in page.said
    assert "Continue to" not in page.said, "no provider is configured"


async def test_the_owner_link_signs_in_once_and_leads_on(world: World) -> None:
    nobody = Reader(world.nobody)
    refused = await nobody.send("/sign-in/owner", {"token": "wrong"})
    assert refused.status_code == 401
    assert "The owner link is not valid" in check(refused.text).said
    link = write_owner_link(world.services.config.layout.owner_link)
    there = f"{base(world)}/keys"
    answer = await nobody.send("/sign-in/owner", {"token": link, "next": there})
    assert (answer.status_code, answer.headers["location"]) == (303, there)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    signed = Reader(Caller(world.app, {"Cookie": cookie.partition(";")[0]}))
    page = await signed.get(there)
    assert "local owner" in page.said
    again = await nobody.send("/sign-in/owner", {"token": link})
    assert again.status_code == 401


async def test_a_configured_provider_is_offered_first(short_folder: Path) -> None:
    text = '[control]\noidc_issuer = "https://login.example.com/acme"\noidc_client_id = "kvrun"\n'
    with console_world(short_folder, text) as world:
        page = await Reader(world.nobody).get("/sign-in")
    assert "Continue to login.example.com" in page.said
    assert "/api/v1/sign-in/oidc?next=/" in page.links
    assert "break-glass" in page.said


@pytest.mark.parametrize("next_page", ["//evil.example/x", "https://evil.example", "/\\evil"])
async def test_signing_in_leads_to_no_other_host(world: World, next_page: str) -> None:
    link = write_owner_link(world.services.config.layout.owner_link)
    nobody = Reader(world.nobody)
    answer = await nobody.send("/sign-in/owner", {"token": link, "next": next_page})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_signing_out_ends_the_sign_in(world: World, owner: Reader) -> None:
    answer = await owner.post("/sign-out")
    assert answer.status_code == 303
    assert (await owner.ask("GET", f"{base(world)}/keys")).status_code == 303


async def test_every_page_of_a_new_workspace_says_what_to_do_next(
    world: World, owner: Reader
) -> None:
    for name in WORKSPACE_PAGES:
        page = await owner.get(f"{base(world)}/{name}")
        assert "Sign out" in page.said
    empty = await owner.get(f"{base(world)}/deployments")
    assert "No deployment yet" in empty.said
    assert any(link.endswith("/new-deployment") for link in empty.links)
    assert (await owner.get("/workspaces")).said


async def test_every_section_of_a_deployment_keeps_the_rules(
    world: World, owner: Reader, chat: Deployment
) -> None:
    for section in SECTIONS:
        page = await owner.get(f"{place(world, chat)}{section}")
        assert "chat" in page.said
        assert "KV cache" in page.said
        if section == "/cache":
            assert page.said.count("1 of 1,000 0 0 B") == 2, "use and quota of alice and of bob"


async def test_answers_are_for_the_reader_alone_and_run_nothing_foreign(
    world: World, owner: Reader
) -> None:
    answer = await owner.ask("GET", f"{base(world)}/deployments")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-frame-options"] == "DENY"


async def test_files_of_the_console_are_found_by_their_content(world: World, owner: Reader) -> None:
    text = (await owner.ask("GET", "/sign-in")).text or ""
    text += (await owner.ask("GET", f"{base(world)}/keys")).text
    files = set(re.findall(r'"(/static/[^"]+)"', text))
    assert len(files) == 5
    for file in files:
        answer = await Reader(world.nobody).ask("GET", file)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert (await owner.ask("GET", "/static/000000000000/console.css")).status_code == 404
    assert (await owner.ask("GET", "/static/x/..%2f..%2fapp.py")).status_code == 404


async def test_what_is_no_page_is_said_on_a_page(world: World, owner: Reader) -> None:
    for path in (
        f"{base(world)}/nothing",
        f"{base(world)}/deployments/d-none",
        "/workspaces/ws-x/keys",
    ):
        page = await owner.get(path, 404)
        assert "Not found" in page.said


async def test_a_deployment_is_made_from_the_form(world: World, owner: Reader) -> None:
    form = f"{base(world)}/new-deployment"
    page = await owner.get(form)
    assert "Internal tool, or product with customers?" in page.said
    refused = await owner.post(form, name="no spaces allowed", model="tiny", engine="vllm",
                               audience="product", memory="much", stateless="no")  # fmt: skip
    assert refused.status_code == 422
    said = check(refused.text).said
    assert "is a size such as" in said
    assert 'value="no spaces allowed"' in refused.text, "what was typed stays"
    unasked = await owner.post(form, name="chat", model="tiny", engine="vllm", stateless="no")
    assert "Choose who uses it" in check(unasked.text).said
    wrong = await owner.post(form, name="no spaces allowed", model="tiny", engine="vllm",
                             audience="product", stateless="no")  # fmt: skip
    assert "must be 1 to 63 letters" in check(wrong.text).said
    made = await owner.post(form, name="chat", model="tiny", engine="vllm", audience="product",
                            stateless="yes", memory="64MiB", disk="", context_window="4,096",
                            labels="team=search\n", gpus="")  # fmt: skip
    assert made.status_code == 303, made.text
    page = await owner.get(made.headers["location"])
    assert "A product with customers" in page.said
    assert "team=search" in page.said
    settings = await owner.get(made.headers["location"].partition("?")[0] + "/settings")
    assert "Stateless: nothing is persisted" in settings.said
    assert "4,096 tokens" in settings.said
    cache = await owner.get(made.headers["location"].partition("?")[0] + "/cache")
    assert "Persistent tier is off" in cache.said
    assert "stateless" in cache.said


async def test_a_deployment_is_started_and_stopped(world: World, owner: Reader) -> None:
    spec = DeploymentSpec(name="chat", model="tiny", multi_tenant=True)
    made = world.services.create_deployment(world.owner_actor, world.workspace("acme"), spec)
    page = await owner.get(place(world, made))
    assert "Start" in page.said
    assert "Drain" not in page.said, "what cannot be done now is not offered"
    assert (await owner.post(f"{place(world, made)}/do/start")).status_code == 303
    world.services.deployments.supervise()
    assert world.services.deployments.get(made.id).state is DeploymentState.RUNNING
    assert "running" in (await owner.get(place(world, made))).said
    refused = await owner.post(f"{place(world, made)}/do/start")
    assert refused.status_code == 409
    assert "cannot start" in check(refused.text).said
    assert (await owner.post(f"{place(world, made)}/do/stop")).status_code == 303


async def test_a_shared_gpu_is_said_on_every_page(
    world: World, owner: Reader, chat: Deployment
) -> None:
    note = GpuNote(0, "GPU-1", "H200", 2**37, (ForeignProcess(4711, "train.py", 2**30),))
    with world.services.database.transaction() as session:
        session.get_one(DeploymentRow, chat.id).gpu_notes = encode((note,))
    for section in SECTIONS:
        page = await owner.get(f"{place(world, chat)}{section}")
        assert "not reserved for this deployment alone" in page.said
        assert "train.py (process 4711)" in page.said


async def test_a_root_that_proves_no_erasure_is_said_on_every_page_from_the_first(
    world: World, owner: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for claim in (ClaimClass.LOGICAL, ClaimClass.DEVICE):
        pretend_filesystem(monkeypatch, claim)
        made = await owner.post(f"{base(world)}/new-deployment", name=f"on-{claim.value}",
                                model="tiny", engine="vllm", audience="internal", stateless="no",
                                context_window="", memory="", disk="", labels="",
                                gpus="")  # fmt: skip
        assert made.status_code == 303, made.text
        overview = made.headers["location"].partition("?")[0]
        for section in ("", "/settings"):
            page = await owner.get(overview + section)
            said = "Erasures here cannot be certified" in page.said
            assert said == (claim is ClaimClass.LOGICAL)


async def test_the_audit_section_says_what_the_engine_can_and_cannot_produce(
    world: World, owner: Reader, chat: Deployment
) -> None:
    page = await owner.get(f"{place(world, chat)}/audit")
    assert "This engine produces the collectable, hash-chained log" in page.said
    record = recorded(chat.spec.engine)
    assert record is not None
    assert f"Checked with {record.summary}" in page.said
    assert any(form["action"].endswith("/collect") for form in page.forms)
    with world.services.database.transaction() as session:
        row = session.get_one(DeploymentRow, chat.id)
        row.spec = encode(replace(chat.spec, engine="another"))
    page = await owner.get(f"{place(world, chat)}/audit")
    assert "cannot produce the collectable log. Redeploy on vLLM" in page.said
    assert not any(form["action"].endswith("/collect") for form in page.forms)


async def test_hostile_names_are_words_and_never_markup(world: World, owner: Reader) -> None:
    spec = DeploymentSpec(name="chat", model=HOSTILE, multi_tenant=True, labels={"team": HOSTILE})
    made = world.services.create_deployment(world.owner_actor, world.workspace("acme"), spec)
    world.services.deployments.start(made.id)
    world.services.deployments.supervise()
    tenant = HOSTILE.replace(" ", "")
    world.visit(made, tenant)
    world.services.accounts.create_key(
        world.owner_actor, world.workspace("acme"), HOSTILE, [Scope.INFER]
    )
    world.services.accounts.create_service_account(
        world.owner_actor, world.workspace("acme"), HOSTILE, Role.DEVELOPER
    )
    world.launcher.alive.discard(made.id)
    texts = []
    for path in ("deployments", "keys", "members"):
        texts.append((await owner.get(f"{base(world)}/{path}")).text)
    for section in SECTIONS:
        texts.append((await owner.get(f"{place(world, made)}{section}")).text)
    shown = await owner.post(f"{place(world, made)}/users", q=tenant, reveal=HOSTILE)
    texts.append(check(shown.text).text)
    where = await owner.post(f"{base(world)}/where", user=tenant)
    texts.append(check(where.text).text)
    planned = await owner.post(f"{place(world, made)}/erase/plan", kind="tenant", tenant=tenant)
    texts.append(check(planned.text).text)
    assert sum("&lt;script&gt;alert(1)" in text for text in texts) >= 6
    for text in texts:
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "1343433" not in text, "no template is read from what people write"


async def test_a_users_id_is_in_no_address(world: World, owner: Reader, chat: Deployment) -> None:
    world.launcher.alive.discard(chat.id)
    shown = await owner.post(f"{place(world, chat)}/users", q="alice", reveal="DSAR-1")
    page = check(shown.text)
    assert "alice" in page.said
    assert not any("alice" in link for link in page.links)


async def test_a_key_is_shown_once(world: World, owner: Reader) -> None:
    made = await owner.post(f"{base(world)}/keys", name="web", scopes=["infer", "erase"], days="30")
    assert made.status_code == 200
    check(made.text)
    secret = re.search(r"kvk_[A-Za-z0-9_-]+", made.text)
    assert secret is not None
    page = await owner.get(f"{base(world)}/keys")
    assert secret[0] not in page.text
    assert "erase, infer" in page.said
    actor = world.services.accounts.authenticate_key(secret[0])
    assert actor.scopes == {Scope.INFER, Scope.ERASE}
    none = await owner.post(f"{base(world)}/keys", name="web", days="30")
    assert "Choose at least one scope" in check(none.text).said
    key = next(form for form in page.forms if form["action"].endswith("/revoke"))
    assert (await owner.post(key["action"])).status_code == 303
    with pytest.raises(Exception, match="not valid"):
        world.services.accounts.authenticate_key(secret[0])


async def test_members_are_added_changed_and_removed(world: World, owner: Reader) -> None:
    members = f"{base(world)}/members"
    assert (await owner.post(members, email="no address", role="admin")).status_code == 422
    added = await owner.post(members, email="ann@example.com", role="developer")
    assert added.status_code == 303
    page = await owner.get(added.headers["location"])
    assert "The member was added." in page.said
    assert "ann@example.com" in page.said
    action = next(form["action"] for form in page.forms if form["action"].endswith("/role"))
    await owner.post(action, role="privacy")
    found = world.services.accounts.list_members(world.owner_actor, world.workspace("acme"))
    assert [item.role for item in found] == [Role.PRIVACY]
    await owner.post(action.replace("/role", "/remove"))
    assert world.services.accounts.list_members(world.owner_actor, world.workspace("acme")) == []
    made = await owner.post(
        f"{base(world)}/service-accounts", service_name="ci", service_role="developer"
    )
    assert made.status_code == 303
    assert "ci" in (await owner.get(members)).said


async def test_an_alert_is_acknowledged_with_a_reason(world: World, owner: Reader) -> None:
    page = await owner.get(f"{base(world)}/alerts")
    assert "Somebody signed in with the owner link" in page.said
    form = next(form for form in page.forms if form["action"].endswith("/acknowledge"))
    fields = {"log": form["field:log"], "deployment": form["field:deployment"]}
    refused = await owner.post(form["action"], **fields, reason="  ")
    assert refused.status_code == 422
    assert (await owner.post(form["action"], **fields, reason="It was me.")).status_code == 303
    page = await owner.get(f"{base(world)}/alerts")
    assert "No alert waits" in page.said
    assert "It was me." in page.said


async def test_a_deployment_that_cannot_be_read_is_named_and_the_rest_is_listed(
    world: World, owner: Reader, chat: Deployment
) -> None:
    chat.config_file.write_text("this is [ no TOML")
    for path in ("certificates", "alerts"):
        page = await owner.get(f"{base(world)}/{path}")
        assert "Not all is listed: chat cannot be read" in page.said
    assert "Somebody signed in with the owner link" in page.said


def test_the_vendored_scripts_are_what_their_note_says() -> None:
    import hashlib

    from kvrun import console

    folder = Path(console.__file__).parent / "static"
    note = (folder / "VENDORED.md").read_text()
    for name in ("htmx.min.js", "htmx-ext-sse.js"):
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert digest in note
    assert "0BSD" in note
