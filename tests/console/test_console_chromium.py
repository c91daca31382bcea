"""The demo story in a real browser: deploy, use, collect, erase, tamper, delete, still read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec
import pytest
from console_stage import Stage, Tab, deployment_id_of, open_stage, open_tab
from fine_tune import evaluated
from playwright.sync_api import Browser, expect

from api.policy_stage import connect
from deployments.deploy_rig import Users
from kvrun.accounts.errors import UnauthenticatedError
from kvrun.api import finetunes
from kvrun.cli.login_listener import LoginListener
from kvrun.client.login import begin_login, finish_login
from kvrun.control.plane import ControlPlane
from kvrun.deployments.launcher import Site
from kvrun.deployments.local import up_command
from kvrun.deployments.model import Deployment, DeploymentSpec, DeploymentState
from kvrun.finetune.store import FineTunes
from support.browser import chromium
from support.byhand import HandEngine
from support.client import eventually

T = TypeVar("T")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def stage(short_folder: Path) -> Iterator[Stage]:
    with open_stage(short_folder) as opened:
        yield opened


@pytest.fixture
def tab(browser: Browser, stage: Stage) -> Iterator[Tab]:
    with open_tab(browser, stage) as opened:
        yield opened


def test_the_demo_story_in_chromium(tab: Tab, stage: Stage, short_folder: Path) -> None:
    base = f"/workspaces/{stage.workspace_id}"
    sign_in(tab, stage)
    deployment = deploy(tab, stage)
    place = f"{base}/deployments/{deployment.id}"
    use(tab, stage, deployment, place)
    users(tab, place)
    certificate = erase(tab, stage, deployment, place)
    audit(tab, place)
    the_rest_of_the_workspace(tab, stage, deployment, base, place)
    tamper(tab, stage, deployment, base, place)
    residency(tab, stage, base, short_folder)
    delete(tab, stage, deployment, base, place, certificate)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_demo_story_with_a_real_engine_in_chromium(
    browser: Browser, short_folder: Path
) -> None:
    """`kvrun up` with vLLM, and two users who chat with it through its gateway."""

    def up(site: Site) -> list[str]:
        # Compiling takes minutes and is not what this is about.
        return ["/usr/bin/env", "KVRUN_ENGINE__ENFORCE_EAGER=true", *up_command(site)]

    with open_stage(short_folder, up) as stage, open_tab(browser, stage) as tab:
        base = f"/workspaces/{stage.workspace_id}"
        sign_in(tab, stage)
        deployment = deploy(tab, stage, start_s=900)
        place = f"{base}/deployments/{deployment.id}"
        key = make_key(tab, base)
        for user in ("alice", "alice", "bob", "bob"):
            say(stage, deployment, key, user)
        tab.open(place)
        expect(tab.page.locator(".numbers")).to_contain_text(re.compile("[1-9][0-9.]* %"))
        tab.keep("60-real-overview")
        tab.open(f"{place}/cache")
        tab.keep("61-real-cache")
        certificate = erase(tab, stage, deployment, place, "sealed block")
        audit(tab, place)
        tamper(tab, stage, deployment, base, place)
        delete(tab, stage, deployment, base, place, certificate)


def test_a_command_line_is_let_in_in_chromium(tab: Tab, stage: Stage) -> None:
    """The code comes to the listener through a real browser, and by hand from the page."""
    page, accounts = tab.page, stage.services.accounts
    opened = accounts.claim_owner_link(stage.owner_link())
    page.context.add_cookies([{"name": "kvrun", "value": opened.token, "url": stage.url}])
    with LoginListener() as listener, ThreadPoolExecutor(1) as pool:
        begun = begin_login(stage.url, redirect_uri=listener.url)
        waiting = pool.submit(listener.wait, begun.state, 60)
        page.goto(begun.page)
        tab.keep("62-login")
        page.get_by_role("button", name="Allow", exact=True).click()
        code = waiting.result()
        expect(page.get_by_text("Go back to the command line")).to_be_visible()
        assert page.url.startswith(listener.url)
    told = f"foreign request: {listener.url}"
    tab.problems[:] = [problem for problem in tab.problems if not problem.startswith(told)]
    assert finish_login(stage.url, code, begun.verifier).name == "local owner"
    pasted = begin_login(stage.url, hours=8)
    page.goto(pasted.page)
    expect(page.get_by_label("For")).to_have_value("8")
    page.get_by_role("button", name="Allow", exact=True).click()
    tab.keep("63-login-code")
    code = page.locator("#code").inner_text()
    login = finish_login(stage.url, code, pasted.verifier)
    tab.open(f"/workspaces/{stage.workspace_id}/keys")
    page.get_by_role("button", name="End now").first.click()
    page.get_by_role("button", name="End now").first.click()
    with pytest.raises(UnauthenticatedError):
        accounts.actor_of_login(login.token)


def make_key(tab: Tab, base: str) -> str:
    """An API key for the gateways, made in the console."""
    page = tab.page
    tab.open(f"{base}/keys")
    page.get_by_label("Name").fill("chats")
    page.get_by_label("infer").check()
    page.get_by_role("button", name="Make key").click()
    found = re.search(r"kvk_[\w-]+", page.locator("#secret").inner_text())
    assert found is not None
    return found[0]


def say(stage: Stage, deployment: Deployment, key: str, user: str) -> None:
    """One message of a user; the gateway knows a new key within seconds."""
    view = stage.services.views.overview(deployment.id)
    message = {"role": "user", "content": f"I am {user}. " + "Tell me about it. " * 40}
    body = {"model": view.model_name, "messages": [message], "max_tokens": 8}
    headers = {"Authorization": f"Bearer {key}", "X-KV-Tenant": user}

    def answered() -> bool:
        answer = httpx.post(
            f"{view.endpoint}/chat/completions", json=body, headers=headers, timeout=300
        )
        assert answer.status_code in (200, 401), answer.text
        return answer.status_code == 200

    eventually(answered, "the key is known to the gateway", 30)


def test_evidence_and_fine_tunes_in_chromium(
    tab: Tab, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetunes, "require_tools", lambda: None)
    monkeypatch.setattr(finetunes, "run_job", lambda *_: None)
    sign_in(tab, stage)
    page, base = tab.page, f"/workspaces/{stage.workspace_id}"
    tab.open(f"{base}/evidence")
    page.get_by_text("In a bundle").first.click()
    tab.keep("42-evidence")
    page.get_by_role("button", name="Export evidence").click()
    expect(page.get_by_role("link", name="Download").first).to_be_visible(timeout=60_000)
    tab.keep("50-evidence-made")
    evaluated(stage.services.config.layout, "support-1")
    tab.open(f"{base}/finetunes")
    expect(page.get_by_role("table")).to_contain_text("support-1")
    tab.keep("51-finetunes")
    tab.open(f"{base}/finetunes/support-1")
    expect(page.get_by_text("every file is the one that was evaluated")).to_be_visible()
    tab.keep("52-finetune")
    tab.open(f"{base}/finetunes")
    page.get_by_label("Name", exact=True).fill("support-2")
    page.get_by_label("Base model").fill("demo")
    page.get_by_label("Examples", exact=True).fill('{"prompt": "a", "completion": "b"}\n' * 3)
    page.get_by_role("button", name="Make the fine-tune").click()
    store = FineTunes(stage.services.config.layout.finetunes)
    with store.working("support-2") as job:
        note = store.job("support-2")
        store.note_job(job, msgspec.structs.replace(note, step=3, steps=12, what="training"))
        expect(page.get_by_text("step 3 of 12")).to_be_visible(timeout=20_000)
        tab.keep("53-finetune-job")


def sign_in(tab: Tab, stage: Stage) -> None:
    page = tab.page
    tab.open("/")
    expect(page).to_have_title("Sign in · kvrun")
    tab.keep("01-sign-in")
    tab.open("/api/v1/sign-in/oidc/callback?error=access_denied")
    tab.keep("01-sign-in-failed")
    tab.open("/sign-in")
    page.get_by_label("Owner link token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    page.get_by_label("Owner link token").fill(stage.owner_link())
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Deployments")
    tab.keep("02-deployments-none")


def deploy(tab: Tab, stage: Stage, *, start_s: int = 60) -> Deployment:
    page = tab.page
    page.get_by_role("link", name="New deployment").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("New deployment")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    tab.keep("03-new-deployment")
    page.get_by_label("Name", exact=True).first.fill("support-bot")
    page.get_by_label("Model").fill("tiny")
    page.get_by_label("Product with customers").check()
    page.get_by_label("Memory tier").fill("8MiB")
    page.get_by_label("Labels").fill("team=support\nregion=eu-west")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status").first).to_contain_text("The deployment was made")
    page.get_by_role("button", name="Start", exact=True).click()
    # The page is sent its state; nobody loads it again.
    expect(page.locator("#state .badge")).to_have_text("running", timeout=start_s * 1000)
    return stage.services.deployments.get(deployment_id_of(page.url))


def use(tab: Tab, stage: Stage, deployment: Deployment, place: str) -> None:
    page = tab.page
    played = stage.users(deployment)
    engine = elsewhere(lambda: chat(played))
    try:
        reused = re.compile(r"[1-9][0-9.]* % *384 tokens asked")
        expect(page.locator(".numbers")).to_contain_text(reused, timeout=20_000)
        expect(page.get_by_role("button", name="Drain")).to_be_visible()
        tab.keep("04-overview")
        tab.open(f"{place}/cache")
        expect(page.get_by_role("heading", name="Context window")).to_be_visible()
        tab.keep("05-cache")
    finally:
        engine.close()


def chat(played: Users) -> HandEngine:
    """Two users send the same prompt twice; the second time each reuses their own blocks."""
    engine = played.engine()
    for name in ("alice", "bob"):
        hashes = played.store(engine, name, 6)
        handle, tiers = played.admit(engine, name, hashes)
        assert len(tiers) == 6
        engine.start(handle, 32, 64)
        assert not engine.load(handle, hashes[2:], first=2).failed
        engine.finish(handle)
    return engine


def elsewhere(work: Callable[[], T]) -> T:
    """Playwright keeps this thread's event loop busy; what needs one of its own goes elsewhere."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


