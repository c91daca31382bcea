"""A tree of child processes: started one after the other, watched, stopped together.

Nothing is restarted in silence. When a child ends by itself, :meth:`Supervisor.watch` raises with
its name and its last log lines, and the caller stops the others. Only a child that nobody waits for
(``restart_after_s``) is started again, and its failure is reported as a state.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from kvrun.errors import KvrunError
from kvrun.launch.shared_memory import remove_segments, segments_of
from kvrun.process import PARENT_VARIABLE

TOKEN_FD_VARIABLE = "KVRUN_TOKEN_FD"  # noqa: S105 - a variable's name, not a secret
TAIL_LINES = 15
_POLL_S = 0.1


class ChildState(Enum):
    """Where a child is in its life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class ChildError(KvrunError):
    """A child process could not be started, did not become ready, or ended by itself."""

    exit_code = 4


class StopRequestedError(KvrunError):
    """SIGINT or SIGTERM came while children were starting."""

    exit_code = 130


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to start one child.

    ``restart_after_s``: it may end; the others go on and it is started again so much later.
    ``secret`` reaches it through an inherited descriptor whose number is in KVRUN_TOKEN_FD: it is
    in no argument, no variable and no file. ``ready`` is asked until it says True.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    ready: Callable[[], bool]
    ready_timeout_s: float = 60.0
    stop_timeout_s: float = 15.0
    secret: bytes | None = field(default=None, repr=False)
    sockets: tuple[Path, ...] = ()
    restart_after_s: float | None = None


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    process: subprocess.Popen[bytes]
    log: Path
    ended: bool = False
    restart_at: float = 0.0
    segments: set[Path] = field(default_factory=set)


class Supervisor:
    """Owns the children that it started. Not thread-safe: one thread drives it."""

    def __init__(
        self, log_folder: Path, on_state: Callable[[str, ChildState], None] = lambda *_: None
    ) -> None:
        self._log_folder = log_folder
        self._on_state = on_state
        self._children: dict[str, _Child] = {}
        self._stop_requested = False

    def request_stop(self, *_: object) -> None:
        """Ask ``start`` and ``watch`` to return; may be a signal handler."""
        self._stop_requested = True

    def pids(self) -> dict[str, int]:
        """Process ids of the children that run, in the order they were started."""
        running = {name: child for name, child in self._children.items() if not child.ended}
        return {name: child.process.pid for name, child in running.items()}

    def log_path(self, name: str) -> Path:
        """Where a child's output goes; the run before is kept beside it as ``.1``."""
        return self._log_folder / f"{name}.log"

    def start(self, spec: ChildSpec) -> None:
        """Start a child and wait until it is ready.

        Raises ChildError when it, or another child, ends meanwhile or it takes too long, and
        StopRequestedError when ``request_stop`` was called.
        """
        if spec.name in self._children:
            raise ChildError(f"{spec.name} runs already")
        self._on_state(spec.name, ChildState.STARTING)
        log = self.log_path(spec.name)
        child = _Child(spec, _spawn(spec, log), log)
        self._children[spec.name] = child
        deadline = time.monotonic() + spec.ready_timeout_s
        while not spec.ready():
            self._check()
            if self._stop_requested:
                raise StopRequestedError("stopped while starting")
            if time.monotonic() > deadline:
                self._on_state(spec.name, ChildState.FAILED)
                raise ChildError(
                    f"{spec.name} was not ready after {spec.ready_timeout_s:.0f} s",
                    hint=_log_hint(log),
                )
            time.sleep(_POLL_S)
        # A child may answer its last question and die.
        self._check()
        child.segments = segments_of(child.process.pid)
        self._on_state(spec.name, ChildState.READY)

    def watch(self, tick: Callable[[], None] = lambda: None) -> None:
        """Return when ``request_stop`` was called; raise ChildError when a child ends by itself."""
        while not self._stop_requested:
            self._check()
            tick()
            time.sleep(_POLL_S)

    def stop(self, name: str) -> None:
        """Stop one child: SIGTERM, after its timeout SIGKILL, then whatever it left behind."""
        child = self._children.pop(name, None)
        if child is None:
            return
        self._on_state(name, ChildState.STOPPING)
        _end(child)
        self._on_state(name, ChildState.STOPPED)

    def kill(self, name: str) -> None:
        """End one child at once with everything it started."""
        child = self._children.pop(name, None)
        if child is not None:
            child.segments |= segments_of(child.process.pid)
            _kill_group(child.process)
            child.process.wait()
            remove_segments(child.segments)
            self._on_state(name, ChildState.STOPPED)

    def stop_all(self) -> None:
        """Stop every child, the last started first."""
        for name in reversed(list(self._children)):
            self.stop(name)

    def _check(self) -> None:
        for name, child in self._children.items():
            if child.ended:
                self._restart(child)
                continue
            if not _has_ended(child.process):
                continue
            self._on_state(name, ChildState.FAILED)
            _kill_group(child.process)
            code = child.process.wait()
            remove_segments(child.segments)
            child.ended = True
            if child.spec.restart_after_s is not None:
                child.restart_at = time.monotonic() + child.spec.restart_after_s
                continue
            raise ChildError(
                f"{name} ended by itself ({_meaning(code)})", hint=_log_hint(child.log)
            )

    def _restart(self, child: _Child) -> None:
        """Start a child again that may end, once its time has come."""
        after_s = child.spec.restart_after_s
        if after_s is None or time.monotonic() < child.restart_at:
            return
        child.restart_at = time.monotonic() + after_s
        with suppress(ChildError):
            child.process = _spawn(child.spec, child.log)
            child.ended = False
            self._on_state(child.spec.name, ChildState.READY)


def _spawn(spec: ChildSpec, log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        log.replace(log.with_suffix(".log.1"))
    for path in spec.sockets:
        path.unlink(missing_ok=True)
    environment = dict(spec.environment) | {PARENT_VARIABLE: str(os.getpid())}
    inherited: tuple[int, ...] = ()
    if spec.secret is not None:
        reader, writer = os.pipe()
        # A pipe holds 64 KiB, so this cannot block; what the child has read is nowhere any more.
        os.write(writer, spec.secret)
        os.close(writer)
        environment[TOKEN_FD_VARIABLE] = str(reader)
        inherited = (reader,)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            spec.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            pass_fds=inherited,
            # A session of its own: Ctrl-C reaches the supervisor alone, which stops in order.
            start_new_session=True,
        )
    except OSError as error:
        raise ChildError(f"{spec.name} cannot be started: {error}") from error
    finally:
        os.close(descriptor)
        for number in inherited:
            os.close(number)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ended; it stays a zombie, so that its process group's number is not reused."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _end(child: _Child) -> None:
    process = child.process
    if child.ended:
        return
    child.segments |= segments_of(process.pid)
    if not _has_ended(process):
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + child.spec.stop_timeout_s
        while not _has_ended(process) and time.monotonic() < deadline:
            time.sleep(_POLL_S / 2)
    _kill_group(process)
    process.wait()
    child.ended = True
    # Engines leave theirs behind.
    remove_segments(child.segments)
    for path in child.spec.sockets:
        path.unlink(missing_ok=True)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _meaning(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _log_hint(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    tail = "".join(f"\n    {line[:300]}" for line in lines[-TAIL_LINES:])
    return f"last lines of {log}:{tail}" if tail else f"it wrote nothing to {log}"
