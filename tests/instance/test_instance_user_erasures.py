"""What gateways ask to be erased: one tenant's flood, the same request again, and large answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from kvrun.config import parse_config
from kvrun.erasure.certificate import RequestKind
from kvrun.erasure.plan import ErasureScope
from kvrun.erasure.targets import NoEngines
from kvrun.instance import erasures as erasures_module
from kvrun.instance.client import AsyncInstanceClient
from kvrun.instance.connection import InstanceUnavailableError
from kvrun.instance.erasures import ErasureRequest, ErasureResult, Erasures
from kvrun.instance.parts import open_erasures, open_parts
from kvrun.instance.protocol import MAX_FRAME_BYTES, EraseUser, UserErased, encode_frame
from kvrun.instance.user_erasures import AT_ONCE, MAX_INLINE_BYTES, UserErasures
from support.daemon import Daemon


class Recorded:
    """Erasures that only write down what they were asked, with a certificate of some size."""

    def __init__(self, size_bytes: int = 2) -> None:
        self.requests: list[ErasureRequest] = []
        self.when_begun: Callable[[], None] = lambda: None
        self._size_bytes = size_bytes

    def erase(self, request: ErasureRequest, *, begins: Callable[[], None]) -> ErasureResult:
        begins()
        self.when_begun()
        self.requests.append(request)
        number = str(len(self.requests))
        return ErasureResult(
            id=number,
            certificate="",
            claim_class="device",
            erased=[],
            unacknowledged=[],
            opening="",
            digest="d" + number,
        )

    def certificate(self, erasure_id: str) -> bytes:
        return b"c" * self._size_bytes


class Desk:
    """Tasks wait here until the test runs them; answers are kept."""

    def __init__(self, recorded: Recorded) -> None:
        self.tasks: list[Callable[[], None]] = []
        self.answers: list[UserErased] = []
        self._calls = 0
        self.desk = UserErasures(cast(Erasures, recorded), self.tasks.append)

    def ask(self, tenant: str, session: str = "", reference: str = "") -> int:
        self._calls += 1
        message = EraseUser(self._calls, tenant, session, "key", reference, "")
        self.desk.ask(message, self.answers.append)
        return self._calls

    def run(self) -> None:
        while self.tasks:
            self.tasks.pop(0)()


def test_a_tenant_with_many_erasures_waits_and_another_does_not() -> None:
    desk = Desk(Recorded())
    for number in range(AT_ONCE):
        desk.ask("mallory", f"s{number}")
    refused = desk.ask("mallory", "one-more")
    assert [(answer.call, answer.status) for answer in desk.answers] == [(refused, 429)]
    bob = desk.ask("bob", "x")
    desk.run()
    assert {answer.call: answer.status for answer in desk.answers}[bob] == 200
    again = desk.ask("mallory", "one-more")
    desk.run()
    assert desk.answers[-1].call == again
    assert desk.answers[-1].status == 200


def test_the_same_request_joins_one_that_has_not_begun() -> None:
    recorded = Recorded()
    desk = Desk(recorded)
    calls = {desk.ask("alice", "a") for _ in range(3 * AT_ONCE)}
    desk.run()
    assert len(recorded.requests) == 1
    assert {answer.call for answer in desk.answers} == calls
    assert {(answer.status, answer.certificate) for answer in desk.answers} == {(200, b"cc")}


def test_a_request_of_another_reference_gets_a_certificate_of_its_own() -> None:
    recorded = Recorded()
    desk = Desk(recorded)
    desk.ask("alice", "a", "DSAR-1")
    desk.ask("alice", "a", "DSAR-2")
    desk.run()
    assert [request.reference for request in recorded.requests] == ["DSAR-1", "DSAR-2"]


def test_a_request_that_comes_once_keys_were_found_does_not_join() -> None:
    recorded = Recorded()
    desk = Desk(recorded)

    def ask_again() -> None:
        recorded.when_begun = lambda: None
        desk.ask("alice", "a")

    recorded.when_begun = ask_again
    desk.ask("alice", "a")
    desk.run()
    assert len(recorded.requests) == 2


@pytest.mark.parametrize("size_bytes", [MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1, MAX_FRAME_BYTES])
def test_an_answer_fits_a_frame_however_large_the_certificate_is(size_bytes: int) -> None:
    desk = Desk(Recorded(size_bytes))
    desk.ask("alice")
    desk.run()
    (answer,) = desk.answers
    assert answer.status == 200
    assert len(encode_frame(answer)) < MAX_FRAME_BYTES
    if size_bytes > MAX_INLINE_BYTES:
        told = json.loads(answer.certificate)
        assert (told["id"], told["digest"], told["size_bytes"]) == ("1", "d1", size_bytes)


def test_a_long_list_of_sessions_is_cut_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures_module, "_LISTED", 2)
    (tmp_path / "d").mkdir(mode=0o700)
    text = '[instance]\ndata_dir = "d"\nmemory_bytes = "64MiB"\n'
    config = parse_config(text, {}, source=tmp_path / "kvrun.toml")
    scope = ErasureScope(RequestKind.TENANT, "alice")
    with open_parts(config) as parts, open_erasures(config, parts, None, NoEngines()) as erasures:
        for session in "abc":
            parts.instance.open_session("alice", session)
        done = erasures.erase(ErasureRequest(scope, "tests", confirmed=True))
    assert (len(done.erased), done.more) == (2, 1)


def test_a_gateway_does_not_wait_for_ever(daemon: Daemon) -> None:
    async def ask() -> None:
        client = AsyncInstanceClient(
            daemon.socket,
            daemon.gateway_token,
            on_invalidated=lambda tenant, session: None,
            on_lost=lambda: None,
            erase_timeout_s=0.1,
        )
        await client.start()
        daemon.pause()
        try:
            await client.erase_user("alice", "a", requester="k", reference="", legal_basis="")
        finally:
            daemon.resume()
            await client.close()

    with pytest.raises(InstanceUnavailableError) as refused:
        asyncio.run(ask())
    assert refused.value.status == 504
