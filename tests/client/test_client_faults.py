"""The client against servers that fail, lie and lure: what it asks again and gives away."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvrun
from kvrun.client import (
    AddressError,
    ApiError,
    AsyncClient,
    BadAnswerError,
    Client,
    ClientError,
    ConflictError,
    ForbiddenError,
    NotAvailableError,
    NotFoundError,
    NotSignedInError,
    RequestRefusedError,
    RetryPolicy,
    ServerError,
    TooManyRequestsError,
    UnreachableError,
)
from kvrun.client.call import Call, path
from kvrun.client.errors import BadIdError, error_of
from kvrun.errors import KvrunError

KEY = "kvk_of-these-tests"
ME = b'{"id": "u", "name": "n", "kind": "api_key", "roles": {}}'
PROBLEM = (
    b'{"title": "t", "status": 404, "detail": "no such thing", "code": "not_found", "hint": "look"}'
)


@dataclass
class Answer:
    """What the server does with one request; without a status it hangs up."""

    status: int = 0
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Simulator:
    """A server that gives the listed answers in turn, the last one for ever."""

    url: str
    answers: list[Answer]
    asked: list[tuple[str, str, str, bytes]] = field(default_factory=list)

    def next(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def simulator(*answers: Answer) -> Iterator[Simulator]:
    found = Simulator("", list(answers))

    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65_537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            key = self.headers.get("Authorization", "")
            found.asked.append((self.command, self.path, key, body))
            answer = found.next()
            self.close_connection = True
            if not answer.status:
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


Ask = Callable[[str, str, list[float]], object]


def ask_waiting(url: str, what: str, waits: list[float]) -> object:
    """One call of the client that waits."""
    with Client(url, KEY, sleep=waits.append) as client:
        return client.me() if what == "me" else client.workspaces.create("acme")


def ask_async(url: str, what: str, waits: list[float]) -> object:
    """The same of the client for asyncio."""

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def run() -> object:
        async with AsyncClient(url, KEY, sleep=sleep) as client:
            if what == "me":
                return await client.me()
            return await client.workspaces.create("acme")

    return asyncio.run(run())


@pytest.fixture(params=[ask_waiting, ask_async], ids=["waiting", "asyncio"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


@pytest.mark.parametrize("failure", [Answer(503), Answer(502), Answer(429), Answer()])
def test_reading_is_tried_again(ask: Ask, failure: Answer) -> None:
    waits: list[float] = []
    with simulator(failure, failure, Answer(200, ME)) as server:
        ask(server.url, "me", waits)
    assert len(server.asked) == 3
    assert len(waits) == 2


@pytest.mark.parametrize("failure", [Answer(503), Answer()])
def test_what_may_have_been_carried_out_is_never_sent_again(ask: Ask, failure: Answer) -> None:
    waits: list[float] = []
    with simulator(failure) as server, pytest.raises((ServerError, UnreachableError)) as caught:
        ask(server.url, "create", waits)
    assert [method for method, *_ in server.asked] == ["POST"]
    assert waits == []
    if isinstance(caught.value, UnreachableError):
        assert "not known" in caught.value.message


def test_an_error_that_stays_is_not_asked_about_again(ask: Ask) -> None:
    waits: list[float] = []
    with simulator(Answer(404, PROBLEM)) as server, pytest.raises(NotFoundError) as caught:
        ask(server.url, "me", waits)
    assert len(server.asked) == 1
    assert (caught.value.status, caught.value.code) == (404, "not_found")
    assert caught.value.diagnostics() == "no such thing\n  look"


def test_a_server_may_ask_for_a_longer_pause_but_not_for_any(ask: Ask) -> None:
    waits: list[float] = []
    busy = Answer(429, headers={"Retry-After": "7"})
    with simulator(busy, Answer(200, ME)) as server:
        ask(server.url, "me", waits)
    assert waits == [7.0]
    for_ever = Answer(429, headers={"Retry-After": "86400"})
    with simulator(for_ever) as server, pytest.raises(TooManyRequestsError):
        ask(server.url, "me", waits)
    assert len(server.asked) == 1


def test_nobody_there_is_said_with_the_address(ask: Ask) -> None:
    with simulator(Answer(200)) as server:
        gone = server.url
    with pytest.raises(UnreachableError) as caught:
        ask(gone, "me", [])
    assert gone in caught.value.message
    assert caught.value.hint is not None


def test_a_redirect_is_not_followed_and_carries_no_key_away(ask: Ask) -> None:
    with (
        simulator(Answer(200, ME)) as other,
        simulator(Answer(307, headers={"Location": f"{other.url}/api/v1/me"})) as server,
    ):
        with pytest.raises(BadAnswerError):
            ask(server.url, "me", [])
        assert other.asked == []
    assert server.asked[0][2] == f"Bearer {KEY}"


def test_a_netrc_file_does_not_take_the_keys_place(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login mallory password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with simulator(Answer(200, ME)) as server:
        ask(server.url, "me", [])
    assert server.asked[0][2] == f"Bearer {KEY}"


def test_a_proxy_of_the_environment_does_not_see_what_stays_on_the_machine(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulator(Answer(200, ME)) as proxy, simulator(Answer(200, ME)) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        ask(server.url, "me", [])
        assert proxy.asked == []
        assert len(server.asked) == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"id": 1}', b"\xff\xfe"])
def test_an_answer_of_something_else_is_no_result(ask: Ask, body: bytes) -> None:
    with simulator(Answer(200, body)) as server, pytest.raises(BadAnswerError):
        ask(server.url, "me", [])


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestRefusedError),
        (401, NotSignedInError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, RequestRefusedError),
        (422, RequestRefusedError),
        (429, TooManyRequestsError),
        (500, ServerError),
        (503, ServerError),
    ],
)
def test_each_status_has_its_error(status: int, kind: type[ApiError]) -> None:
    error = error_of(status, b"not even json")
    assert type(error) is kind
    assert error.status == status
    assert str(status) in error.message
    assert isinstance(error, KvrunError)


def test_a_problem_names_the_values_that_are_not_allowed() -> None:
    body = b'{"detail": "no", "errors": [{"where": "body.role", "message": "not one"}]}'
    assert error_of(422, body).message == "no: body.role: not one"


@given(st.binary(max_size=300))
def test_any_body_is_an_error_that_a_terminal_can_show(body: bytes) -> None:
    error = error_of(500, body)
    assert all(character.isprintable() for character in error.message)
    assert error.message


@given(st.text(max_size=40))
def test_an_id_stays_one_part_of_the_path(text: str) -> None:
    try:
        made = path("deployments", text, "erasures")
    except BadIdError:
        assert text in ("", ".", "..")
        return
    except UnicodeEncodeError:
        return
    assert made.count("/") == 3
    assert "?" not in made
    assert "#" not in made


@pytest.mark.parametrize(
    "url",
    [
        "http://kvrun.example.com",
        "http://10.0.0.1:8090",
        "ftp://127.0.0.1",
        "https://user:password@kvrun.example.com",
        "https://kvrun.example.com/path",
        "https://kvrun.example.com?x=1",
        "kvrun.example.com",
        "https://",
        "https://[::1",
        "http://127.0.0.1:port",
    ],
)
def test_an_address_over_which_no_key_may_travel_is_refused(url: str) -> None:
    with pytest.raises(AddressError):
        Client(url, KEY)


@pytest.mark.parametrize(
    "url", ["https://kvrun.example.com", "http://127.0.0.1:8090", "http://[::1]:8090/"]
)
def test_other_addresses_are_taken(url: str) -> None:
    Client(url, KEY).close()


@pytest.mark.parametrize("key", ["", " ", "two words", "line\nbreak", "ümlaut"])
def test_what_is_no_key_is_refused_and_not_repeated(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVRUN_API_KEY", raising=False)
    with pytest.raises(AddressError) as caught:
        Client("http://127.0.0.1:8090", key)
    assert not key.strip() or key not in str(caught.value)


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulator(Answer(200, ME)) as server:
        monkeypatch.setenv("KVRUN_API_URL", server.url)
        monkeypatch.setenv("KVRUN_API_KEY", KEY)
        with Client() as client:
            assert client.me().id == "u"
    assert server.asked[0][2] == f"Bearer {KEY}"


def test_the_key_is_in_no_representation() -> None:
    client = Client("http://127.0.0.1:8090", KEY)
    assert KEY not in repr(client)
    assert KEY not in repr(client.address)
    client.close()


def test_a_list_that_nobody_can_give_is_not_an_empty_one() -> None:
    body = b'{"items": [], "total": 0, "next": null, "unavailable": "the daemon does not run"}'
    with (
        simulator(Answer(200, body)) as server,
        Client(server.url, KEY) as client,
        pytest.raises(NotAvailableError, match="does not run"),
    ):
        list(client.users.list("d-1"))


def test_pages_are_asked_for_one_after_the_other_and_only_when_needed() -> None:
    def page(number: int, following: str) -> Answer:
        item = f'{{"id": "ws-{number}", "account_id": "a", "name": "n", "created_at": 0}}'
        return Answer(200, f'{{"items": [{item}], "next": {following}}}'.encode())

    with (
        simulator(page(1, '"200"'), page(2, '"a&b=c"'), page(3, "null")) as server,
        Client(server.url, KEY) as client,
    ):
        found = client.workspaces.list()
        assert next(found).id == "ws-1"
        assert len(server.asked) == 1
        assert [item.id for item in found] == ["ws-2", "ws-3"]
    assert [asked[1] for asked in server.asked] == [
        "/api/v1/workspaces?limit=200",
        "/api/v1/workspaces?limit=200&cursor=200",
        "/api/v1/workspaces?limit=200&cursor=a%26b%3Dc",
    ]


@given(st.integers(1, 20), st.floats(0, 1), st.sampled_from([None, 429, 502, 503, 504]))
def test_waits_grow_up_to_a_bound_and_end(done: int, chance: float, status: int | None) -> None:
    policy = RetryPolicy()
    wait = policy.wait_s(done, status=status, retry_after=None, chance=chance)
    if done >= policy.tries:
        assert wait is None
        return
    assert wait is not None
    assert 0 < wait <= policy.longest_wait_s


def test_both_clients_offer_the_same() -> None:
    def offered(client: Client | AsyncClient) -> dict[str, str]:
        found = {}
        for name, group in vars(client).items():
            for method in dir(group):
                member = getattr(group, method)
                if not method.startswith("_") and callable(member):
                    kept = list(inspect.signature(member).parameters.values())
                    found[f"{name}.{method}"] = str(inspect.Signature(kept))
        return found

    waiting = Client("http://127.0.0.1:8090", KEY)
    other = AsyncClient("http://127.0.0.1:8090", KEY)
    assert offered(waiting) == offered(other)
    assert len(offered(waiting)) > 50
    waiting.close()


def test_kvrun_offers_both_and_loads_them_when_asked() -> None:
    assert kvrun.Client is Client
    assert kvrun.AsyncClient is AsyncClient
    with pytest.raises(AttributeError):
        _ = kvrun.Nothing  # type: ignore[attr-defined]
    code = "import kvrun, sys; assert 'httpx' not in sys.modules; kvrun.Client"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_errors_of_the_client_are_kvruns_errors() -> None:
    for kind in (UnreachableError, BadAnswerError, ApiError, AddressError, NotAvailableError):
        assert issubclass(kind, ClientError)
        assert issubclass(kind, KvrunError)


def test_a_call_without_a_body_has_none() -> None:
    assert Call("GET", "/me", None).content is None
    assert Call("POST", "/x", None, body={}).content == b"{}"
