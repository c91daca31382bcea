"""A whole deployment in a folder of its own, for the demo, the benchmarks and the tests."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from kvrun.config import KvrunConfig, load_config
from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError
from kvrun.gateway.apikeys import hash_api_key, make_api_key
from kvrun.instance.handles import Reuse
from kvrun.launch import prepare
from kvrun.launch.admin import ask_daemon
from kvrun.launch.client import Completion, complete
from kvrun.launch.processes import (
    ENGINE,
    GATEWAY,
    INSTANCE,
    engine_spec,
    engine_url,
    gateway_spec,
    gateway_url,
    instance_spec,
)
from kvrun.launch.readiness import free_port, http_get
from kvrun.launch.secrets import Launch, prepare_run_folder, remove_files
from kvrun.launch.supervisor import ChildSpec, ChildState, Supervisor

MODEL_NAME = "demo"
_FLUSH, _FLUSH_TIMEOUT_S = "/flush_cache?timeout=10", 20.0
_CONFIG = """\
[deployment]
model = {model}
served_model_name = "{name}"
context_window = {window}
stateless = {stateless}
dtype = "{dtype}"

[instance]
data_dir = "data"
memory_bytes = {memory}
disk_bytes = {disk}

[gateway]
port = {port}
api_keys_file = "api_keys.json"

[engine]
kind = "{engine}"
max_num_seqs = {seqs}
extra_args = {extra}
"""
_FURTHER = {
    "vllm": "enforce_eager = {eager}\nblock_size = {block}\n",
    "sglang": 'transport = "tcp"\nport = {engine_port}\nblock_size = {block}\n',
}


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What a stack serves and how. ``governed=False`` starts the engine alone, without kvrun.

    ``instance_module`` is the Python module that runs the daemon; the benchmarks replace it.
    ``settings`` are further ``KVRUN_SECTION__KEY`` variables, over those of the environment.
    """

    model: str = "demo"
    engine: str = "vllm"
    context_window: int = 8192
    memory_bytes: int = 1 << 30
    disk_bytes: int = 2 << 30
    dtype: str = "float32"
    stateless: bool = False
    enforce_eager: bool = True
    max_num_seqs: int = 4
    block_tokens: int = 128
    governed: bool = True
    instance_module: str = "kvrun"
    engine_arguments: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