def users(tab: Tab, place: str) -> None:
    page = tab.page
    tab.open(f"{place}/users")
    expect(page.get_by_role("table")).to_contain_text("1 of")
    expect(page.get_by_role("table")).not_to_contain_text("alice")
    tab.keep("06-users")
    page.get_by_label("Find a user").fill("alice")
    page.get_by_label("Show ids because").fill("DSAR-123")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("table")).to_contain_text("alice")
    tab.keep("07-users-found")
    page.get_by_role("table").get_by_role("link", name="alice").click()
    expect(page.get_by_role("heading", level=2).first).to_contain_text("User")
    page.get_by_label("Show session ids because").fill("DSAR-123")
    page.get_by_role("button", name="Show ids").click()
    expect(page.get_by_role("table")).to_contain_text("default")
    tab.keep("08-user")


def erase(
    tab: Tab, stage: Stage, deployment: Deployment, place: str, reached: str = "6 sealed blocks"
) -> str:
    page = tab.page
    tab.open(f"{place}/erase")
    tab.keep("09-erase")
    page.get_by_label("User id").fill("alice")
    page.get_by_role("button", name="Plan it").click()
    expect(page.get_by_role("heading", name="Plan: erase user alice")).to_be_visible()
    expect(page.locator("dl.facts").first).to_contain_text(reached)
    tab.keep("10-erase-plan")
    page.get_by_label("Your reference").fill("DSAR-123")
    page.get_by_label("I know that this cannot be undone.").check()
    page.get_by_role("button", name="Erase and certify").click()
    expect(page.get_by_text("Erased and certified")).to_be_visible(timeout=60_000)
    expect(page.locator(".steps li.done")).to_have_count(7)
    tab.keep("11-erased")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download", exact=True).click()
    certificate = json.loads(Path(download.value.path()).read_text())
    assert certificate
    with page.expect_download() as opening:
        page.get_by_role("link", name="Download the opening").click()
    assert "alice" in Path(opening.value.path()).read_text()
    page.get_by_role("link", name="Certificate", exact=True).click()
    expect(page.get_by_role("heading", name="Checks")).to_be_visible()
    expect(page.locator("main")).to_contain_text("DSAR-123")
    tab.keep("12-certificate")
    held = stage.services.views.users(deployment.id)
    assert held.total == 1
    return page.url.rpartition("/")[2]


