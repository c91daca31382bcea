"""Taking the engine's transfer parameters out of answers, without delaying a stream.

Events pass through as the bytes they came in. Only one that names the field is parsed.
"""

import msgspec

from kvrun.gateway.errors import GatewayError

MAX_EVENT_BYTES = 64 << 20

_MARK = b"_transfer_params"
_FIELDS = ("kv_transfer_params", "ec_transfer_params")


def scrub_json(body: bytes) -> bytes:
    """A JSON answer without transfer parameters. Raises GatewayError 502 where it cannot tell."""
    if _MARK not in body:
        return body
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise GatewayError(
            "the engine's answer is not valid JSON", status=502, code="bad_engine_answer"
        ) from None
    if isinstance(value, dict):
        # The Responses API's events wrap the whole answer in a field.
        for holder in (value, value.get("response"), value.get("message")):
            if isinstance(holder, dict):
                for name in _FIELDS:
                    holder.pop(name, None)
    return msgspec.json.encode(value)


class EventScrubber:
    """The same for a stream of server-sent events.

    ``feed`` returns every complete event at once; of an incomplete one it waits for the rest,
    since a client can do nothing with half an event and the field's name could be cut in two.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """The complete events so far, scrubbed. Raises GatewayError 502 for an endless one."""
        if not self._rest and chunk.endswith(b"\n\n"):
            return chunk if _MARK not in chunk else _scrub_events(chunk)
        data = self._rest + chunk
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\n\r\n") + 3)
        if end < 3 and not data.startswith(b"\n\n"):
            end = 0
        self._rest = data[end:]
        if len(self._rest) > MAX_EVENT_BYTES:
            raise GatewayError("the engine sent an endless event", status=502)
        complete = data[:end]
        return complete if _MARK not in complete else _scrub_events(complete)

    def finish(self) -> bytes:
        """What is left when the stream ends without a blank line."""
        rest, self._rest = self._rest, b""
        return rest if _MARK not in rest else _scrub_events(rest)


def _scrub_events(data: bytes) -> bytes:
    return b"\n".join(_scrub_line(line) for line in data.split(b"\n"))


def _scrub_line(line: bytes) -> bytes:
    if _MARK not in line or not line.startswith(b"data:"):
        return line
    ending = b"\r" if line.endswith(b"\r") else b""
    return b"data: " + scrub_json(line[5:].strip()) + ending
