"""A prompt's KV and tokens exist in the engine's memory and in live staging, and nowhere else."""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.client import ask, claimed, eventually, prompt, unclaimed
from support.daemon import AT_A_MOMENT, PATIENT, Daemon
from support.engine import Engine
from support.memory import find_in_files, find_in_memory

pytestmark = [pytest.mark.engine, pytest.mark.root]

TOKENS = prompt(91, 700)
STAGING = "kvrun-staging"


@pytest.fixture(scope="module")
def daemon(module_folder: Path) -> Iterator[Daemon]:
    running = Daemon(module_folder, settings=PATIENT, prelude=AT_A_MOMENT)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def engine(daemon: Daemon, tiny_llama: Path, module_folder: Path) -> Iterator[Engine]:
    running = Engine(tiny_llama, daemon.socket, module_folder / "engine.log")
    yield running
    running.stop()


def token_forms() -> list[bytes]:
    """A piece of the prompt as engines, sockets and logs might write it."""
    piece = TOKENS[100:116]
    return [
        struct.pack("<16i", *piece),
        struct.pack("<16q", *piece),
        ", ".join(map(str, piece)).encode(),
        ",".join(map(str, piece)).encode(),
        b"".join(b"\xcd" + struct.pack(">H", token) for token in piece if token > 255),
    ]


def holders(pid: int, needles: list[bytes]) -> set[str]:
    return set().union(*find_in_memory(pid, needles).values())


def whole_pages(engine: Engine) -> list[bytes]:
    """Pieces of pages that are full: the middle of a page in part is zeros in part."""
    return [page for page in engine.pages() if len(set(page)) > 32]


def stop_at(daemon: Daemon, moment: str) -> None:
    (daemon.folder / "moment").write_text(f"{moment} {int(signal.SIGSTOP)} 0")


def test_plaintext_is_found_in_the_engine_and_in_live_staging_only(
    daemon: Daemon, engine: Engine
) -> None:
    stop_at(daemon, "_seal_one")
    request_id, request = claimed(daemon, "alice", TOKENS)
    cold = engine.ask(request)[0]
    eventually(lambda: not (daemon.folder / "moment").exists(), "the daemon stops at a seal")
    try:
        pages = whole_pages(engine)
        assert len(pages) == 5
        # The search finds what is there: every page in the engine and in live staging.
        in_engine = find_in_memory(engine.pid, pages)
        assert all(in_engine.values())
        live = find_in_memory(daemon.pid, pages)
        assert all(live.values())
        assert all(STAGING in name for names in live.values() for name in names)
        assert holders(engine.pid, token_forms())
        assert holders(daemon.pid, token_forms()) == set()
    finally:
        daemon.resume()

    eventually(lambda: daemon.reuse(request_id).sealed_blocks == 5, "the blocks are sealed")
    daemon.admin("flush")
    assert holders(daemon.pid, pages + token_forms()) == set()
    # The search looks into the sealed files: their format's mark is in them.
    assert len(find_in_files(daemon.data / "storage", [b"KVS1"])) == 5
    assert find_in_files(daemon.data, pages + token_forms()) == set()

    # Opening them again brings plaintext into staging, and out of it when the engine has it.
    engine.reset()
    warm = ask(daemon, engine, "alice", TOKENS)
    assert (warm.cached, warm.tokens) == (640, cold.tokens)
    eventually(lambda: holders(daemon.pid, pages) == set(), "the daemon holds no plaintext again")
    staging = {name for name in holders(engine.pid, pages) if STAGING in name}
    assert staging == set()
    assert find_in_files(daemon.data, pages + token_forms()) == set()


def test_a_lost_daemon_leaves_no_plaintext_in_the_engines_staging(
    daemon: Daemon, engine: Engine
) -> None:
    stop_at(daemon, "_seal_one")
    engine.ask(claimed(daemon, "bob", prompt(92, 700))[1])
    eventually(lambda: not (daemon.folder / "moment").exists(), "the daemon stops at a seal")
    pages = whole_pages(engine)
    assert any(STAGING in name for name in holders(engine.pid, pages))
    daemon.kill()
    engine.ask(unclaimed(prompt(93, 50)))
    assert not any(STAGING in name for name in holders(engine.pid, pages))
    assert find_in_files(daemon.data, pages) == set()
    daemon.start()
