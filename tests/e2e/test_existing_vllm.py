"""docs/existing-vllm.md, followed to the letter: kvrun beside a ``vllm serve`` of one's own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
from e2e_rig import User, eventually, short_folder, words

from kvrun.launch.readiness import connect, free_port, http_answers, http_get, unix_accepts
from kvrun.models.folders import cache_folder
from kvrun.models.tiny import ensure_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PAGE = Path(__file__).parents[2] / "docs" / "existing-vllm.md"
DOCUMENTED_DATA = "/var/lib/kvrun"
DOCUMENTED_CONFIG = "/etc/kvrun/kvrun.toml"
ENGINE_KEY = "engine-key"
# A loaded test machine may answer late; deadlines have tests of their own.
PATIENT = {"KVRUN_INSTANCE__MATCH_DEADLINE_MS": "20000", "KVRUN_GATEWAY__SESSION_TIMEOUT_S": "20"}


def block(containing: str) -> str:
    """The page's code block that holds this text."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = [text for text in blocks if containing in text]
    return textwrap.dedent(found)


@dataclass(frozen=True, slots=True)
class Site:
    """A vLLM with kvrun, and the sidecar's folder."""

    folder: Path
    model: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kvrun(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kvrun", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )

    @property
    def config(self) -> Path:
        return self.folder / "kvrun.toml"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def socket(self) -> Path:
        return self.data / "run/instance.sock"

    def local(self, text: str) -> str:
        """The page's text with this site's folders."""
        text = text.replace(DOCUMENTED_CONFIG, str(self.config))
        return text.replace(DOCUMENTED_DATA, str(self.data))

    def user(
        self,
        tenant: str | None,
        session: str | None = None,
        *,
        url: str | None = None,
        key: str = ENGINE_KEY,
    ) -> User:
        return User(url or self.url, key, tenant, session=session, model=str(self.model))

    def post(self, path: str, body: object) -> tuple[int, str]:
        connection = connect(self.url, 60)
        try:
            headers = {
                "Content-Type": "application/json",
                "Authorization": f"Bearer {ENGINE_KEY}",
                "X-KV-Tenant": "alice",
            }
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """The page's steps 2 to 4."""
    folder = short_folder()
    site = Site(folder, ensure_tiny_model(cache_folder()), free_port())
    processes = []
    try:
        site.kvrun("init", str(folder))
        follow_settings(site.config, site.local(block("require_auth")))
        sidecar = [sys.executable, "-m", "kvrun", "instance", "--config", str(site.config)]
        processes.append(launch(sidecar, folder / "instance.log", {}))
        eventually(lambda: unix_accepts(site.socket), "the daemon listens")
        command, variables = documented_engine(site)
        processes.append(launch(command, folder / "vllm.log", variables))
        wait_for_engine(processes[-1], site)
        yield site
    finally:
        for process in reversed(processes):
            end(process)
        shutil.rmtree(folder, ignore_errors=True)


def follow_settings(config: Path, toml: str) -> None:
    """Put the page's settings where ``kvrun init`` left their defaults as comments."""
    text = config.read_text()
    assert set(tomllib.loads(toml)) == {"instance", "gateway"}
    for line in toml.splitlines():
        if " = " not in line:
            continue
        name = line.partition(" =")[0]
        text, count = re.subn(rf"^# {name} = .*$", line, text, flags=re.MULTILINE)
        assert count == 1, name
    config.write_text(text)


def documented_engine(site: Site) -> tuple[list[str], dict[str, str]]:
    """The page's engine line, with this site's paths and what a plain CPU engine needs."""
    text = block("--kv-transfer-config")
    assert DOCUMENTED_CONFIG in text
    assert DOCUMENTED_DATA in text
    line = shlex.split(site.local(text).replace("\\\n", " "))
    variables = {}
    while "=" in line[0]:
        name, _, value = line.pop(0).partition("=")
        variables[name] = value
    assert line[:4] == ["vllm", "serve", "MODEL", "…"]
    own = f"--port {site.port} --api-key {ENGINE_KEY} --dtype float32 --enforce-eager"
    own += " --max-model-len 2048 --max-num-seqs 4 --kv-cache-memory-bytes 268435456"
    # The command line of the CPU distribution needs a start of its own.
    start = [sys.executable, "-m", "kvrun.engines.vllm.cli_shim", "serve", str(site.model)]
    return [*start, *own.split(), *line[4:]], variables


def launch(command: list[str], log: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVRUN_")}
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**kept, **PATIENT, "VLLM_CPU_OMP_THREADS_BIND": cpus, **variables},
            start_new_session=True,
        )


