"""Pages that move: fragments sent to the browser as they change (server-sent events)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from fastapi import Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from kvrun.accounts.errors import AccountsError
from kvrun.api.problems import RequestRefusedError
from kvrun.console.desk import Desk
from kvrun.errors import KvrunError

EVERY_S = 1.5
LONGEST_S = 900.0
"""A stream ends then and the browser opens the next one."""
MAX_STREAMS = 128
_BEAT_ROUNDS = 10


class _Open:
    count = 0


def stream(
    desk: Desk,
    fragments: Callable[[], Mapping[str, str]],
    *,
    over: Callable[[], bool] | None = None,
) -> Response:
    """Send each fragment when it changes, until the browser leaves, the sign-in is over, or
    ``over()``. Raises RequestRefusedError where too many are open."""
    if _Open.count >= MAX_STREAMS:
        raise RequestRefusedError(
            f"{MAX_STREAMS} pages are followed already", status=503, code="too_many_streams"
        )
    return StreamingResponse(
        _events(desk, fragments, over or (lambda: False)),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


def event(name: str, text: str) -> str:
    """One event of the stream (https://html.spec.whatwg.org/#server-sent-events)."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    return "\n".join((f"event: {name}", *(f"data: {line}" for line in lines), "", ""))


async def _events(
    desk: Desk, fragments: Callable[[], Mapping[str, str]], over: Callable[[], bool]
) -> AsyncIterator[str]:
    _Open.count += 1
    try:
        sent: dict[str, str] = {}
        for number in range(int(LONGEST_S / EVERY_S)):
            if not await run_in_threadpool(_signed_in, desk):
                return
            last = over()
            try:
                found = await run_in_threadpool(fragments)
            except KvrunError:
                return
            for name, text in found.items():
                if sent.get(name) != text:
                    sent[name] = text
                    yield event(name, text)
            if last:
                yield event("over", "")
                return
            if number % _BEAT_ROUNDS == 0:
                # A comment, so that proxies do not take the silence for the end.
                yield ": still here\n\n"
            await asyncio.sleep(EVERY_S)
    finally:
        _Open.count -= 1


def _signed_in(desk: Desk) -> bool:
    """Whether the sign-in still holds. Looking on is no use of it: it ends all the same."""
    try:
        desk.services.accounts.actor_of(desk.session.token, note_use=False)
    except AccountsError:
        return False
    return True
