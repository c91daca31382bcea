"""HTTP/1.1 with a bounded request head and one meaning: uvicorn's protocol takes a head of any
length, for ever, and lets the body of a request for another protocol pass for the next request.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16
HEAD_TIMEOUT_S = 30.0
# A chunk of one byte takes six on the wire; nobody needs more framing than that.
_WIRE_PER_BODY_BYTE = 9
_NO_UPGRADE = "Only HTTP/1.1 is spoken here: send the request without CONNECT and without Upgrade."


class BoundedHeadProtocol(HttpToolsProtocol):
    """Refuses heads, trailers and chunk framing above a bound, and heads that come too slowly.

    Trailers are dropped: they would join the headers after these were checked. A request that asks
    for another protocol is refused and ends its connection: the parser takes it to end with its
    head, so that its body would be the next request.
    """

    refused = False

    _budget = MAX_HEAD_BYTES
    _in_head = True
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        self._budget -= len(data)
        super().data_received(data)
        # A head nearly always comes in one piece, and then needs no timer.
        if self._in_head and self._timer is None:
            self._start_timer()
        if self._budget < 0 and not self.transport.is_closing():
            if self._in_head and (self.cycle is None or self.cycle.response_complete):
                self.send_400_response(f"The request's head is longer than {MAX_HEAD_BYTES} bytes.")
            else:
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._budget = MAX_HEAD_BYTES
        self._in_head = True
        self._stop_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            HttpToolsProtocol.on_header(self, name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        if self.parser.should_upgrade():  # for CONNECT too
            self.refused = True
            self._answer_refused()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._budget += _WIRE_PER_BODY_BYTE * len(body)
        if not self.refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.refused:
            self._answer_refused()

    def _answer_refused(self) -> None:
        """Refuse once what was asked before on this connection is answered."""
        answered = self.cycle is None or self.cycle.response_complete
        if answered and not self.transport.is_closing():
            self.send_400_response(_NO_UPGRADE)

    def _should_upgrade(self) -> bool:
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """A client's mistake is for the client to read."""

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close_late)

    def _close_late(self) -> None:
        transport: Any = self.transport
        if not transport.is_closing():
            transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
