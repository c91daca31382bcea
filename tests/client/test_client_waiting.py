"""How long the clients wait, and when they stop: a server that is slow, and one that gave up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from kvrun.client import AsyncClient, Client, WaitedInVainError, WaitedTooLongError, link

URL, KEY = "http://127.0.0.1:8090", "kvk_of-these-tests"
SPEC = {
    "name": "chat",
    "model": "tiny",
    "engine": "vllm",
    "multi_tenant": True,
    "stateless": False,
    "context_window": None,
    "memory_bytes": 1,
    "disk_bytes": 1,
    "labels": {},
    "gpu_ids": [],
    "allow_shared_gpu": False,
    "settings": {},
}
DEPLOYMENT: dict[str, Any] = {
    "id": "d-1",
    "workspace_id": "w",
    "spec": SPEC,
    "state": "starting",
    "wanted": "run",
    "reason": "",
    "launcher": "local",
    "endpoint": "",
    "instance": 1,
    "restarts": 0,
    "created_at": 1.0,
    "state_since": 1.0,
    "started_at": None,
    "restart_at": None,
    "deleted_at": None,
    "gpu_notes": [],
    "shares_gpu": False,
    "certificates": [],
    "commands": [],
}


@dataclass
class Server:
    """Takes a while over each answer, by a clock of its own."""

    answers: list[dict[str, Any]]
    takes_s: float = 0.0
    now: float = 0.0
    asked: int = 0
    waits: list[float] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        self.now += self.takes_s
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return httpx.Response(200, json={**DEPLOYMENT, **found})

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


Wait = Callable[[Server, float], str]


def waiting(server: Server, timeout_s: float) -> str:
    transport = httpx.MockTransport(server.answer)
    with Client(URL, KEY, transport=transport, sleep=server.waits.append) as client:
        return client.deployments.wait("d-1", timeout_s=timeout_s).state


def waiting_async(server: Server, timeout_s: float) -> str:
    async def run() -> str:
        transport = httpx.MockTransport(server.answer)
        async with AsyncClient(URL, KEY, transport=transport, sleep=server.sleep) as client:
            return (await client.deployments.wait("d-1", timeout_s=timeout_s)).state

    return asyncio.run(run())


@pytest.fixture(params=[waiting, waiting_async], ids=["waiting", "asyncio"])
def wait(request: pytest.FixtureRequest) -> Wait:
    found: Wait = request.param
    return found


def test_the_time_that_requests_take_counts(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([{}], takes_s=100.0)
    monkeypatch.setattr(link, "time", SimpleNamespace(monotonic=lambda: server.now))
    with pytest.raises(WaitedTooLongError):
        wait(server, 250.0)
    assert server.asked == 3
    assert server.waits == [1.0, 1.0]


def test_what_does_not_come_any_more_is_not_waited_for(wait: Wait) -> None:
    for end in ({"state": "failed", "reason": "no GPU is free"}, {"state": "deleted"}):
        server = Server([{}, end])
        with pytest.raises(WaitedInVainError, match=end.get("reason", end["state"])):
            wait(server, 600.0)
        assert server.asked == 2


def test_one_that_failed_and_is_started_again_is_waited_for(wait: Wait) -> None:
    server = Server([{"state": "failed", "restart_at": 2.0}, {}, {"state": "running"}])
    assert wait(server, 600.0) == "running"
