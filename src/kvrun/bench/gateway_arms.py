"""The processes of ``kvrun bench gateway``: engine, client, and the proxies between them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvrun.bench.machine import separate_cpus
from kvrun.errors import KvrunError
from kvrun.gateway.apikeys import ApiKeyRecord, hash_api_key, make_api_key, save_api_keys
from kvrun.launch.readiness import free_port

START_TIMEOUT_S = 20.0


class BenchSetupError(KvrunError):
    """The bench cannot run on this machine."""


class Load(msgspec.Struct, frozen=True):
    """What the client saw. Times in seconds; -1 where nothing arrived."""

    requests: int
    events: int
    errors: int
    seconds: float
    first_byte_p50: float
    first_byte_p99: float
    event_p50: float
    event_p99: float


@dataclass(frozen=True, slots=True)
class Arm:
    """Something that answers on ``port``; ``pid`` is None for the engine itself."""

    name: str
    port: int
    pid: int | None = None

    def cpu_s(self) -> float:
        """CPU seconds, user and system, that the process and its children have used."""
        return _cpu_s(self.pid) if self.pid is not None else 0.0


class Arms:
    """Starts what is measured: proxies on one CPU, engine and client together on another.

    Raises BenchSetupError without a C compiler or a second CPU.
    """

    def __init__(self, folder: Path, prompt_bytes: int) -> None:
        cpus = separate_cpus()
        if len(cpus) < 2:
            raise BenchSetupError(
                "the gateway bench needs two CPUs: one for the proxy, one for engine and client"
            )
        self._proxy_cpu, self._load_cpu = cpus[0], cpus[1]
        self._folder = folder
        self._program = _compile(folder)
        self._keys_file = folder / "keys.json"
        self._key = make_api_key(os.urandom(32))
        save_api_keys(self._keys_file, [ApiKeyRecord(id="bench", sha256=hash_api_key(self._key))])
        self._request = folder / "request"
        self._request.write_bytes(_request(self._key, prompt_bytes))

    def load(self, arm: Arm, streams: int, seconds: float, *, spread_us: int = 0) -> Load:
        """Keep ``streams`` requests open; the first ones start within ``spread_us``."""
        command = [str(self._program), "client", str(arm.port), str(streams), str(seconds)]
        done = subprocess.run(
            [*command, str(spread_us), str(self._request)],
            capture_output=True,
            check=True,
            timeout=seconds + 60,
            preexec_fn=_pin(self._load_cpu),
        )
        return msgspec.json.decode(done.stdout, type=Load)

    @contextmanager
    def engine(self, events: int, interval_us: int) -> Iterator[Arm]:
        """An engine that sends ``events`` events, one every ``interval_us``."""
        port = free_port()
        command = [str(self._program), "engine", str(port), str(events), str(interval_us)]
        with _running(command, port, self._load_cpu):
            yield Arm("direct", port)

    @contextmanager
    def gateway(self, engine: Arm) -> Iterator[Arm]:
        """The gateway, complete but for the daemon."""
        port = free_port()
        command = [sys.executable, "-m", "kvrun.bench.gateway_process", str(port)]
        command += [f"http://127.0.0.1:{engine.port}", str(self._keys_file)]
        with _running(command, port, self._proxy_cpu) as pid:
            yield Arm("gateway", port, pid)

    @contextmanager
    def bare(self, engine: Arm) -> Iterator[Arm]:
        """A proxy in Python that checks nothing."""
        port = free_port()
        command = [sys.executable, "-m", "kvrun.bench.gateway_bare", str(port), str(engine.port)]
        with _running(command, port, self._proxy_cpu) as pid:
            yield Arm("bare", port, pid)

    @contextmanager
    def nginx(self, engine: Arm) -> Iterator[Arm | None]:
        """Nginx as it stands before engines: unbuffered, connections kept on both sides."""
        if shutil.which("nginx") is None:
            yield None
            return
        port = free_port()
        folder = self._folder / f"nginx-{port}"
        folder.mkdir()
        text = _NGINX.format(port=port, engine=engine.port, key=self._key)
        (folder / "nginx.conf").write_text(text)
        command = ["nginx", "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]
        with _running(command, port, self._proxy_cpu) as pid:
            yield Arm("nginx", port, pid)


def _compile(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchSetupError(
            "the gateway bench needs a C compiler for its engine and client",
            hint="Install gcc.",
        )
    program = folder / "gateway_load"
    source = Path(__file__).with_name("gateway_load.c")
    built = subprocess.run(
        [compiler, "-O2", "-o", program, source], capture_output=True, text=True, check=False
    )
    if built.returncode != 0:
        raise BenchSetupError(f"{source.name} does not compile: {built.stderr.strip()}")
    return program


def _request(key: str, prompt_bytes: int) -> bytes:
    message = {"role": "user", "content": "x" * prompt_bytes}
    body = msgspec.json.encode({"model": "m", "messages": [message], "stream": True})
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nX-KV-Tenant: acme\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextmanager
def _running(command: list[str], port: int, cpu: int) -> Iterator[int]:
    """A process pinned to ``cpu`` that has begun to listen; ended at the end."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=_pin(cpu)
    )
    try:
        _wait_for(process, port)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _wait_for(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None and process.stderr is not None:
            raise BenchSetupError(
                f"{process.args!r} ended: {process.stderr.read().decode()[-2000:]}"
            )
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise BenchSetupError(f"{process.args!r} did not begin to listen")


def _pin(cpu: int) -> Callable[[], None]:
    return lambda: os.sched_setaffinity(0, {cpu})


def _cpu_s(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return used + sum(_cpu_s(int(child)) for child in children)


_NGINX = """
daemon off;
worker_processes 1;
pid nginx.pid;
error_log error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 256; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    keepalive_requests 1000000;
    location / {{
      if ($http_authorization != "Bearer {key}") {{ return 401; }}
      if ($http_x_kv_tenant = "") {{ return 400; }}
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""
