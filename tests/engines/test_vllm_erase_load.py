"""One session is erased while an engine loads and stores for twenty tenants: only it is hit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvrun.errors import KvrunError
from support.client import claimed, eventually, prompt
from support.daemon import Daemon
from support.engine import Ask, Engine

pytestmark = pytest.mark.engine

BLOCK = 128
TENANTS = [f"load-{number}" for number in range(20)]
ROUNDS = 10
ERASED = (TENANTS[7], "one")
TWIN = (TENANTS[7], "two")
WHOLE = BLOCK
NEW = (3, 7)
"""The rounds in which a tenant asks something that it has not asked before."""

Session = tuple[str, str]


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tiny_llama: Path, module_folder: Path) -> Iterator[Engine]:
    # Too small for all sessions, so that their blocks are loaded again and again.
    running = Engine(
        tiny_llama,
        daemon.socket,
        module_folder / "engine.log",
        max_model_len=1024,
        kv_cache_memory_bytes=24 * 2**20,
    )
    yield running
    running.stop()


def text(tenant: str, number: int) -> list[int]:
    """What a tenant asks in a round: the text that it stored, or that and a block more."""
    seed = 1000 * (1 + TENANTS.index(tenant))
    stored = prompt(seed, WHOLE + 40)
    return stored + prompt(seed + number, BLOCK) if number in NEW else stored


def sealed(daemon: Daemon, request_id: str) -> int:
    with contextlib.suppress(KvrunError):
        return daemon.reuse(request_id).sealed_blocks
    return -1


def began(daemon: Daemon, request_id: str) -> bool:
    """Whether the engine started on it, with blocks of its session."""
    with contextlib.suppress(KvrunError):
        reuse = daemon.reuse(request_id)
        return reuse.engine_tokens + reuse.memory_tokens + reuse.disk_tokens > 0
    return False


def test_only_the_erased_session_is_hit_and_nothing_of_it_is_written_back(
    daemon: Daemon, engine: Engine
) -> None:
    sessions: list[Session] = [(tenant, "one") for tenant in TENANTS] + [TWIN]
    first = {
        key: claimed(daemon, key[0], text(key[0], 0), session=key[1], max_tokens=2)
        for key in sessions
    }
    engine.ask(*(request for _, request in first.values()))
    eventually(
        lambda: all(sealed(daemon, request_id) >= 1 for request_id, _ in first.values()),
        "every session's text is sealed",
    )
    daemon.admin("flush")
    # What the engine answers with no cache at all.
    plain = {
        (tenant, number): Ask(text(tenant, number), f"plain-{tenant}-{number}", max_tokens=2)
        for tenant in TENANTS
        for number in (0, *NEW)
    }
    cold = dict(zip(plain, engine.ask(*plain.values()), strict=True))
    engine.reset()

    asked: list[tuple[Session, int, str, Ask]] = [
        (
            key,
            number,
            *claimed(daemon, key[0], text(key[0], number), session=key[1], max_tokens=2),
        )
        for number in range(ROUNDS)
        for key in sessions
    ]
    of_erased = [request_id for key, _, request_id, _ in asked if key == ERASED]
    result: dict[str, Any] = {}

    def erase() -> None:
        eventually(lambda: began(daemon, of_erased[2]), "the session's blocks are in use", 60)
        tenant, session = ERASED
        result["done"] = daemon.admin("erase", kind="session", tenant=tenant, session=session)

    eraser = threading.Thread(target=erase)
    eraser.start()
    answers = engine.ask(*(request for *_, request in asked))
    eraser.join()

    for (key, number, _, _), answer in zip(asked, answers, strict=True):
        plainly = cold[key[0], number if number in NEW else 0]
        assert answer.tokens == plainly.tokens, (key, number)
        if key != ERASED:
            assert answer.cached >= WHOLE, (key, number)
    mine = [
        answer.cached for (key, *_), answer in zip(asked, answers, strict=True) if key == ERASED
    ]
    assert mine[0] >= WHOLE
    assert mine[-1] == 0

    daemon.admin("flush")
    (gone,) = result["done"]["erased"]
    folder = f"{gone['tenant_ref']}/{gone['session_ref']}"
    assert not list((daemon.data / "storage").rglob(f"kv/{folder}/*"))
    engine.reset()
    last = [
        claimed(daemon, key[0], text(key[0], 0), session=key[1], max_tokens=2) for key in sessions
    ]
    for key, again in zip(sessions, engine.ask(*(request for _, request in last)), strict=True):
        assert again.cached == (0 if key == ERASED else WHOLE), key
        assert again.tokens == cold[key[0], 0].tokens
