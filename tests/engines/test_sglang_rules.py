"""What the SGLang adapter decides without SGLang: whose pages are whose, and what it refuses."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvrun.engines.admission import Admissions, State
from kvrun.engines.claims import AnnouncedClaims
from kvrun.engines.sglang.copies import (
    HostPageError,
    gather,
    page_bytes,
    page_regions,
    scatter,
    zero,
)
from kvrun.engines.sglang.governance import EngineSettingError, check_engine, engine_fingerprint
from kvrun.engines.sglang.installed import EngineVersionError, require_supported_version
from kvrun.engines.sglang.requests import LINGER_S, GovernedRequests
from kvrun.engines.transfer import BlockRef
from kvrun.engines.waiting import AnnouncedAdmissions
from kvrun.instance.claim_messages import Announced
from kvrun.instance.connection import Connection, Reconnector
from kvrun.instance.protocol import Finished, Match, Matched, Revoked, Verdict
from support.lines import Line, Search

PAGE = 16


def names(owner: str, count: int) -> list[str]:
    return [f"{owner}{number:02x}".encode().hex().ljust(64, "0") for number in range(count)]


class Rig:
    def __init__(self) -> None:
        self.line, self.time, self.handles = Line(), 0.0, 100
        claims = AnnouncedClaims()
        admissions = Admissions(
            cast(Connection, self.line), cast(Reconnector, Search()), lambda: self.time, claims
        )
        self.requests = GovernedRequests(
            AnnouncedAdmissions(admissions, claims, lambda: self.time), lambda: self.time
        )

    def admit(self, request_id: str, salt: str, hashes: list[str], present: int) -> int:
        """A request whose first ``present`` pages the daemon has; its handle."""
        self.ask(request_id, salt, hashes)
        self.handles += 1
        tiers = bytes([1] * present + [0] * (len(hashes) - present))
        self.answer(Verdict.ADMITTED, self.handles, tiers)
        return self.handles

    def ask(self, request_id: str, salt: str, hashes: list[str]) -> None:
        self.line.answers.append(Announced(salt, f"claim of {salt}", 1))
        self.requests.poll()
        self.requests.begin(request_id, salt, hashes, len(hashes) * PAGE)

    def answer(self, verdict: Verdict, handle: int = 0, tiers: bytes = b"") -> None:
        match = [message for message in self.line.sent if isinstance(message, Match)][-1]
        self.line.answers.append(Matched(match.request, verdict, "", handle, (tiers,)))
        self.requests.poll()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def ref(key: str, index: int) -> BlockRef:
    return BlockRef(bytes.fromhex(key), 0, index)


def test_a_page_is_found_and_opened_for_the_request_that_it_belongs_to(rig: Rig) -> None:
    alice, bob = names("a", 4), names("b", 4)
    handle = rig.admit("ra", "salt-a", alice, 3)
    rig.admit("rb", "salt-b", bob, 0)
    assert rig.requests.found(alice, 0) == 3
    assert rig.requests.loads(alice) == (handle, [ref(key, at) for at, key in enumerate(alice[:3])])
    # From the middle too: SGLang asks only for what its own cache does not have.
    assert rig.requests.loads(alice[2:]) == (handle, [ref(alice[2], 2)])
    assert rig.requests.found(bob, 0) == 0
    assert rig.requests.loads(bob) == (0, [])
    # A batch never mixes the pages of two handles.
    rig.admit("rc", "salt-c", names("c", 2), 2)
    assert rig.requests.loads([alice[0], *names("c", 2)]) == (handle, [ref(alice[0], 0)])


def test_a_hash_that_nobody_noted_is_neither_found_nor_opened_nor_sealed(rig: Rig) -> None:
    rig.admit("ra", "salt-a", names("a", 2), 2)
    strange = names("x", 2)
    assert rig.requests.found(strange, 0) == 0
    assert rig.requests.loads(strange) == (0, [])
    assert rig.requests.stores(strange) == [None, None]


@pytest.mark.parametrize(
    "how", ["denied", "pending", "stateless", "no salt", "revoked", "unclaimed"]
)
def test_without_an_admission_nothing_is_found_opened_or_sealed(rig: Rig, how: str) -> None:
    keys = names("a", 2)
    if how == "no salt":
        rig.requests.begin("r", None, keys, 32)
    elif how == "unclaimed":
        rig.requests.begin("r", "salt-a", keys, 32)
        rig.time = 5.0
        assert rig.requests.poll() == ["r"]
    elif how == "revoked":
        handle = rig.admit("r", "salt-a", keys, 2)
        assert rig.requests.found(keys, 0) == 2
        rig.line.answers.append(Revoked((handle,)))
        assert rig.requests.poll() == ["r"]
    else:
        rig.ask("r", "salt-a", keys)
        if how == "denied":
            rig.answer(Verdict.DENIED)
        elif how == "stateless":
            rig.answer(Verdict.ADMITTED, 0, b"\1\1")
    assert rig.requests.state("r") is (State.PENDING if how == "pending" else State.DENIED)
    assert rig.requests.found(keys, 0) == 0
    assert rig.requests.loads(keys) == (0, [])
    assert rig.requests.stores(keys) == [None, None]
    rig.requests.finish("r")
    assert rig.requests.stores(keys) == [None, None]


def test_an_answer_fills_pages_that_are_sealed_for_a_while_after_the_end(rig: Rig) -> None:
    prompt, whole = names("a", 2), names("a", 5)
    handle = rig.admit("r", "salt-a", prompt, 0)
    rig.requests.note("r", whole)
    # Pages of another chain than the request's are not taken for its own.
    rig.requests.note("r", names("b", 7))
    rig.requests.finish("r")
    assert rig.line.sent[-1] == Finished(handle)
    assert rig.requests.stores(whole) == [(handle, ref(key, at)) for at, key in enumerate(whole)]
    # What has ended opens nothing.
    assert rig.requests.loads(whole) == (0, [])
    rig.time = LINGER_S
    rig.requests.poll()
    assert rig.requests.stores(whole) == [None] * 5
    assert not rig.requests._users


def test_two_requests_of_a_session_do_not_take_each_others_pages_away(rig: Rig) -> None:
    keys = names("a", 3)
    first = rig.admit("r1", "salt-a", keys, 3)
    second = rig.admit("r2", "salt-a", keys, 3)
    assert rig.requests.loads(keys)[0] == first
    rig.requests.finish("r1")
    assert rig.requests.loads(keys)[0] == second
    rig.time = LINGER_S
    rig.requests.poll()
    assert rig.requests.loads(keys)[0] == second
    rig.requests.finish("r2")
    assert rig.requests.loads(keys) == (0, [])


def test_the_storage_thread_waits_for_the_scheduler_to_take_the_answer_in(rig: Rig) -> None:
    keys = names("a", 3)
    rig.ask("r", "salt-a", keys)
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(rig.requests.found(keys, 30)))
    thread.start()
    rig.answer(Verdict.ADMITTED, 7, b"\1\1\0")
    thread.join(20)
    assert counts == [2]


class Pool:
    page_size, layout = PAGE, "page_first_direct"

    def __init__(self, pages: int, regions: tuple[int, ...]) -> None:
        self.memory = [[bytearray(size) for size in regions] for _ in range(pages)]
        self.sizes = list(regions)

    def get_page_buffer_meta(self, indices: list[int]) -> tuple[list[int], list[int]]:
        import ctypes

        addresses, sizes = [], []
        for row in indices[::PAGE]:
            for region in self.memory[row // PAGE]:
                buffer = (ctypes.c_char * len(region)).from_buffer(region)
                addresses.append(ctypes.addressof(buffer))
                sizes.append(len(region))
        return addresses, sizes


def test_a_page_of_many_regions_comes_back_whole() -> None:
    import ctypes

    pool = Pool(3, (8, 16, 8))
    for number, page in enumerate(pool.memory):
        for region in page:
            region[:] = bytes([number + 1]) * len(region)
    regions = page_regions(pool, list(range(3 * PAGE)), 3)
    assert [page_bytes(page) for page in regions] == [32] * 3
    staging = ctypes.create_string_buffer(32)
    gather(regions[1], ctypes.addressof(staging))
    assert staging.raw == b"\2" * 32
    scatter(regions[2], ctypes.addressof(staging))
    assert [bytes(region) for region in pool.memory[2]] == [b"\2" * 8, b"\2" * 16, b"\2" * 8]
    zero(regions[1])
    assert not any(any(region) for region in pool.memory[1])
    assert any(pool.memory[0][0])
    with pytest.raises(HostPageError):
        page_regions(pool, list(range(3 * PAGE)), 2)


OPTIONS = {
    "backend_name": "kvrun",
    "module_path": "kvrun.engines.sglang.storage",
    "class_name": "KvrunStorage",
    "interface_v1": 1,
    "prefetch_threshold": PAGE,
}


def server_args(options: object = OPTIONS, **changes: Any) -> SimpleNamespace:
    args: dict[str, Any] = {
        "model_path": "none",
        "page_size": PAGE,
        "enable_hierarchical_cache": True,
        "hicache_host_memory_mode": "buffer_only",
        "hicache_storage_backend": "dynamic",
        "hicache_storage_backend_extra_config": json.dumps(options),
        "hicache_write_policy": "write_through",
        "hicache_storage_prefetch_policy": "wait_complete",
        "disable_overlap_schedule": True,
        "disable_radix_cache": False,
    }
    return SimpleNamespace(**{**args, **changes})


def test_an_engine_with_every_option_right_is_served() -> None:
    check_engine(server_args())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"enable_hierarchical_cache": False}, "--enable-hierarchical-cache"),
        ({"hicache_host_memory_mode": "cache"}, "--hicache-host-memory-mode"),
        ({"hicache_storage_backend": "mooncake"}, "--hicache-storage-backend"),
        ({"hicache_write_policy": "write_back"}, "--hicache-write-policy"),
        ({"hicache_storage_prefetch_policy": "best_effort"}, "prefetch-policy"),
        ({"disable_overlap_schedule": False}, "--disable-overlap-schedule"),
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        ({"enable_lmcache": True}, "LMCache"),
        ({"enable_unified_cache_external_linker": True}, "linker"),
        ({"kv_events_config": "{}"}, "KV events"),
        ({"enable_lora": True}, "adapter"),
        ({"speculative_algorithm": "EAGLE"}, "draft"),
        ({"sleep_on_idle": True}, "sleeps"),
        ({"tp_size": 2}, "tensor parallel"),
        ({"dp_size": 2}, "data parallel"),
        ({"disaggregation_mode": "prefill"}, "disaggregation"),
    ],
)
def test_an_option_that_would_leak_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineSettingError, match=message):
        check_engine(server_args(**change))


@pytest.mark.parametrize(
    "options",
    [
        {**OPTIONS, "class_name": "Other"},
        {**OPTIONS, "module_path": "other"},
        {**OPTIONS, "interface_v1": 0},
        {**OPTIONS, "prefetch_threshold": 256},
        {key: value for key, value in OPTIONS.items() if key != "prefetch_threshold"},
        [],
    ],
)
def test_another_storage_or_one_that_looks_nothing_up_is_refused(options: object) -> None:
    with pytest.raises(EngineSettingError):
        check_engine(server_args(options))


def test_options_that_are_no_json_are_refused() -> None:
    args = server_args(hicache_storage_backend_extra_config="@/etc/file.toml")
    with pytest.raises(EngineSettingError, match="not JSON"):
        check_engine(args)


@pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.4.99", "0.6.0", "1.0.0", "main", ""])
def test_a_release_whose_keys_do_not_hold_the_salt_is_refused(version: str) -> None:
    with pytest.raises(EngineVersionError, match="kvrun works with"):
        require_supported_version(version)


@pytest.mark.parametrize("version", ["0.5.21", "0.5.23", "0.5.100", "0.5.23.post1"])
def test_later_releases_are_taken(version: str) -> None:
    assert require_supported_version(version) == version


def test_the_fingerprint_names_whatever_changes_a_pages_meaning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kvrun.engines.sglang import governance

    monkeypatch.setattr(governance, "require_supported_version", lambda: "0.5.23")
    given = {"kvrun.model_fingerprint": "ab" * 32}
    args = server_args(dtype="float32", kv_cache_dtype="auto", device="cpu")
    base = engine_fingerprint(args, "page=16", given)
    others = {
        engine_fingerprint(args, "page=32", given),
        engine_fingerprint(server_args(dtype="bfloat16", device="cpu"), "page=16", given),
        engine_fingerprint(args, "page=16", {"kvrun.model_fingerprint": "cd" * 32}),
    }
    assert len({base, *others}) == 4
    with pytest.raises(EngineSettingError, match="not on this machine"):
        engine_fingerprint(server_args(model_path="nobody/none-such"), "page=16", {})
