"""API keys are replaced and ended while the gateway answers, without a refused request between."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from gateway_rig import Gateway

from kvrun.gateway import apikeys_file
from kvrun.gateway.apikeys import (
    ApiKeyRecord,
    hash_api_key,
    load_api_keys,
    make_api_key,
    save_api_keys,
)
from kvrun.gateway.apikeys_file import (
    WatchedApiKeys,
    put_api_keys,
    revoke_api_key,
    rotate_api_key,
)
from kvrun.gateway.errors import GatewayConfigError, GatewayError

NOW = 1_800_000_000


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def first() -> str:
    return make_api_key(b"k" * 32)


@pytest.fixture
def path(tmp_path: Path, first: str) -> Path:
    found = tmp_path / "keys.json"
    record = ApiKeyRecord(id="app", sha256=hash_api_key(first), tenant="alice")
    save_api_keys(found, [record])
    return found


def test_both_keys_hold_during_the_overlap_and_the_new_one_alone_afterwards(
    path: Path, first: str
) -> None:
    clock = Clock()
    keys = WatchedApiKeys(path, clock=clock)
    record, second = rotate_api_key(path, "app", now=NOW, overlap_s=100)
    assert (record.id, record.tenant, record.expires_at) == ("app-2", "alice", None)
    clock.time += 1
    assert keys.authenticate(second, NOW).name == "app-2"
    assert keys.authenticate(first, NOW + 99).name == "app"
    with pytest.raises(GatewayError):
        keys.authenticate(first, NOW + 100)
    keys.authenticate(second, NOW + 10_000)
    third, _ = rotate_api_key(path, "app-2", now=NOW, overlap_s=100)
    assert third.id == "app-3"
    assert second not in path.read_text()


def test_a_key_that_is_ended_is_refused_within_a_second(path: Path, first: str) -> None:
    clock = Clock()
    keys = WatchedApiKeys(path, clock=clock)
    assert revoke_api_key(path, "app", now=NOW).expires_at == NOW
    clock.time += 1
    with pytest.raises(GatewayError):
        keys.authenticate(first, NOW)
    # Ending it later again does not bring it back.
    rotate_api_key(path, "app", now=NOW, overlap_s=100)
    assert load_api_keys(path)[0].expires_at == NOW


@pytest.mark.parametrize("content", [None, b"{", b'{"keys": [{"id": "x"}]}'])
def test_a_file_that_is_gone_or_broken_changes_nothing(
    path: Path, first: str, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    keys = WatchedApiKeys(path, clock=clock)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    clock.time += 1
    keys.authenticate(first, NOW)
    assert "stay in use" in caplog.text
    with pytest.raises(GatewayConfigError):
        WatchedApiKeys(path)


def test_a_file_that_cannot_be_written_is_named_and_stays_as_it_was(path: Path) -> None:
    path.with_name(path.name + ".new").mkdir()
    before = path.read_bytes()
    with pytest.raises(GatewayConfigError, match=r"cannot write api_keys_file .*keys\.json"):
        revoke_api_key(path, "app", now=NOW)
    assert path.read_bytes() == before


def test_the_control_planes_keys_replace_each_other_and_no_others(path: Path) -> None:
    (app,) = load_api_keys(path)
    one, two = (ApiKeyRecord(id="key-" + 16 * letter, sha256=64 * letter) for letter in "ab")
    put_api_keys(path, [one])
    assert load_api_keys(path) == [app, one]
    before = path.stat().st_ino
    put_api_keys(path, [one])
    assert path.stat().st_ino == before, "nothing new is nothing written"
    put_api_keys(path, [two])
    assert load_api_keys(path) == [app, two]
    with pytest.raises(GatewayConfigError, match="twice"):
        put_api_keys(path, [two, two])
    put_api_keys(path, [])
    assert load_api_keys(path) == [app]


def test_an_unknown_key_is_named_and_nothing_is_written(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(GatewayConfigError, match="no key 'web'"):
        rotate_api_key(path, "web", now=NOW, overlap_s=1)
    assert path.read_bytes() == before


def test_requests_are_served_all_the_while_keys_are_replaced(path: Path, first: str) -> None:
    clock = Clock()
    keys = WatchedApiKeys(path, clock=clock)
    stop, problems, served = threading.Event(), [], [0]
    valid = [first]

    def use() -> None:
        try:
            while not stop.is_set():
                clock.time += 1
                keys.authenticate(valid[-1], NOW)
                served[0] += 1
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    key_id = "app"
    for _ in range(20):
        record, text = rotate_api_key(path, key_id, now=NOW, overlap_s=3600)
        key_id = record.id
        seen = served[0]
        while not problems and served[0] < seen + 3:  # it has looked at the file since
            stop.wait(0.001)
        valid.append(text)
    stop.set()
    thread.join()
    assert problems == []


async def test_over_http_no_request_is_refused_while_its_key_is_replaced(
    start_gateway: Callable[..., Awaitable[Gateway]],
    path: Path,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apikeys_file, "LOOK_EVERY_S", 0.05)
    gateway = await start_gateway(require_auth=True, api_keys_file=path)
    valid, served, stop = first, 0, asyncio.Event()

    async def status(key: str) -> int:
        found, _ = await gateway.chat(headers={"Authorization": f"Bearer {key}"})
        return found

    async def becomes(wanted: int, key: str) -> None:
        async with asyncio.timeout(20):
            while await status(key) != wanted:  # noqa: ASYNC110  nothing tells when it does
                await asyncio.sleep(0.02)

    async def client() -> None:
        nonlocal served
        while not stop.is_set():
            assert await status(valid) == 200
            served += 1

    clients = [asyncio.create_task(client()) for _ in range(2)]
    key_id = "app"
    for _ in range(3):
        record, text = rotate_api_key(path, key_id, now=int(time.time()), overlap_s=3600)
        await becomes(200, text)
        earlier, key_id, valid = key_id, record.id, text
        assert await status(first) == 200, "the earlier one is valid during the overlap"
        seen = served
        while served < seen + 4 and not any(task.done() for task in clients):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    revoke_api_key(path, "app", now=int(time.time()))
    await becomes(401, first)
    assert await status(make_api_key(b"x" * 32)) == 401
    stop.set()
    await asyncio.gather(*clients)
    assert earlier == "app-3"
