"""Handles: unguessable, ended for good, and a bounded memory of what requests reused."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from kvrun.instance.handles import Handle, HandleTable


def add(
    table: HandleTable, tenant: str = "alice", session: str = "default", request_id: str = "r"
) -> Handle:
    keys: Any = SimpleNamespace(
        destroyed=False, ended=False, scope=SimpleNamespace(tenant=tenant, session=session)
    )
    return table.add(request_id, keys, cast(Any, None), cast(Any, None))


def test_numbers_are_random_and_never_repeat() -> None:
    table = HandleTable()
    numbers = [add(table).number for _ in range(500)]
    assert len(set(numbers)) == 500
    assert all(0 < number < 2**63 for number in numbers)
    assert min(abs(b - a) for a, b in pairwise(numbers)) > 1_000


def test_a_finished_handle_takes_late_stores_for_a_while_and_then_ends() -> None:
    table = HandleTable()
    handle, running = add(table), add(table)
    table.finish(handle.number, now=100.0)
    table.forget_finished(now=129.0)
    assert table.live(handle.number) is handle
    table.forget_finished(now=131.0)
    assert table.live(handle.number) is None
    assert table.live(running.number) is running


def test_a_destroyed_key_ends_its_handles_at_once() -> None:
    table = HandleTable()
    handle = add(table)
    cast(Any, handle.keys).destroyed = cast(Any, handle.keys).ended = True
    assert table.live(handle.number) is None


def test_revoking_reaches_the_session_or_the_whole_tenant() -> None:
    table = HandleTable()
    one, two, other = add(table), add(table, session="b"), add(table, tenant="bob")
    assert table.revoke(lambda t, s: (t, s) == ("alice", "default")) == [one]
    assert [table.live(h.number) for h in (one, two, other)] == [None, two, other]
    assert table.revoke(lambda t, s: t == "alice") == [two]
    assert [table.live(h.number) for h in (one, two, other)] == [None, None, other]


def test_what_requests_reused_is_remembered_up_to_a_bound() -> None:
    table = HandleTable(remember=3)
    for number in range(5):
        add(table, request_id=f"r{number}").reuse.memory_tokens = number
    assert table.reuse("r1") is None
    found = table.reuse("r4")
    assert found is not None
    assert found.memory_tokens == 4
    table.deny("r9", "why")
    denied = table.reuse("r9")
    assert denied is not None
    assert denied.denied == "why"
