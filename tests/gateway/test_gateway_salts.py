import asyncio

import pytest
from gateway_rig import FakeDaemon, LimitError

from kvrun.gateway.link import InstanceLink
from kvrun.gateway.salts import SessionDirectory


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def directory(
    daemon: FakeDaemon, *, capacity: int = 10, timeout_s: float = 1.0, clock: Clock | None = None
) -> SessionDirectory:
    return SessionDirectory(daemon, capacity=capacity, timeout_s=timeout_s, clock=clock or Clock())


async def test_a_session_is_asked_for_once() -> None:
    daemon = FakeDaemon()
    sessions = directory(daemon)
    first = await sessions.grant("a", "s")
    assert first is not None
    assert await sessions.grant("a", "s") == first
    assert daemon.asked == [("a", "s")]


async def test_many_at_once_ask_once() -> None:
    daemon = FakeDaemon()
    daemon.delay_s = 0.01
    sessions = directory(daemon)
    grants = await asyncio.gather(*(sessions.grant("a", "s") for _ in range(20)))
    assert len(daemon.asked) == 1
    assert all(grant == grants[0] for grant in grants)


async def test_an_invalidated_session_is_asked_for_again() -> None:
    daemon = FakeDaemon()
    sessions = directory(daemon)
    old = await sessions.grant("a", "s")
    daemon.generation = 2
    sessions.invalidate("a", "s")
    new = await sessions.grant("a", "s")
    assert old is not None
    assert new is not None
    assert new.generation == 2
    assert new.salt != old.salt


async def test_invalidating_a_tenant_reaches_all_its_sessions_and_no_others() -> None:
    daemon = FakeDaemon()
    sessions = directory(daemon)
    for key in (("a", "1"), ("a", "2"), ("b", "1")):
        await sessions.grant(*key)
    sessions.invalidate("a", "")
    assert sessions.cached("a", "1") is None
    assert sessions.cached("a", "2") is None
    assert sessions.cached("b", "1") is not None


async def test_an_answer_overtaken_by_an_invalidation_is_not_kept() -> None:
    daemon = FakeDaemon()
    daemon.answers.clear()
    sessions = directory(daemon)
    waiting = asyncio.create_task(sessions.grant("a", "s"))
    await daemon.called.wait()
    sessions.invalidate("a", "s")
    daemon.answers.set()
    await waiting
    assert sessions.cached("a", "s") is None


async def test_a_grant_for_one_request_is_never_shared() -> None:
    daemon = FakeDaemon()
    daemon.generation, daemon.delay_s = 0, 0.01
    sessions = directory(daemon)
    await asyncio.gather(*(sessions.grant("a", "s") for _ in range(5)))
    await sessions.grant("a", "s")
    assert len(daemon.asked) == 6
    assert len(sessions) == 0


async def test_the_least_recently_used_session_goes_first() -> None:
    sessions = directory(FakeDaemon(), capacity=2)
    await sessions.grant("a", "s")
    await sessions.grant("b", "s")
    sessions.cached("a", "s")
    await sessions.grant("c", "s")
    assert sessions.cached("b", "s") is None
    assert sessions.cached("a", "s") is not None
    assert len(sessions) == 2


@pytest.mark.parametrize("failure", [ConnectionRefusedError(), OSError("gone"), ValueError("?")])
async def test_an_unreachable_daemon_costs_the_grant_and_is_not_asked_at_once(
    failure: Exception,
) -> None:
    daemon, clock = FakeDaemon(), Clock()
    daemon.refuse = failure
    sessions = directory(daemon, clock=clock)
    assert await sessions.grant("a", "s") is None
    assert await sessions.grant("a", "s") is None
    assert len(daemon.asked) == 1
    daemon.refuse, clock.now = None, 1.0
    assert await sessions.grant("a", "s") is not None


async def test_a_silent_daemon_costs_no_more_than_the_timeout() -> None:
    daemon = FakeDaemon()
    daemon.delay_s = 5
    started = asyncio.get_running_loop().time()
    assert await directory(daemon, timeout_s=0.05).grant("a", "s") is None
    assert asyncio.get_running_loop().time() - started < 2


async def test_the_daemons_refusal_reaches_the_caller() -> None:
    daemon = FakeDaemon()
    daemon.refuse = LimitError("tenant a has 5 sessions, at most 5 are allowed")
    sessions = directory(daemon)
    with pytest.raises(LimitError):
        await sessions.grant("a", "s")
    daemon.refuse = None
    assert await sessions.grant("a", "s") is not None


async def test_a_client_that_leaves_does_not_spoil_it_for_the_others() -> None:
    daemon = FakeDaemon()
    daemon.answers.clear()
    sessions = directory(daemon)
    leaver = asyncio.create_task(sessions.grant("a", "s"))
    stayer = asyncio.create_task(sessions.grant("a", "s"))
    await daemon.called.wait()
    leaver.cancel()
    daemon.answers.set()
    assert await stayer is not None
    assert len(daemon.asked) == 1


async def test_the_link_starts_its_client_once_and_tries_again_after_a_failure() -> None:
    daemon = FakeDaemon()
    made: list[int] = []

    def make() -> FakeDaemon:
        made.append(1)
        return daemon

    link = InstanceLink(make)
    daemon.refuse = ConnectionRefusedError()
    with pytest.raises(ConnectionRefusedError):
        await link.open_session("a", "s")
    daemon.refuse = None
    await asyncio.gather(*(link.open_session("a", "s") for _ in range(3)))
    assert len(made) == 2
    assert (link.workspace, link.deployment) == ("w1", "chat")
    await link.close()


async def test_invalidating_everything_reaches_every_tenant() -> None:
    daemon = FakeDaemon()
    sessions = directory(daemon)
    for key in (("a", "1"), ("b", "1")):
        await sessions.grant(*key)
    sessions.invalidate("", "")
    assert len(sessions) == 0


class ErasingError(LimitError):
    status = 409


async def test_a_session_that_is_being_erased_goes_uncached_and_others_go_on() -> None:
    daemon = FakeDaemon()
    sessions = directory(daemon)
    daemon.refuse = ErasingError("the session is being erased")
    assert await sessions.grant("a", "erased") is None
    daemon.refuse = None
    assert await sessions.grant("a", "other") is not None
    assert await sessions.grant("a", "erased") is not None
