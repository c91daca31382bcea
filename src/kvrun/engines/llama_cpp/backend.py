"""The llama.cpp server behind the slot server: its process, and the calls that are made to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from kvrun.engines.llama_cpp.server_process import API_KEY_VARIABLE
from kvrun.errors import KvrunError
from kvrun.process import PARENT_VARIABLE

T = TypeVar("T")
_POLL_S = 0.05
_STOP_S = 10.0


class BackendError(KvrunError):
    """llama.cpp refused or failed; ``status`` is its HTTP status and ``body`` what it said."""

    def __init__(self, message: str, *, status: int = 500, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class Timings(msgspec.Struct, frozen=True):
    """What llama.cpp reused and computed for one request."""

    cache_n: int = 0
    prompt_n: int = 0
    predicted_n: int = 0


class Computed(msgspec.Struct, frozen=True):
    """The part of a completion's answer that tells what was computed."""

    timings: Timings = Timings()


class _Slot(msgspec.Struct, frozen=True):
    n_saved: int = 0
    n_written: int = 0
    n_restored: int = 0


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


class _Prompt(msgspec.Struct, frozen=True):
    prompt: str


class _Generation(msgspec.Struct, frozen=True):
    n_ctx: int


class _Props(msgspec.Struct, frozen=True):
    default_generation_settings: _Generation
    build_info: str = ""


class Backend:
    """One llama.cpp server. ``arguments`` are llama-server's; ``binary`` None is xllamacpp."""

    def __init__(
        self,
        arguments: Sequence[str],
        socket: Path,
        descriptors: Sequence[int],
        *,
        binary: Path | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._arguments = tuple(arguments)
        self._socket = socket
        self._descriptors = tuple(descriptors)
        self._binary = binary
        self._environment = environment
        self._key = secrets.token_urlsafe(32)
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self, timeout_s: float) -> None:
        """Start the process and wait until it serves. Raises BackendError."""
        self._socket.unlink(missing_ok=True)
        front = ["--binary", str(self._binary)] if self._binary is not None else []
        # llama-server takes settings from LLAMA_ARG_ variables: none may come in that way.
        kept = {k: v for k, v in self._environment.items() if not k.startswith("LLAMA_")}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kvrun.engines.llama_cpp.server_process",
            *front, *self._arguments,
            env={**kept, API_KEY_VARIABLE: self._key, PARENT_VARIABLE: str(os.getpid())},
            pass_fds=self._descriptors,
        )  # fmt: skip
        self._session = aiohttp.ClientSession(
            base_url="http://llama",
            connector=aiohttp.UnixConnector(path=str(self._socket), limit=0, force_close=True),
            headers={"Authorization": f"Bearer {self._key}"},
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=1 << 20,
        )
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise BackendError(
                            f"llama.cpp ended at its start with status {self._process.returncode};"
                            " its last lines are above"
                        )
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise BackendError(f"llama.cpp did not become ready in {timeout_s:.0f} s") from None
        self._socket.chmod(0o600)

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process is not None
        return self._process.pid

    async def ended(self) -> int:
        """Returns its exit status when the process has ended."""
        assert self._process is not None
        return await self._process.wait()

    async def healthy(self) -> bool:
        """Whether it answers now."""
        return await self._answers()

    async def stop(self) -> None:
        """End the process."""
        if self._session is not None:
            await self._session.close()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._socket.unlink(missing_ok=True)

    async def slot_tokens(self) -> int:
        """How many tokens one slot holds."""
        props = await self._decoded(_Props, "GET", "/props")
        return props.default_generation_settings.n_ctx

    async def tokenize(self, text: str) -> list[int]:
        """A prompt's tokens, as a completion would see them."""
        body = {"content": text, "add_special": True, "parse_special": True}
        return (await self._decoded(_Tokens, "POST", "/tokenize", body)).tokens

    async def render(self, body: Mapping[str, object]) -> str:
        """The prompt that the model's template makes of a chat request."""
        return (await self._decoded(_Prompt, "POST", "/apply-template", body)).prompt

    async def compute(self, slot: int, tokens: Sequence[int]) -> Timings:
        """Compute a prompt's KV in a slot, and generate nothing."""
        body = {
            "prompt": list(tokens), "n_predict": 0, "id_slot": slot, "cache_prompt": True,
            "temperature": 0,
        }  # fmt: skip
        return (await self._decoded(Computed, "POST", "/completion", body)).timings

    async def save(self, slot: int, name: str) -> tuple[int, int]:
        """Write a slot's state to a descriptor; its tokens and bytes."""
        saved = await self._slot(slot, "save", {"filename": name})
        return saved.n_saved, saved.n_written

    async def restore(self, slot: int, name: str) -> int:
        """Read a slot's state from a descriptor; its tokens."""
        return (await self._slot(slot, "restore", {"filename": name})).n_restored

    async def erase(self, slot: int) -> None:
        """Let a slot forget its tokens; waits until the slot is idle."""
        await self._slot(slot, "erase", {})

    async def call(self, path: str, body: Mapping[str, object]) -> tuple[int, bytes]:
        """Any request with a JSON body; status and answer."""
        async with self._request("POST", path, body) as answer:
            return answer.status, await answer.read()

    @asynccontextmanager
    async def stream(
        self, path: str, body: Mapping[str, object]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request whose answer streams; leaving the block early ends it."""
        async with self._request("POST", path, body) as answer:
            yield answer

    async def _slot(self, slot: int, action: str, body: Mapping[str, object]) -> _Slot:
        return await self._decoded(_Slot, "POST", f"/slots/{slot}?action={action}", body)

    async def _answers(self) -> bool:
        try:
            async with self._request("GET", "/health", None) as answer:
                return answer.status == 200
        except BackendError:
            return False

    async def _decoded(
        self, kind: type[T], method: str, path: str, body: Mapping[str, object] | None = None
    ) -> T:
        async with self._request(method, path, body) as answer:
            text = await answer.read()
        if answer.status != 200:
            action = path.partition("?")[2] or path
            raise BackendError(
                f"llama.cpp answered {action} with status {answer.status}",
                status=answer.status,
                body=text,
            )
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            raise BackendError(f"llama.cpp's answer to {path} is not understood: {error}") from None

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(method, path, data=data, headers=headers) as answer:
                yield answer
        except aiohttp.ClientError as error:
            raise BackendError(f"llama.cpp cannot be reached: {error}", status=503) from None
