"""The client to the engine against servers that write exactly these bytes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from kvrun.gateway.upstream import (
    Engine,
    EngineBrokeError,
    EngineTimeoutError,
    EngineUnavailableError,
)

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Serve = Callable[[Script], Awaitable[Engine]]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    servers: list[asyncio.Server] = []
    engines: list[Engine] = []

    async def start(script: Script) -> Engine:
        path = str(tmp_path / "engine.sock")
        servers.append(await asyncio.start_unix_server(script, path))
        engine = Engine(f"unix:{path}", api_key=None, connect_timeout_s=1.0, response_timeout_s=0.3)
        engines.append(await engine.open())
        return engine

    yield start
    for engine in engines:
        await engine.close()
    for server in servers:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head + await reader.readexactly(int(line.split(b":")[1]))
    return head


def answering(*answers: bytes, close: bool = False) -> Script:
    """Each request on a connection gets the next of these answers."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            try:
                await read_request(reader)
            except asyncio.IncompleteReadError:
                break
            writer.write(answer)
            await writer.drain()
        if close:
            writer.close()
        else:
            await reader.read()
            writer.close()

    return script


async def ask(engine: Engine) -> tuple[int, bytes]:
    answer = await engine.request("POST", "/x", "id-1", b"{}")
    return answer.status, await answer.read_all()


async def test_a_connection_is_used_again(serve: Serve) -> None:
    engine = await serve(answering(OK, OK, OK))
    assert [await ask(engine) for _ in range(3)] == [(200, b"{}")] * 3


async def test_an_interim_answer_is_passed_over(serve: Serve) -> None:
    engine = await serve(answering(b"HTTP/1.1 102 Processing\r\n\r\n" + OK))
    assert await ask(engine) == (200, b"{}")


@pytest.mark.parametrize("pause_s", [0, 0.02])
@pytest.mark.parametrize("fields", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
async def test_an_engine_that_goes_over_to_another_protocol_answers_nothing(
    serve: Serve, fields: bytes, pause_s: float
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n" + fields + b"\r\n")
        await writer.drain()
        await asyncio.sleep(pause_s)  # so that what follows comes in a piece of its own, or not
        writer.write(OK)
        await reader.read()
        writer.close()

    engine = await serve(script)
    with pytest.raises(EngineUnavailableError):
        await ask(engine)


async def test_an_answer_that_offers_another_protocol_is_an_answer(serve: Serve) -> None:
    offer = OK.replace(b"\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n", 1)
    engine = await serve(answering(offer, offer))
    assert [await ask(engine) for _ in range(2)] == [(200, b"{}")] * 2


async def test_an_answer_without_a_length_ends_with_its_connection(serve: Serve) -> None:
    engine = await serve(answering(b"HTTP/1.1 200 OK\r\n\r\nall of it", close=True))
    assert await ask(engine) == (200, b"all of it")


async def test_an_answer_shorter_than_its_length_is_an_error(serve: Serve) -> None:
    engine = await serve(
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", close=True)
    )
    answer = await engine.request("POST", "/x", "id-1", b"{}")
    with pytest.raises(EngineBrokeError):
        await answer.read_all()


async def test_chunks_that_end_early_are_an_error(serve: Serve) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    engine = await serve(answering(head + b"3\r\nabc\r\n", close=True))
    answer = await engine.request("POST", "/x", "id-1", b"{}")
    assert await answer.read() == b"abc"
    with pytest.raises(EngineBrokeError):
        await answer.read()


@pytest.mark.parametrize(
    "garbage", [b"hello\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\x16\x03\x01\x00", b"HTTP/1.1 200 OK"]
)
async def test_what_is_no_http_answer_is_an_engine_away(serve: Serve, garbage: bytes) -> None:
    engine = await serve(answering(garbage, close=True))
    with pytest.raises(EngineUnavailableError):
        await ask(engine)


@pytest.mark.parametrize("surplus", [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nothers", b"x"])
async def test_an_answer_nobody_asked_for_never_answers_the_next_request(
    serve: Serve, surplus: bytes
) -> None:
    engine = await serve(answering(OK + surplus, OK))
    for _ in range(3):
        assert await ask(engine) == (200, b"{}")
        await asyncio.sleep(0.01)


async def test_an_answer_that_comes_late_never_answers_the_next_request(serve: Serve) -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await asyncio.sleep(0.01)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nothers")
        await reader.read()
        writer.close()

    engine = await serve(late)
    for _ in range(2):
        assert await ask(engine) == (200, b"{}")
        await asyncio.sleep(0.05)


async def test_silence_is_a_timeout_before_and_within_an_answer(serve: Serve) -> None:
    engine = await serve(answering(b""))
    with pytest.raises(EngineTimeoutError):
        await ask(engine)


async def test_silence_within_an_answer_is_a_timeout(serve: Serve) -> None:
    engine = await serve(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"))
    answer = await engine.request("POST", "/x", "id-1", b"{}")
    assert await answer.read() == b"half"
    with pytest.raises(EngineTimeoutError):
        await answer.read()


async def test_a_slow_reader_slows_the_engine_and_is_no_timeout(serve: Serve) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        total = 64 << 20
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(b"x" * (1 << 20))
            await writer.drain()
            sent += 1 << 20

    engine = await serve(flood)
    answer = await engine.request("POST", "/x", "id-1", b"{}")
    await asyncio.sleep(0.5)  # longer than the timeout for a silent engine
    assert sent < 16 << 20
    assert len(await answer.read_all()) == 64 << 20


async def test_hanging_up_closes_the_connection(serve: Serve) -> None:
    closed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await reader.read()
        closed.set()
        writer.close()

    engine = await serve(script)
    answer = await engine.request("POST", "/x", "id-1", b"{}")
    answer.close()
    await asyncio.wait_for(closed.wait(), 5)


async def test_a_pump_gives_everything_in_order_and_waits_where_it_is_told_to(
    serve: Serve,
) -> None:
    total = 8 << 20
    sent = b"".join(b"%08d" % number for number in range(total // 8))

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        writer.write(sent)
        await writer.drain()
        await reader.read()
        writer.close()

    engine = await serve(flood)
    answer = await engine.request("POST", "/x", "id-1", b"{}")
    got, full, calls_while_full = bytearray(), False, 0

    def sink(data: bytes) -> bool:
        nonlocal full, calls_while_full
        calls_while_full += full
        got.extend(data)
        full = len(got) % 3 == 0
        return not full

    async def drain() -> None:
        nonlocal full
        await asyncio.sleep(0.001)
        full = False

    got += await asyncio.wait_for(answer.pump(sink, drain), 20)
    assert bytes(got) == sent
    assert calls_while_full == 0
    assert len(engine._idle) == 1  # its connection is at hand for the next request


async def test_a_pump_raises_what_its_sink_raises_and_hangs_up(serve: Serve) -> None:
    closed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal")
        await asyncio.sleep(0.01)
        writer.write(b"f")
        await reader.read()
        closed.set()
        writer.close()

    async def drain() -> None:
        return None

    def sink(data: bytes) -> bool:
        if b"f" in data:
            raise ValueError("no")
        return True

    engine = await serve(script)
    answer = await engine.request("POST", "/x", "id-1", b"{}")
    with pytest.raises(ValueError, match="no"):
        await answer.pump(sink, drain)
    await asyncio.wait_for(closed.wait(), 5)
