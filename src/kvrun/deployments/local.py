"""Runs a deployment as a detached process tree on this machine: `kvrun up` in its own session.

It survives the control plane. A lock in its folder is held by the process itself, from before it
starts until its end, so a later control plane knows for sure whether it runs; the note in the same
file says which process it is, by id and start time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from kvrun.config import DEFAULT_FILE
from kvrun.deployments.launcher import Site
from kvrun.deployments.machine import Seen
from kvrun.errors import KvrunError
from kvrun.filelock import FileTakenError, hold_file, is_held
from kvrun.instance.known_engines import process_start
from kvrun.launch.processes import gateway_url
from kvrun.launch.readiness import http_answers
from kvrun.launch.running import read_running

LOCK_NAME = "launch.lock"
UP_LOG = "up.log"
_FILE_VARIABLE = b"KVRUN_CONFIG="
_MAX_NOTE = 4096
_STATUS_WAIT_S = 1.0
_TAIL_BYTES = 16384
_MAX_WHY = 600


class LaunchError(KvrunError):
    """The process tree cannot be started."""

    exit_code = 4


class _Note(msgspec.Struct, frozen=True):
    """Which process holds the lock, as ``detached`` writes it."""

    pid: int
    started: str
    attempt: int


def up_command(site: Site) -> list[str]:
    """What runs a deployment."""
    return [sys.executable, "-m", "kvrun", "up", "--config", str(site.config_file)]


class LocalLauncher:
    """Starts, finds and stops process trees on this machine. Thread-safe.

    ``environment`` is what they inherit, without KVRUN_*: those are the control plane's own.
    """

    def __init__(
        self,
        *,
        command: Callable[[Site], list[str]] = up_command,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._command = command
        self._environment = environment
        self._table = threading.Lock()
        # Our own children, to reap; those of a control plane before us are init's.
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def launch(self, site: Site, attempt: int) -> None:
        """See Launcher. Raises LaunchError."""
        log = site.config.layout.logs / UP_LOG
        try:
            site.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = hold_file(site.folder / LOCK_NAME, "")
        except FileTakenError:
            return  # it runs
        except OSError as error:
            raise LaunchError(f"{site.folder} cannot be used: {error.strerror}") from None
        try:
            self._spawn(site, attempt, held, log)
        except OSError as error:
            raise LaunchError(f"`kvrun up` cannot be started: {error.strerror}") from None
        finally:
            os.close(held)

    def observe(self, site: Site) -> Seen:
        """See Launcher."""
        self._reap(site.deployment_id)
        alive, note = _look(site.folder / LOCK_NAME)
        if not alive:
            if _by_hand(site)[0]:
                return Seen(alive=True, ready=_answers(site))
            # Who dies lets go of files before there is a status to read.
            code = self._reap(site.deployment_id, wait_s=_STATUS_WAIT_S)
            ended = "" if note is None else _why_ended(site, code)
            return Seen(alive=False, attempt=note.attempt if note else 0, ended=ended)
        if note is None:
            return Seen(alive=True)  # it is about to say who it is
        running = read_running(site.config.layout)
        ready = running is not None and running.pid == note.pid and _answers(site)
        return Seen(alive=True, ready=ready, attempt=note.attempt)

    def terminate(self, site: Site) -> None:
        """See Launcher."""
        self._signal(site, signal.SIGTERM)

    def kill(self, site: Site) -> None:
        """See Launcher. Daemon, gateway and engine follow: they end with their parent."""
        self._signal(site, signal.SIGKILL)

    def _spawn(self, site: Site, attempt: int, held: int, log: Path) -> None:
        with suppress(FileNotFoundError):
            log.replace(log.with_suffix(".log.1"))
        command = self._command(site)
        environment = {
            name: value
            for name, value in self._environment.items()
            if not name.startswith("KVRUN_")
        }
        # The stub says who it is before it becomes `kvrun up`: nothing is left to be written here
        # that a control plane which is killed now would not have written.
        stub = [sys.executable, "-m", "kvrun.deployments.detached", str(held), str(attempt)]
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                [*stub, *command],
                cwd=site.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(held,),
                start_new_session=True,
            )
        finally:
            os.close(output)
        with self._table:
            self._children[site.deployment_id] = child

    def _reap(self, deployment_id: str, wait_s: float = 0.0) -> int | None:
        with self._table:
            child = self._children.get(deployment_id)
        if child is None:
            return None
        try:
            return child.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None

    def _signal(self, site: Site, number: signal.Signals) -> None:
        alive, note = _look(site.folder / LOCK_NAME)
        pid, started = (note.pid, note.started) if alive and note else _by_hand(site)
        if not pid:
            return
        with suppress(ProcessLookupError, PermissionError):
            process = os.pidfd_open(pid)
            try:
                # Looked at while it is held: the id cannot have become another process's since.
                if process_start(pid) == started:
                    signal.pidfd_send_signal(process, number)
            finally:
                os.close(process)


def _look(path: Path) -> tuple[bool, _Note | None]:
    """Whether somebody holds the lock, and what the file says."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False, None
    try:
        alive = is_held(descriptor)
        try:
            return alive, msgspec.json.decode(os.pread(descriptor, _MAX_NOTE, 0), type=_Note)
        except (OSError, msgspec.MsgspecError):
            return alive, None
    finally:
        os.close(descriptor)


def _by_hand(site: Site) -> tuple[int, str]:
    """The `kvrun up` that a person started on the folder: its id and start; 0 where there is none.

    A note that was left behind may name a process that has the same id now.
    """
    running = read_running(site.config.layout)
    if running is None or not running.process_start:
        return 0, ""
    pid = running.pid
    if process_start(pid) != running.process_start or not _is_up_of(pid, site.config_file):
        return 0, ""
    return pid, running.process_start


def _is_up_of(pid: int, config_file: Path) -> bool:
    """Whether a process is `kvrun up` with that configuration file."""
    place = Path(f"/proc/{pid}")
    try:
        command = place.joinpath("cmdline").read_bytes().split(b"\0")
        variables = place.joinpath("environ").read_bytes().split(b"\0")
        if b"up" not in command:
            return False
        given = [DEFAULT_FILE.encode()]
        given += [item[len(_FILE_VARIABLE) :] for item in variables
                  if item.startswith(_FILE_VARIABLE)]  # fmt: skip
        for option, value in zip(command, [*command[1:], b""], strict=True):
            if option in (b"--config", b"-c"):
                given.append(value)
            elif option.startswith(b"--config="):
                given.append(option.partition(b"=")[2])
        file = place.joinpath("cwd").readlink() / os.fsdecode(given[-1])
        return file.resolve() == config_file.resolve()
    except (OSError, ValueError, RuntimeError):
        return False


def _answers(site: Site) -> bool:
    return http_answers(gateway_url(site.config), "/healthz")


def _why_ended(site: Site, code: int | None) -> str:
    """What `kvrun up` said last, without the log lines that follow: those stay in its log."""
    said = ""
    with suppress(OSError), (site.config.layout.logs / UP_LOG).open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
        said = next((line[7:] for line in reversed(lines) if line.startswith("kvrun: ")), "")
    how = _meaning(code)
    return (f"{said} ({how})" if said and how else said or how or "it ended by itself")[:_MAX_WHY]


def _meaning(code: int | None) -> str:
    if code is None:
        return ""
    if code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