class Stack:
    """Gateway, daemon and engine in ``folder``, which is emptied first.

    Raises KvrunError where something that the stack needs is missing.
    """

    def __init__(
        self,
        folder: Path,
        options: StackOptions,
        say: Callable[[str], None] = lambda _: None,
        on_state: Callable[[str, ChildState], None] = lambda *_: None,
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        self.options = options
        self._file = folder / "kvrun.toml"
        self.api_key = make_api_key(secrets.token_bytes(32))
        self._write_config(folder)
        config = load_config(self._file, self._environment())
        engine = prepare.check(config, os.environ)
        self.config: KvrunConfig = prepare.resolve(config, engine, say)
        self._cpus = prepare.usable_cpus(engine)
        prepare_run_folder(self.config.layout)
        self._launch = Launch.create()
        self._launch.write_files(self.config.layout)
        self.supervisor = Supervisor(self.config.layout.logs, on_state)

    @property
    def url(self) -> str:
        """Where requests go: the gateway, or the engine itself where nothing is governed."""
        return gateway_url(self.config) if self.options.governed else engine_url(self.config)

    @property
    def blocks(self) -> Path:
        """The folder of sealed blocks."""
        deployment = self.config.deployment
        return self.config.layout.storage(deployment.workspace, deployment.name) / "kv"

    def start(self, *names: str) -> None:
        """Start these processes, or all of them, and wait until each is ready."""
        every = (INSTANCE, ENGINE, GATEWAY) if self.options.governed else (ENGINE,)
        for name in names or every:
            self.supervisor.start(self._spec(name, self._environment()))

    def stop(self, *names: str) -> None:
        """Stop these processes, or all of them."""
        for name in names:
            self.supervisor.stop(name)
        if not names:
            self.supervisor.stop_all()
            remove_files(self.config.layout)

    def complete(
        self, tenant: str, prompt: str | list[int], max_tokens: int, *, session: str | None = None
    ) -> Completion:
        """One request of a tenant's session."""
        return complete(
            self.url,
            self.api_key,
            MODEL_NAME,
            prompt,
            tenant=tenant,
            session=session,
            max_tokens=max_tokens,
        )

    def reuse(self, request_id: str) -> Reuse:
        """What a request reused, by the daemon's count."""
        return msgspec.json.decode(self._ask("request", request_id=request_id), type=Reuse)

    def flush(self) -> None:
        """Write every sealed block to the persistent tier."""
        self._ask("flush")

    def empty_engine(self) -> None:
        """Have SGLang forget what it keeps between requests. Raises KvrunError while it is busy."""
        status, _ = http_get(engine_url(self.config), _FLUSH, timeout_s=_FLUSH_TIMEOUT_S)
        if status != 200:
            raise KvrunError("SGLang did not empty its cache: a request was running")

    def known_in_storage(self) -> int:
        """Bytes of sealed blocks that the daemon knows to be in Storage."""
        return int(json.loads(self._ask("status"))["cache"]["object_bytes"])

    def erase(self, tenant: str) -> list[dict[str, object]]:
        """Erase a tenant's session."""
        erased: list[dict[str, object]] = json.loads(
            self._ask("erase_session", tenant=tenant, session="default")
        )
        return erased

    def events(self) -> Iterable[dict[str, object]]:
        """The audit log's records."""
        for segment in sorted(self.config.layout.audit.glob("*.jsonl")):
            for line in segment.read_text().splitlines():
                yield json.loads(line)

    def daemon_own_bytes(self) -> int:
        """The daemon's resident memory less the pages of slab and staging."""
        pid = self.supervisor.pids()[INSTANCE]
        total, counted = 0, False
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if "-" in line.split(" ")[0] and ":" not in line.split(" ")[0]:
                size = [int(part, 16) for part in line.split(" ")[0].split("-")]
                mapped = size[1] - size[0]
                counted = mapped != self.config.instance.memory_bytes and "staging" not in line
            elif line.startswith("Rss:") and counted:
                total += int(line.split()[1]) * 1024
        return total

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.options.settings}

    def _ask(self, operation: str, **arguments: str) -> bytes:
        return ask_daemon(self.config, operation, arguments)

    def _spec(self, name: str, environment: Mapping[str, str]) -> ChildSpec:
        if name == ENGINE:
            governed = self.options.governed
            return engine_spec(self.config, environment, cpus=self._cpus, connector=governed)
        make = instance_spec if name == INSTANCE else gateway_spec
        spec = make(self.config, self._file, self._launch, environment)
        if name == INSTANCE and self.options.instance_module != "kvrun":
            command = [*spec.command]
            command[command.index("-m") + 1] = self.options.instance_module
            return replace(spec, command=tuple(command))
        return spec

    def _write_config(self, folder: Path) -> None:
        options = self.options
        record = {"id": MODEL_NAME, "sha256": hash_api_key(self.api_key)}
        replace_private_file(folder / "api_keys.json", json.dumps({"keys": [record]}).encode())
        template = _CONFIG + _FURTHER.get(options.engine, "")
        self._file.write_text(
            template.format(
                engine=options.engine,
                model=json.dumps(options.model),
                name=MODEL_NAME,
                window=options.context_window,
                stateless=json.dumps(options.stateless),
                dtype=options.dtype,
                memory=options.memory_bytes,
                disk=options.disk_bytes,
                port=free_port(),
                engine_port=free_port(),
                eager=json.dumps(options.enforce_eager),
                seqs=options.max_num_seqs,
                block=options.block_tokens,
                extra=json.dumps(options.engine_arguments),
            )
        )
