"""A real slot server with llama.cpp behind it, in processes of its own, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrun.launch.readiness import connect, http_answers
from support.client import claimed
from support.daemon import Daemon
from support.engine import Ask

WINDOW, SLOTS = 2048, 2
_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Answer:
    """A generated text, and how many of its prompt's tokens were restored."""

    text: str
    cached: int
    prompt_tokens: int


class RefusedError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class SlotServer:
    """One slot server on a daemon; ``ask`` fits ``support.client.ask``."""

    def __init__(
        self, daemon: Daemon, model: Path, *extra: str, binary: str = "", threads: int = 1
    ) -> None:
        self.daemon = daemon
        self._model = model
        self._extra = extra
        self._binary = binary
        self._threads = threads
        self.run = daemon.socket.parent
        self.url = f"unix:{self.run}/engine.sock"
        self.log = daemon.folder / "engine.log"
        self.start()

    def start(self) -> None:
        """Start and wait until it serves."""
        command = [
            sys.executable, "-m", "kvrun.engines.llama_cpp.serve", "--model", str(self._model),
            "--name", "gemma", "--context-window", str(WINDOW), "--slots", str(SLOTS),
            "--threads", str(self._threads), "--instance-socket", str(self.daemon.socket),
            "--backend-socket", str(self.run / "llama.sock"),
            "--uds", str(self.run / "engine.sock"),
        ]  # fmt: skip
        if self._binary:
            command += ["--binary", self._binary]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--", "--no-warmup", *self._extra], stdout=log, stderr=log,
                env={**os.environ},
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not http_answers(self.url, "/health"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"it did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)

    @property
    def pids(self) -> list[int]:
        """The slot server's process and llama.cpp's."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [self.process.pid, *map(int, children.split())]

    def stop(self) -> None:
        """End it as an operator would."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def ask(self, *asks: Ask) -> list[Answer]:
        """Complete one after the other."""
        return [self.complete(ask) for ask in asks]

    def complete(self, ask: Ask, **fields: object) -> Answer:
        """One greedy completion. Raises RefusedError."""
        return _answer(self.post("/v1/completions", self.body(ask) | fields), "text")

    def chat(self, ask: Ask, *turns: str, **fields: object) -> Answer:
        """One greedy answer to a conversation; the turns alternate, the user's first."""
        body = self.body(ask)
        del body["prompt"]
        body["messages"] = [
            {"role": "assistant" if number % 2 else "user", "content": turn}
            for number, turn in enumerate(turns)
        ]
        return _answer(self.post("/v1/chat/completions", body | fields), "message")

    def body(self, ask: Ask) -> dict[str, Any]:
        """A completion's body as the gateway would stamp it."""
        return {
            "model": "gemma", "prompt": ask.tokens, "max_tokens": ask.max_tokens,
            "temperature": 0, "ignore_eos": True, "cache_salt": ask.salt,
            "kv_transfer_params": {"kvrun_claim": ask.claim},
        }  # fmt: skip

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Any request. Raises RefusedError."""
        connection = connect(self.url, _TIMEOUT_S)
        try:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            found: dict[str, Any] = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise RefusedError(answer.status, found)
        return found

    def open(self, path: str, body: dict[str, Any]) -> bytes:
        """All that a request with a streamed answer brings."""
        connection = connect(self.url, _TIMEOUT_S)
        try:
            connection.request("POST", path, json.dumps(body))
            return connection.getresponse().read()
        finally:
            connection.close()

    def stream(self, ask: Ask, **fields: object) -> tuple[http.client.HTTPConnection, Any]:
        """Begin a streamed completion; its connection and its answer."""
        connection = connect(self.url, _TIMEOUT_S)
        body = self.body(ask) | {"stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(body | fields))
        return connection, connection.getresponse()

    def metric(self, name: str, **labels: str) -> float:
        """One sample of its own counters; 0 where there is none."""
        connection = connect(self.url, _TIMEOUT_S)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        wanted = name + "".join(f'{{{key}="{value}"}}' for key, value in labels.items())
        found = [line for line in text.splitlines() if line.startswith(wanted + " ")]
        return float(found[0].split()[-1]) if found else 0.0


def chat_ask(daemon: Daemon, tenant: str, *, session: str = "default", max_tokens: int = 8) -> Ask:
    """A claim for a chat."""
    return claimed(daemon, tenant, [1], session=session, max_tokens=max_tokens)[1]


def events(answer: Any) -> list[dict[str, Any]]:
    """The events of a stream, without the end mark."""
    lines = [line[6:] for line in answer.read().split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def _answer(body: dict[str, Any], key: str) -> Answer:
    choice, usage = body["choices"][0], body["usage"]
    text = choice["text"] if key == "text" else choice["message"]["content"]
    return Answer(text, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"])
