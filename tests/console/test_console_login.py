"""`kvrun login`: a person lets a command line act as them, and nobody else can."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from click.testing import Result
from console_rig import Reader, base
from page_check import check
from typer.testing import CliRunner

from api.api_rig import Caller, World, is_problem
from api.api_server import serving
from kvrun.accounts import Role, Scope
from kvrun.cli.login_file import login_file
from kvrun.cli.main import app
from kvrun.client.login import begin_login

BACK = "http://127.0.0.1:49152/"
STATE = "s" * 43
VERIFIER = "v" * 43


def asked(**changed: str) -> dict[str, str | list[str]]:
    """The fields of the page's form, with what a test changes."""
    begun = parse_qs(urlsplit(begin_login("http://127.0.0.1:1").page).query)
    usual = {"challenge": begun["challenge"][0], "redirect_uri": BACK, "state": STATE}
    return {**usual, "hours": "1", "answer": "allow", **changed}


@dataclass
class Terminal:
    """A command line with a folder of its own, and the browser of a person."""

    url: str
    world: World

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(app, words)

    def allow(self, reader: Reader, page: str, answer: str = "allow", hours: str = "1") -> str:
        """What the browser of a person who answers on the page is told, or the code shown."""
        address = urlsplit(page)
        shown = asyncio.run(reader.get(f"{address.path}?{address.query}"))
        form = next(form for form in shown.forms if form["action"] == "/login")
        fields = {
            name.removeprefix("field:"): value
            for name, value in form.items()
            if name.startswith("field:")
        }
        done = asyncio.run(reader.send("/login", {**fields, "hours": hours, "answer": answer}))
        assert done.status_code == 200, done.text
        _, _, where = done.headers.get("refresh", "").partition("url=")
        if where:
            return httpx.get(where, trust_env=False).text
        return check(done.text).said

    def log_in(self, reader: Reader, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
        """`kvrun login`, in a browser that opens the page and answers on it."""
        threads: list[threading.Thread] = []

        def browse(page: str) -> bool:
            threads.append(threading.Thread(target=self.allow, args=(reader, page)))
            threads[0].start()
            return True

        monkeypatch.setattr(webbrowser, "open", browse)
        done = self.run("login", "--url", self.url, *words)
        for thread in threads:
            thread.join()
        return done


@pytest.fixture
def terminal(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("KVRUN_API_KEY", "KVRUN_API_URL", "KVRUN_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    with serving(world) as url:
        yield Terminal(url, world)


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def code_on(said: str) -> str:
    """The code on a page."""
    (code,) = re.findall(r"\b[a-z2-7]{4}(?:-[a-z2-7]{4}){3}\b", said)
    return str(code)


def request_of(world: World, reader: Reader) -> str:
    """A request for a second person's word."""
    place, actor = world.workspace("acme"), world.actor(reader.caller)
    return world.services.accounts.ask_approval(
        actor, place, "erase_deployment", "plan", deployment_id="d-1", tenants=3, sessions=7
    ).id


def test_the_second_person_agrees_from_a_terminal(
    world: World, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    olga = Reader(world.person("olga@example.com", Role.OWNER))
    petra = Reader(world.person("petra@example.com", Role.PRIVACY))
    asked_for, other = request_of(world, olga), request_of(world, olga)
    key = world.key(world.actor(petra.caller), [Scope.ERASE])
    monkeypatch.setenv("KVRUN_API_KEY", key.headers["Authorization"].partition(" ")[2])
    before = terminal.run("erase", "approve", asked_for, "--yes", "--url", terminal.url)
    assert before.exit_code == 2
    assert "an API key is nobody's second person" in before.stderr
    assert "kvrun login --url" in before.stderr

    assert "petra@example.com until" in ok(terminal.log_in(petra, monkeypatch))
    assert login_file().stat().st_mode & 0o777 == 0o600
    waits = json.loads(ok(terminal.run("erase", "requests", "--json")))
    assert {item["id"] for item in waits} == {asked_for, other}
    assert "acme" in ok(terminal.run("erase", "requests"))
    unsure = terminal.run("erase", "approve", asked_for)
    assert "3 users, 7 sessions" in unsure.stderr
    assert unsure.exit_code == 2
    assert json.loads(ok(terminal.run("erase", "approve", asked_for, "--yes", "--json")))["agreed"]
    ok(terminal.run("erase", "refuse", other, "--reason", "ask the customer first"))
    assert ok(terminal.run("erase", "requests")) == "none\n"
    monkeypatch.setenv("KVRUN_WORKSPACE", "acme")
    monkeypatch.delenv("KVRUN_API_KEY")
    decided = ok(terminal.run("remote", "approvals", "--api-url", terminal.url))
    assert "agreed" in decided, "where no API key is set, the login takes its place"
    page = asyncio.run(olga.get(f"{base(world)}/approvals"))
    assert "refused ask the customer first" in page.said
    assert terminal.run("erase", "approve", "apr-none", "--yes").exit_code == 2
    again = terminal.run("erase", "approve", asked_for, "--yes")
    assert again.exit_code == 1
    assert "decided already" in again.stderr


def test_whoever_asked_does_not_agree_from_a_terminal_either(
    world: World, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    olga = Reader(world.person("olga@example.com", Role.OWNER))
    asked_for = request_of(world, olga)
    ok(terminal.log_in(olga, monkeypatch))
    refused = terminal.run("erase", "approve", asked_for, "--yes")
    assert refused.exit_code == 1
    assert "whoever asked cannot be the second person" in refused.stderr
    assert "you" in ok(terminal.run("erase", "requests"))
    assert "is refused" in ok(terminal.run("erase", "refuse", asked_for)), "one's own is taken back"


def test_without_a_browser_a_code_is_pasted(world: World, terminal: Terminal) -> None:
    """The person reads the page's address off the terminal, and pastes what the page shows."""
    petra = Reader(world.person("petra@example.com", Role.PRIVACY))
    command = [sys.executable, "-m", "kvrun", "login", "--url", terminal.url, "--no-browser"]
    with subprocess.Popen(
        [*command, "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        page = next(line.strip() for line in lines if "/login?" in line)
        assert "redirect_uri" not in page
        code = code_on(terminal.allow(petra, page, hours="2"))
        out, err = process.communicate(f"{code}\n", timeout=60)
    assert process.returncode == 0, err
    made = json.loads(out)
    assert made["name"] == "petra@example.com"
    assert made["expires_at"] > time.time() + 7000, "what the person said, not what was asked for"
    assert "token" not in made


def test_a_login_is_listed_and_ended_by_command_and_in_the_console(
    world: World, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    petra = Reader(world.person("petra@example.com", Role.PRIVACY))
    keys = f"{base(world)}/keys"
    assert "Command lines" not in asyncio.run(petra.get(keys)).said
    ok(terminal.log_in(petra, monkeypatch))
    (first,) = json.loads(ok(terminal.run("logins", "--json")))
    assert "logged out" in ok(terminal.run("logout"))
    assert "nobody is logged in" in terminal.run("logins").stderr
    ok(terminal.log_in(petra, monkeypatch))
    (second,) = json.loads(ok(terminal.run("logins", "--json")))
    assert first["id"] != second["id"]
    page = asyncio.run(petra.get(keys))
    (form,) = (form for form in page.forms if "/logins/" in form["action"])
    gone = asyncio.run(petra.post(form["action"]))
    assert gone.headers["location"].endswith("/keys?said=login-ended")
    after = terminal.run("erase", "requests", "--url", terminal.url)
    assert after.exit_code == 1
    assert "Run: kvrun login" in after.stderr
    assert "logged out" in ok(terminal.run("logout")), "what has ended is forgotten here too"
    ok(terminal.log_in(petra, monkeypatch))
    ok(terminal.run("logout", "--everywhere"))
    assert asyncio.run(petra.ask("GET", keys)).headers["location"].startswith("/sign-in")


def test_signing_out_in_the_browser_ends_the_login_that_it_allowed(
    world: World, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    petra = Reader(world.person("petra@example.com", Role.PRIVACY))
    ok(terminal.log_in(petra, monkeypatch))
    ok(terminal.run("logins"))
    asyncio.run(petra.post("/sign-out"))
    after = terminal.run("logins")
    assert after.exit_code == 1
    assert "Run: kvrun login" in after.stderr


def test_what_the_browser_refuses_or_another_page_sends_logs_nobody_in(
    world: World, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    petra = Reader(world.person("petra@example.com", Role.PRIVACY))
    threads: list[threading.Thread] = []

    def browse(page: str) -> bool:
        back = parse_qs(urlsplit(page).query)["redirect_uri"][0]

        def answers() -> None:
            for wrong in ("", "?code=planted", f"?{urlencode({'code': 'x', 'state': 'y' * 43})}"):
                assert httpx.get(back + wrong, trust_env=False).status_code == 400
            assert httpx.get(f"{back}favicon.ico", trust_env=False).status_code == 400
            assert "Not allowed" in terminal.allow(petra, page, answer="refuse")

        threads.append(threading.Thread(target=answers))
        threads[0].start()
        return True

    monkeypatch.setattr(webbrowser, "open", browse)
    refused = terminal.run("login", "--url", terminal.url)
    threads[0].join()
    assert refused.exit_code == 1
    assert "not allowed in the browser" in refused.stderr
    assert not login_file().exists()


def test_no_token_over_plain_http(terminal: Terminal) -> None:
    for command in (("login",), ("login", "--no-browser"), ("logout",), ("erase", "requests")):
        done = terminal.run(*command, "--url", "http://kvrun.example.com")
        assert done.exit_code == 2, done.output
        assert "unencrypted" in done.stderr


def test_a_file_of_logins_that_others_may_read_is_refused(
    world: World, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(terminal.log_in(Reader(world.person("petra@example.com", Role.PRIVACY)), monkeypatch))
    login_file().chmod(0o640)
    refused = terminal.run("erase", "requests")
    assert refused.exit_code == 2
    assert "chmod 600" in refused.stderr
    login_file().chmod(0o600)
    login_file().write_text("{")
    assert "cannot be read" in terminal.run("erase", "requests").stderr


ELSEWHERE = (
    "https://127.0.0.1:49152/", "http://127.0.0.1/", "http://127.0.0.1:0/",
    "http://127.0.0.1:65536/", "http://127.0.0.1:49152", "http://127.0.0.1:49152/path",
    "http://127.0.0.1:49152/?x", "http://127.0.0.1:49152/\n", "http://localhost:49152/",
    "http://127.0.0.1.evil.example:49152/", "http://127.0.0.1:49152@evil.example/",
    "http://evil.example:49152/", "//evil.example/", "javascript:alert(1)", "http://0:49152/",
    "http://127.0.0.1:٤٩١٥٢/", "http://[::1%25eth0]:49152/", "http://127.0.0.2:49152/",
)  # fmt: skip


async def test_a_code_goes_back_to_this_machine_and_nowhere_else(
    world: World, owner: Reader
) -> None:
    for back in ELSEWHERE:
        page = await owner.get(f"/login?{urlencode(asked(redirect_uri=back))}", 422)
        assert "must be http://127.0.0.1:PORT/" in page.said
        for answer in ("allow", "refuse"):
            sent = await owner.post("/login", **asked(redirect_uri=back, answer=answer))
            assert sent.status_code == 422, back
            assert not {"refresh", "location"} & set(sent.headers)


async def test_the_browser_is_led_to_the_listener_with_code_and_state(
    world: World, owner: Reader
) -> None:
    for back in (BACK, "http://[::1]:1/", "http://127.0.0.1:65535/"):
        sent = await owner.post("/login", **asked(redirect_uri=back))
        where = sent.headers["refresh"].removeprefix("0; url=")
        assert where.startswith(f"{back}?code=")
        given = parse_qs(urlsplit(where).query)
        assert given["state"] == [STATE]
        assert given["code"][0] not in sent.text


async def test_what_is_asked_for_is_bounded(world: World, owner: Reader) -> None:
    assert "Log a command line in?" in (await owner.get(f"/login?{urlencode(asked())}")).said
    for wrong in ({"state": ""}, {"state": "s" * 129}, {"state": "s&code=x" * 4},
                  {"challenge": ""}, {"challenge": "plain"}, {"hours": "9"}, {"hours": "0"},
                  {"hours": ""}, {"hours": "-1"}, {"hours": "x"}):  # fmt: skip
        sent = await owner.post("/login", **asked(**wrong))
        assert sent.status_code == 422, wrong
        assert "refresh" not in sent.headers


async def test_no_other_site_and_no_credential_but_the_browsers_allows_it(
    world: World, owner: Reader
) -> None:
    other = Reader(world.person("olga@example.com", Role.OWNER))
    for token in ("", "x", other.caller.headers["X-CSRF-Token"]):
        assert (await owner.send("/login", {**asked(), "csrf_token": token})).status_code == 403
    fields = {**asked(), "csrf_token": owner.caller.headers["X-CSRF-Token"]}
    foreign = await owner.ask(
        "POST",
        "/login",
        content=urlencode(fields, doseq=True),
        headers={
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": "https://evil.example",
        },
    )
    assert foreign.status_code == 403
    nobody = Reader(world.nobody)
    away = await nobody.ask("GET", f"/login?{urlencode(asked(), doseq=True)}")
    assert away.headers["location"].startswith("/sign-in?next=/login%3F")
    assert (await nobody.send("/login", fields)).headers["location"].startswith("/sign-in")
    token = await token_of(world, owner)
    for headers in ({"Authorization": f"Bearer {token}"}, {"Cookie": f"kvrun={token}"}):
        again = await Reader(Caller(world.app)).ask("GET", "/login", headers=headers)
        assert again.headers["location"].startswith("/sign-in"), "a login lets no login in"


async def token_of(world: World, reader: Reader) -> str:
    """A login of whoever reads."""
    begun = begin_login("http://127.0.0.1:1")
    challenge = parse_qs(urlsplit(begun.page).query)["challenge"][0]
    sent = await reader.post("/login", **asked(challenge=challenge, redirect_uri="", state=""))
    code = code_on(check(sent.text).said)
    answer = await world.nobody.post("/logins", {"code": code, "verifier": begun.verifier})
    assert answer.status_code == 201, answer.text
    token: str = answer.json()["token"]
    return token


async def test_a_token_is_the_person_at_the_api_and_only_there(world: World, owner: Reader) -> None:
    petra = Reader(world.person("petra@example.com", Role.PRIVACY))
    place, user = world.workspace("acme"), petra.caller.user_id
    asked_for = request_of(world, owner)
    token = await token_of(world, petra)
    bearer = Caller(world.app, {"Authorization": f"Bearer {token}"})
    me = (await bearer.get("/me")).json()
    assert (me["id"], me["kind"], me["roles"]) == (user, "user", {place: "privacy"})
    assert me["csrf_token"] is None
    is_problem(await Caller(world.app, {"Cookie": f"kvrun={token}"}).get("/me"), 401)
    cookie = petra.caller.headers["Cookie"].partition("=")[2]
    is_problem(await Caller(world.app, {"Authorization": f"Bearer {cookie}"}).get("/me"), 401)
    on_page = await Reader(Caller(world.app)).ask(
        "GET", f"{base(world)}/keys", headers={"Authorization": f"Bearer {token}"}
    )
    assert on_page.headers["location"].startswith("/sign-in")
    approve = f"/workspaces/{place}/approvals/{asked_for}/approve"
    world.services.accounts.set_role(world.owner_actor, place, user, Role.AUDITOR)
    is_problem(await bearer.post(approve), 403)
    world.services.accounts.set_role(world.owner_actor, place, user, Role.PRIVACY)
    assert (await bearer.post(approve)).json()["agreed"]
    world.services.accounts.remove_member(world.owner_actor, place, user)
    is_problem(await bearer.get("/me"), 401)


async def test_a_code_at_the_api_works_once_and_says_nothing_of_what_was_wrong(
    world: World, owner: Reader
) -> None:
    begun = begin_login("http://127.0.0.1:1")
    challenge = parse_qs(urlsplit(begun.page).query)["challenge"][0]

    async def code() -> str:
        sent = await owner.post("/login", **asked(challenge=challenge))
        return parse_qs(urlsplit(sent.headers["refresh"].partition("url=")[2]).query)["code"][0]

    first = await code()
    good = {"code": first, "verifier": begun.verifier}
    assert (await world.nobody.post("/logins", good)).status_code == 201
    answers = [await world.nobody.post("/logins", good)]
    answers.append(await world.nobody.post("/logins", {"code": await code(), "verifier": VERIFIER}))
    late = await code()
    world.clock.ahead_s += 301
    answers.append(await world.nobody.post("/logins", {"code": late, "verifier": begun.verifier}))
    details = {is_problem(answer, 401)["detail"] for answer in answers}
    assert len(details) == 1
