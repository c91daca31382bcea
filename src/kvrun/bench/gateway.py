"""``kvrun bench gateway``: what the gateway adds over a bare engine, beside what nginx adds.

Engine and client are one small C program (``gateway_load.c``, compiled when the bench starts), so
that neither is the bottleneck. The proxy under test has one CPU to itself, engine and client share
another. First bytes: one stream, engine unpaced, direct, nginx and gateway interleaved. Streams:
128 at 50 events a second each; the gateway's CPU time comes from the kernel, queueing shows in the
time that each event takes from engine to client.
"""

import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvrun.bench.machine import describe_commit, describe_machine, separate_cpus
from kvrun.bench.paired import Goal, Refusal, compare_pairs
from kvrun.bench.report import Report, Row, ratio_row
from kvrun.errors import KvrunError
from kvrun.gateway.apikeys import ApiKeyRecord, hash_api_key, make_api_key, save_api_keys

FIRST_BYTE_GOAL = Goal(2.0, at_most=True)
CPU_GOAL = Goal(0.5, at_most=True)
START_TIMEOUT_S = 20.0


class BenchSetupError(KvrunError):
    """The bench cannot run on this machine."""


@dataclass(frozen=True, slots=True)
class GatewayBenchSettings:
    """How much is measured. Times in seconds, sizes in bytes."""

    pairs: int = 15
    one_stream_s: float = 0.6
    streams: int = 128
    events: int = 32
    event_interval_us: int = 20_000
    paced_s: float = 5.0
    paced_rounds: int = 3
    prompt_bytes: int = 1000
    max_spread: float = 0.5


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


def run_gateway_bench(
    settings: GatewayBenchSettings | None = None, *, rng: random.Random | None = None
) -> Report:
    """Measure and report. Raises BenchSetupError without a C compiler or a second CPU."""
    settings = settings or GatewayBenchSettings()
    with tempfile.TemporaryDirectory(prefix="kvrun-bench-") as folder:
        rows = _Bench(settings, Path(folder), rng or random.Random()).run()  # noqa: S311
    return Report(
        bench="gateway", machine=describe_machine(), commit=describe_commit(), rows=tuple(rows)
    )