def audit(tab: Tab, place: str) -> None:
    page = tab.page
    tab.open(f"{place}/audit")
    page.get_by_role("button", name="Collect now").click()
    expect(page.locator(".banner", has_text="witness: none").first).to_contain_text(
        "erified up to record"
    )
    page.get_by_label("Event").select_option("erased")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile("event=erased"))
    expect(page.locator("#found")).not_to_contain_text("sealed")
    expect(page.locator("#found")).to_contain_text("erased")
    tab.open(f"{place}/audit")
    expect(page.locator("time").first).to_contain_text("UTC)")
    tab.keep("13-audit")
    tab.open(f"{place}/storage")
    tab.keep("14-storage")
    tab.open(f"{place}/certificates")
    tab.keep("15-certificates")
    tab.open(f"{place}/settings")
    tab.keep("16-settings")


def the_rest_of_the_workspace(
    tab: Tab, stage: Stage, deployment: Deployment, base: str, place: str
) -> None:
    page = tab.page
    tab.open(f"{base}/where")
    page.get_by_label("User id").fill("bob")
    page.get_by_role("button", name="Look everywhere").click()
    expect(page.get_by_role("table")).to_contain_text("support-bot")
    tab.keep("17-where")
    page.get_by_role("button", name="Erase this user everywhere").click()
    expect(page.get_by_role("heading", name="Confirm")).to_be_visible()
    tab.keep("18-where-plan")
    page.get_by_label("I know that this cannot be undone.").check()
    page.get_by_role("button", name="Erase and certify").click()
    expect(page.get_by_text("Certified over 1 deployment")).to_be_visible(timeout=60_000)
    tab.keep("18-where-erased")
    played = stage.users(deployment)
    elsewhere(lambda: played.open("bob"))  # somebody comes back
    tab.open(f"{base}/keys")
    page.get_by_label("Name").fill("web-frontend")
    page.get_by_label("infer").check()
    page.get_by_role("button", name="Make key").click()
    expect(page.locator("#secret")).to_contain_text("kvk_")
    tab.keep("19-keys")
    for number, name in enumerate(
        ("members", "certificates", "storage", "alerts", "approvals", "settings"), 20
    ):
        tab.open(f"{base}/{name}")
        tab.keep(f"{number}-workspace-{name}")
    tab.open("/workspaces")
    tab.keep("26-workspaces")
    tab.open(f"{base}/erase")
    tab.keep("33-erase-many")
    page.get_by_role("radio", name="This workspace").check()
    page.get_by_role("button", name="Plan it").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("everything in this workspace")
    tab.keep("34-erase-many-plan")
    for number, path in enumerate(
        (
            f"{base}/evidence",
            f"{base}/finetunes",
            f"{place}/policy",
            f"{place}/isolation",
            f"{place}/labels",
            f"{place}/rebuild",
            f"{place}/logs",
            f"{base}/nowhere",
        ),
        35,
    ):
        tab.open(path)
        tab.keep(f"{number}-{path.rpartition('/')[2]}")


