"""The demo's processes and what can be asked of them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from kvrun.audit.files import read_keys, verify_files
from kvrun.audit.note import VerifierKey
from kvrun.audit.segment import CHECKPOINT_NAME, SIGNER_NAME
from kvrun.audit.verdict import Aspect
from kvrun.audit.verify import Trust
from kvrun.cli import prepare
from kvrun.cli.launch_secrets import Launch, prepare_run_folder, write_private
from kvrun.cli.processes import (
    ENGINE,
    GATEWAY,
    INSTANCE,
    engine_spec,
    gateway_spec,
    gateway_url,
    instance_spec,
)
from kvrun.cli.supervisor import ChildState, Supervisor
from kvrun.config import KvrunConfig, load_config
from kvrun.demo.client import Completion, complete
from kvrun.gateway.apikeys import hash_api_key, make_api_key
from kvrun.instance.client import AdminClient
from kvrun.instance.handles import Reuse

CONTEXT_WINDOW = 8192
_CONFIG = """\
[deployment]
model = {model}
served_model_name = "demo"
context_window = {window}
dtype = "float32"

[instance]
data_dir = "data"
memory_bytes = "1GiB"
disk_bytes = "2GiB"

[gateway]
port = {port}
api_keys_file = {keys}

[engine]
enforce_eager = true
max_num_seqs = 4
"""


class Stage:
    """Gateway, daemon and engine of the demo in a folder of its own, always made anew."""

    def __init__(
        self,
        folder: Path,
        model: str,
        say: Callable[[str], None],
        on_state: Callable[[str, ChildState], None],
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        self._file = folder / "kvrun.toml"
        self.api_key = make_api_key(secrets.token_bytes(32))
        self._write_config(folder, model)
        config = load_config(self._file, os.environ)
        engine = prepare.check(config, os.environ)
        self.config: KvrunConfig = prepare.resolve(config, engine, say)
        self._cpus = prepare.usable_cpus(engine)
        prepare_run_folder(self.config.layout)
        self._launch = Launch.create()
        self._launch.write_files(self.config.layout)
        self.supervisor = Supervisor(self.config.layout.logs, on_state)
        self._remembered = b""
        self._log_keys: tuple[VerifierKey, ...] = ()

    @property
    def url(self) -> str:
        """The gateway's address."""
        return gateway_url(self.config)

    @property
    def blocks(self) -> Path:
        """The folder of sealed blocks."""
        deployment = self.config.deployment
        return self.config.layout.blocks(deployment.workspace, deployment.name)

    def start(self, *names: str) -> None:
        """Start these processes, or all of them, and wait until each is ready."""
        environment = dict(os.environ)
        specs = {
            INSTANCE: lambda: instance_spec(self.config, self._file, self._launch, environment),
            ENGINE: lambda: engine_spec(self.config, environment, cpus=self._cpus),
            GATEWAY: lambda: gateway_spec(self.config, self._file, self._launch, environment),
        }
        for name in names or tuple(specs):
            self.supervisor.start(specs[name]())

    def stop(self, *names: str) -> None:
        """Stop these processes, or all of them."""
        if not names:
            self.supervisor.stop_all()
        for name in names:
            self.supervisor.stop(name)

    def complete(self, tenant: str, prompt: str, max_tokens: int) -> Completion:
        """One request of a tenant through the gateway."""
        return complete(
            self.url, self.api_key, "demo", prompt, tenant=tenant, max_tokens=max_tokens
        )

    def reuse(self, request_id: str) -> Reuse:
        """What a request reused, by the daemon's count."""
        return msgspec.json.decode(self._ask("request", request_id=request_id), type=Reuse)

    def flush(self) -> None:
        """Write every sealed block to the persistent tier."""
        self._ask("flush")

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

    def remember_checkpoint(self) -> None:
        """Keep the log's key and latest checkpoint, as an auditor would, outside its folder."""
        audit = self.config.layout.audit
        self._remembered = (audit / CHECKPOINT_NAME).read_bytes()
        self._log_keys = read_keys(audit / SIGNER_NAME)

    def verify_log(self) -> tuple[bool, str]:
        """Whether the log verifies against what was remembered, and its verdicts in one line."""
        trust = Trust(keys=self._log_keys, remembered=(self._remembered,))
        report = verify_files([self.config.layout.audit], trust)
        verdicts = ", ".join(f"{aspect} {report.verdict(aspect)}" for aspect in Aspect)
        return report.exit_code == 0, verdicts

    def _ask(self, operation: str, **arguments: str) -> bytes:
        token = self.config.layout.admin_token.read_text().strip()
        with AdminClient(self.config.instance_socket, token) as client:
            return client.call(operation, arguments)

    def _write_config(self, folder: Path, model: str) -> None:
        keys = folder / "api_keys.json"
        record = {"id": "demo", "sha256": hash_api_key(self.api_key)}
        write_private(keys, json.dumps({"keys": [record]}))
        self._file.write_text(
            _CONFIG.format(
                model=json.dumps(model),
                window=CONTEXT_WINDOW,
                port=_free_port(),
                keys=json.dumps(str(keys)),
            )
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
