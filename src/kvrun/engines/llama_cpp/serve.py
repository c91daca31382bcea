"""``python -m kvrun.engines.llama_cpp.serve``: the slot server, and llama.cpp behind it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from kvrun.engines.llama_cpp.arguments import ServerShape, server_arguments
from kvrun.engines.llama_cpp.backend import Backend, BackendError
from kvrun.engines.llama_cpp.front import Front
from kvrun.engines.llama_cpp.installed import require_llama_cpp
from kvrun.engines.llama_cpp.link import DaemonLink, EngineFacts
from kvrun.engines.llama_cpp.metrics import SlotMetrics
from kvrun.engines.llama_cpp.pieces import LAYERS
from kvrun.engines.llama_cpp.scratch import Scratch
from kvrun.engines.llama_cpp.slots import Slots
from kvrun.engines.settings import find_daemon
from kvrun.errors import KvrunError
from kvrun.instance.protocol import Scrub
from kvrun.models.fingerprint import KvFormat, cpu_isa, file_digest, model_fingerprint
from kvrun.models.folders import cache_folder
from kvrun.process import PARENT_VARIABLE, end_with_parent, harden_process
from kvrun.unixsocket import listen_privately

_BACKLOG = 128

_log = logging.getLogger("kvrun.engines.llama_cpp")


@dataclass(frozen=True, slots=True)
class Options:
    """What the slot server is told when it is started."""

    shape: ServerShape
    instance_socket: Path
    uds: Path | None
    port: int
    binary: Path | None
    startup_timeout_s: float


def read_options(arguments: Sequence[str]) -> Options:
    """The options in a command line; argparse ends the process where one is wrong."""
    parser = argparse.ArgumentParser(prog="kvrun llama.cpp slot server")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--context-window", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--instance-socket", type=Path, required=True)
    parser.add_argument("--backend-socket", type=Path, required=True)
    parser.add_argument("--startup-timeout", type=float, default=900)
    parser.add_argument("--uds", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--binary", type=Path)
    parser.add_argument("extra", nargs="*")
    given = parser.parse_args(arguments)
    shape = ServerShape(
        given.model, given.name, given.backend_socket, given.context_window, given.slots,
        given.threads, tuple(given.extra),
    )  # fmt: skip
    return Options(
        shape, given.instance_socket, given.uds, given.port, given.binary, given.startup_timeout
    )


def state_fingerprint(options: Options) -> bytes:
    """32 bytes that name everything on which the meaning of a saved state depends."""
    engine = require_llama_cpp(options.binary)
    hashes = cache_folder() / "hashes.json"
    build = engine.version
    if options.binary is not None:
        build = file_digest(options.binary, hashes).hex()
    shape = options.shape
    return model_fingerprint(
        file_digest(shape.model, hashes),
        KvFormat(
            dtype="gguf",
            kv_dtype=" ".join(shape.extra),
            engine=f"{engine.distribution} {build}",
            layout=f"{LAYERS}; window={shape.context_window} slots={shape.slots}",
            isa=cpu_isa(),
        ),
    )


async def serve(options: Options) -> int:
    """Serve until a signal; the exit status. Raises KvrunError for what cannot start."""
    settings = find_daemon(str(options.instance_socket))
    shape = options.shape
    scratches = [Scratch() for _ in range(shape.slots)]
    zeros = Scratch()
    backend = Backend(
        server_arguments(shape),
        shape.socket,
        [scratch.fd for scratch in (*scratches, zeros)],
        binary=options.binary,
    )
    link: DaemonLink | None = None
    try:
        await backend.start(options.startup_timeout_s)
        if await backend.slot_tokens() < shape.context_window:
            raise BackendError(
                f"llama.cpp gives a slot {await backend.slot_tokens()} tokens, the context window"
                f" is {shape.context_window}"
            )
        slots = Slots(backend, scratches, zeros, lambda *answer: _report(link, *answer))
        scrubs = await slots.prepare_scrubs()
        engine = require_llama_cpp(options.binary)
        facts = EngineFacts(
            f"llama.cpp ({engine.distribution} {engine.version})",
            await asyncio.to_thread(state_fingerprint, options),
            shape.context_window,
            scrubs,
        )
        metrics = SlotMetrics()
        front: Front | None = None

        def denied(request_id: str) -> None:
            if front is not None:
                front.denied(request_id)

        def scrub(order: Scrub) -> None:
            slots.scrub(order)

        link = DaemonLink(settings, facts, scratches, on_denied=denied, on_scrub=scrub)
        await link.start()
        front = Front(backend, link, slots, metrics, name=shape.name, window=shape.context_window)
        return await _until_stopped(options, front, backend, slots)
    finally:
        if link is not None:
            await link.close()
        await backend.stop()


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it, so that what is behind it ends in order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _until_stopped(options: Options, front: Front, backend: Backend, slots: Slots) -> int:
    config = uvicorn.Config(
        front,
        http="httptools",
        ws="none",
        lifespan="off",
        # Paths and errors of requests are no matter for a log here.
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, setattr, server, "should_exit", True)
    listener = _listener(options)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    faults = {
        asyncio.create_task(backend.ended()): "llama.cpp ended by itself",
        asyncio.create_task(slots.broken.wait()): "a slot cannot be erased",
    }
    try:
        await asyncio.wait({serving, *faults}, return_when=asyncio.FIRST_COMPLETED)
        fault = next((text for task, text in faults.items() if task.done()), None)
        if fault is not None and not serving.done():
            _log.error("%s; the engine ends", fault)
            server.should_exit = True
        await serving
        await front.close()
        return 1 if fault is not None else 0
    finally:
        for task in faults:
            task.cancel()
        if options.uds is not None:
            options.uds.unlink(missing_ok=True)


def _report(link: DaemonLink | None, call: int, scrubbed: int, held: int) -> None:
    if link is not None:
        link.report(call, scrubbed, held)


def _listener(options: Options) -> socket.socket:
    if options.uds is None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", options.port))
        return listener
    return listen_privately(options.uds, _BACKLOG)


def main() -> None:
    """Run the slot server in this process."""
    end_with_parent(os.environ.get(PARENT_VARIABLE))
    harden_process()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until uvicorn takes it over
    try:
        status = asyncio.run(serve(read_options(sys.argv[1:])))
    except KvrunError as error:
        sys.exit(f"kvrun: {error.diagnostics()}")
    sys.exit(status)


if __name__ == "__main__":
    main()