def wait_for_engine(process: subprocess.Popen[bytes], site: Site) -> None:
    deadline = time.monotonic() + 600
    while not http_answers(site.url, "/health"):
        log = (site.folder / "vllm.log").read_text()
        assert process.poll() is None, log[-6000:]
        assert time.monotonic() < deadline, log[-6000:]
        time.sleep(0.2)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and after a while whatever is left of the process's own group."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def nginx(site: Site) -> Iterator[str]:
    """The address of an nginx with the page's location in front of the site."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    location = block("proxy_pass").replace("127.0.0.1:8000", f"127.0.0.1:{site.port}")
    assert str(site.port) in location
    port = free_port()
    temporary = "".join(
        f"{name}_temp_path {site.folder}/nginx-{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = site.folder / "nginx.conf"
    config.write_text(
        f"daemon off; pid {site.folder}/nginx.pid; error_log stderr;\n"
        + ("user root;\n" if os.geteuid() == 0 else "")
        + f"events {{}}\nhttp {{\naccess_log off;\n{temporary}"
        f"server {{ listen 127.0.0.1:{port};\n{location}\n}} }}\n"
    )
    process = launch([program, "-c", str(config)], site.folder / "nginx.log", {})
    try:
        url = f"http://127.0.0.1:{port}"

        def listens() -> bool:
            assert process.poll() is None, (site.folder / "nginx.log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(listens, "nginx listens")
        yield url
    finally:
        end(process)


def test_through_nginx_only_the_same_tenant_reuses(site: Site, nginx: str) -> None:
    alice, bob = site.user("alice", url=nginx), site.user("bob", url=nginx)
    first = alice.complete(words(1))
    assert first.cached_tokens == 0
    for stranger in (bob, site.user("alice", "second", url=nginx)):
        answer = stranger.complete(words(1))
        assert answer.text == first.text
        assert answer.cached_tokens == 0
    again = alice.complete(words(1))
    assert again.text == first.text
    assert again.cached_tokens > first.prompt_tokens // 2
    shown = json.loads(
        site.kvrun(
            "requests", "show", again.request_id, "--config", str(site.config), "--json"
        ).stdout
    )
    assert shown["engine_tokens"] == again.cached_tokens
    assert shown["prompt_tokens"] == again.prompt_tokens


def test_through_nginx_a_chat_streams(site: Site, nginx: str) -> None:
    alice = site.user("alice", url=nginx)
    whole = alice.chat("hello")
    stream = alice.client.chat.completions.create(
        model=alice.model,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=12,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.text
    assert "kv_transfer_params" not in whole.raw


def test_the_sidecar_seals_blocks_to_disk(site: Site) -> None:
    site.user("carol").complete(words(2))
    storage = site.data / "storage"
    eventually(lambda: any(storage.rglob("*.kvs")), "sealed blocks on disk")


@pytest.mark.parametrize(
    "path",
    ["/invocations", "/generative_scoring", "/inference/v1/generate", "/tokenize", "/detokenize",
     "/v1/chat/completions/batch", "/v1/completions/render", "/pooling", "/v1/audio/transcriptions",
     "/v1/load_lora_adapter", "/reset_prefix_cache", "/docs", "/openapi.json"],
)  # fmt: skip
def test_what_is_not_listed_is_refused(site: Site, path: str) -> None:
    body = {"model": str(site.model), "prompt": "hello", "messages": [], "max_tokens": 1}
    status, text = site.post(path, body)
    assert status == 404
    assert "this path is not served here" in text
    assert http_get(site.url, path)[0] == 404


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/load", "/metrics"])
def test_what_holds_no_request_may_be_read(site: Site, path: str) -> None:
    assert http_get(site.url, path)[0] == 200


@pytest.mark.parametrize(
    "extra", [{"cache_salt": "x" * 43}, {"kv_transfer_params": {"kvrun_claim": "x"}}]
)
def test_a_client_cannot_stamp_its_own_request(site: Site, extra: dict[str, object]) -> None:
    body = {"model": str(site.model), "prompt": "hello", "max_tokens": 1}
    assert site.post("/v1/completions", body)[0] == 200
    status, text = site.post("/v1/completions", body | extra)
    assert status == 400
    assert next(iter(extra)) in text


def test_engines_own_key_stays_in_charge(site: Site) -> None:
    with pytest.raises(openai.AuthenticationError):
        site.user("alice", key="wrong").complete("hello", 1)
    assert site.user("alice").client.models.list().data[0].id == str(site.model)


def test_a_request_without_a_tenant_is_refused(site: Site) -> None:
    with pytest.raises(openai.BadRequestError, match="X-KV-Tenant"):
        site.user(None).complete("hello", 1)