def tamper(tab: Tab, stage: Stage, deployment: Deployment, base: str, place: str) -> None:
    """The instance's own log is cut short; the next collection says so, in red."""
    page = tab.page
    tab.open(place)
    page.get_by_role("button", name="Stop").click()
    stage.until(deployment.id, DeploymentState.STOPPED)
    config = stage.services.deployments.config_of(deployment.id)
    plane = ControlPlane(config)
    segment = sorted(config.layout.audit.glob("segment-*.jsonl"))[-1]
    whole = segment.read_bytes()
    segment.write_bytes(b"".join(whole.splitlines(keepends=True)[:-3]))
    tab.open(f"{place}/audit")
    page.get_by_role("button", name="Collect now").click()
    expect(page.locator(".banner.bad").first).to_be_visible()
    expect(page.get_by_text("Its collection has stopped.")).to_be_visible()
    tab.keep("27-audit-tampered")
    assert any(item.alert for item in plane.memory.all())
    page.get_by_role("link", name="See the alert").click()
    expect(page.get_by_text("stopped collection")).to_be_visible()
    tab.keep("28-alerts")
    segment.write_bytes(whole)
    alert = page.locator("section.card", has_text="stopped collection")
    alert.get_by_label("Why it is settled").fill("An old disk was mounted; it was put back.")
    alert.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_role("heading", name="Acknowledged")).to_be_visible()
    tab.open(f"{place}/audit")
    page.get_by_role("button", name="Collect now").click()
    expect(page.locator(".banner.bad")).to_have_count(0)