class _Bench:
    def __init__(self, settings: GatewayBenchSettings, folder: Path, rng: random.Random) -> None:
        cpus = separate_cpus()
        if len(cpus) < 2:
            raise BenchSetupError(
                "the gateway bench needs two CPUs: one for the proxy, one for engine and client"
            )
        self._proxy_cpu, self._load_cpu = cpus[0], cpus[1]
        self._settings = settings
        self._folder = folder
        self._rng = rng
        self._program = _compile(folder)
        self._keys_file = folder / "keys.json"
        key = make_api_key(os.urandom(32))
        save_api_keys(self._keys_file, [ApiKeyRecord(id="bench", sha256=hash_api_key(key))])
        self._request = folder / "request"
        self._request.write_bytes(_request(key, settings.prompt_bytes))

    def run(self) -> list[Row]:
        with ExitStack() as stack:
            quick = stack.enter_context(self._engine(4, 0))
            paced = stack.enter_context(
                self._engine(self._settings.events, self._settings.event_interval_us)
            )
            rows = self._first_byte_rows(quick)
            return rows + self._paced_rows(paced)

    def _first_byte_rows(self, engine_port: int) -> list[Row]:
        with ExitStack() as stack:
            gateway, _ = stack.enter_context(self._gateway(engine_port))
            if shutil.which("nginx") is None:
                nginx = None
            else:
                nginx = stack.enter_context(self._nginx(engine_port))
            for port in (engine_port, gateway, nginx):
                if port is not None:
                    self._load(port, 1, self._settings.one_stream_s)
            direct: list[float] = []
            by_gateway: list[float] = []
            by_nginx: list[float] = []
            arms = [(engine_port, direct), (gateway, by_gateway)]
            arms += [(nginx, by_nginx)] if nginx is not None else []
            for _ in range(self._settings.pairs):
                self._rng.shuffle(arms)
                for port, measured in arms:
                    load = self._load(port, 1, self._settings.one_stream_s)
                    measured.append(load.first_byte_p50)
        added_by_gateway = [a - b for a, b in zip(by_gateway, direct, strict=True)]
        rows = [
            _time_row("time to first byte, one stream, direct", direct),
            _time_row("added by the gateway", added_by_gateway, "one API key, claim signed"),
        ]
        metric, against = "added by the gateway / by nginx", "nginx in the same run, interleaved"
        if not by_nginx:
            result = Refusal("nginx is not installed")
            return [
                *rows,
                ratio_row(metric, result, unit="x", against=against, goal=FIRST_BYTE_GOAL),
            ]
        added_by_nginx = [a - b for a, b in zip(by_nginx, direct, strict=True)]
        comparison = compare_pairs(
            list(zip(added_by_gateway, added_by_nginx, strict=True)),
            rng=self._rng,
            max_spread=self._settings.max_spread,
        )
        return [
            *rows,
            _time_row("added by nginx", added_by_nginx, "no checks, the body untouched"),
            ratio_row(metric, comparison, unit="x", against=against, goal=FIRST_BYTE_GOAL),
        ]

    def _paced_rows(self, engine_port: int) -> list[Row]:
        settings = self._settings
        direct: list[Load] = []
        through: list[Load] = []
        shares: list[float] = []
        with self._gateway(engine_port) as (gateway, pid):
            self._load(gateway, settings.streams, 1.0)
            for _ in range(settings.paced_rounds):
                direct.append(self._load(engine_port, settings.streams, settings.paced_s))
                before, started = _cpu_s(pid), time.monotonic()
                through.append(self._load(gateway, settings.streams, settings.paced_s))
                shares.append((_cpu_s(pid) - before) / (time.monotonic() - started))
        where = (
            f"{settings.streams} streams, {1_000_000 // settings.event_interval_us} events/s each"
        )
        share = statistics.median(shares)
        failed = sum(load.errors for load in through)
        return [
            _goal_row("gateway CPU, share of one core", share, "cores", where, CPU_GOAL),
            _goal_row(
                "time of an event, p99, gateway",
                statistics.median(load.event_p99 for load in through) * 1000,
                "ms",
                f"{where}; longer than the pause between two events means queueing",
                Goal(settings.event_interval_us / 1000, at_most=True),
            ),
            _time_row("time of an event, p50, gateway", [load.event_p50 for load in through]),
            _time_row("time of an event, p99, direct", [load.event_p99 for load in direct]),
            _time_row("first byte, p50, gateway", [load.first_byte_p50 for load in through]),
            _time_row("first byte, p50, direct", [load.first_byte_p50 for load in direct]),
            _goal_row("failed requests", failed, "requests", where, Goal(0, at_most=True)),
        ]

    def _load(self, port: int, streams: int, seconds: float) -> Load:
        spread_us = self._settings.events * self._settings.event_interval_us if streams > 1 else 0
        command = [str(self._program), "client", str(port), str(streams), str(seconds)]
        done = subprocess.run(
            [*command, str(spread_us), str(self._request)],
            capture_output=True,
            check=True,
            timeout=seconds + 60,
            preexec_fn=_pin(self._load_cpu),
        )
        return msgspec.json.decode(done.stdout, type=Load)

    @contextmanager
    def _engine(self, events: int, interval_us: int) -> Iterator[int]:
        port = _free_port()
        command = [str(self._program), "engine", str(port), str(events), str(interval_us)]
        with _running(command, port, self._load_cpu):
            yield port

    @contextmanager
    def _gateway(self, engine_port: int) -> Iterator[tuple[int, int]]:
        port = _free_port()
        engine = f"http://127.0.0.1:{engine_port}"
        command = [sys.executable, "-m", "kvrun.bench.gateway_process", str(port), engine]
        with _running([*command, str(self._keys_file)], port, self._proxy_cpu) as pid:
            yield port, pid

    @contextmanager
    def _nginx(self, engine_port: int) -> Iterator[int]:
        port = _free_port()
        folder = self._folder / "nginx"
        folder.mkdir()
        (folder / "nginx.conf").write_text(_NGINX.format(port=port, engine=engine_port))
        command = ["nginx", "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]
        with _running(command, port, self._proxy_cpu):
            yield port


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
    """CPU seconds that a process has used, user and system."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _time_row(metric: str, seconds: list[float], against: str = "") -> Row:
    spread = f"{min(seconds) * 1000:.3g} to {max(seconds) * 1000:.3g} over {len(seconds)} runs"
    return Row(
        metric=metric,
        value=statistics.median(seconds) * 1000,
        unit="ms",
        against=f"{against}; {spread}" if against else spread,
    )


def _goal_row(metric: str, value: float, unit: str, against: str, goal: Goal) -> Row:
    return Row(
        metric=metric,
        value=value,
        unit=unit,
        against=against,
        goal=str(goal),
        met=goal.holds(value),
    )


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
      if ($http_x_kv_tenant = "") {{ return 400; }}
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""