def delete(
    tab: Tab, stage: Stage, deployment: Deployment, base: str, place: str, certificate: str
) -> None:
    page = tab.page
    tab.open(f"{place}/settings")
    page.get_by_label("Type the deployment's name").fill("support-bot")
    page.get_by_role("button", name="Delete and certify").click()
    expect(page.get_by_text("is deleted. Its audit log")).to_be_visible(timeout=60_000)
    tab.keep("29-deleted")
    tab.open(f"{place}/audit")
    expect(page.get_by_text("This deployment was deleted")).to_be_visible()
    expect(page.locator("#found table")).to_be_visible()
    expect(page.get_by_role("button", name="Collect now")).to_have_count(0)
    tab.keep("30-audit-after-deletion")
    tab.open(f"{place}/certificates/{certificate}")
    expect(page.locator("main")).to_contain_text("DSAR-123")
    tab.open(place)
    tab.keep("31-overview-after-deletion")
    tab.open(f"{base}/deployments")
    expect(page.get_by_role("heading", name="Deleted")).to_be_visible()
    tab.keep("32-deployments-deleted")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


def residency(tab: Tab, stage: Stage, base: str, folder: Path) -> None:
    made = stage.services.deployments.create(
        stage.workspace_id, DeploymentSpec(name="policy-bot", model="tiny", multi_tenant=True)
    )
    connected = connect(stage.services.deployments, made, folder)
    connected.repository.commit({"us.yaml": "x"})
    assert connected.sync() == "rejected"
    page, place = tab.page, f"{base}/deployments/{made.id}/policy"
    tab.open(place)
    page.get_by_role("link", name="Compare", exact=True).click()
    page.get_by_label("To").fill("stricter")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="Files that change")).to_be_visible()
    tab.keep("43-policy-diff")
    page.get_by_role("link", name="Simulate").click()
    page.get_by_role("combobox", name="Revision").fill("stricter")
    page.get_by_role("button", name="Simulate").click()
    expect(page.get_by_role("heading", name="differently")).to_be_visible()
    tab.keep("44-policy-simulation")
    page.get_by_role("link", name="Violations").click()
    expect(page.get_by_role("table")).to_contain_text("Misplaced now")
    tab.keep("45-policy-violations")
    tab.open(f"{base}/policies")
    expect(page.get_by_role("table")).to_contain_text("rejected")
    tab.keep("46-policies")
