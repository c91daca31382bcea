"""``kvrun up``: daemon, engine, gateway, collector and control plane as one process tree."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvrun.api.home import HomeTakenError, home_of, require_unserved
from kvrun.cli.options import DEFAULT_CONFIG, ConfigFile, console, read_config, table
from kvrun.cli.root_probe import warning_of_running
from kvrun.cli.sign_in import sign_in_line
from kvrun.config import DataLayout, KvrunConfig
from kvrun.deployments.folder import open_gateway
from kvrun.errors import KvrunError
from kvrun.filelock import FileTakenError, hold_file
from kvrun.instance.known_engines import process_start
from kvrun.launch import prepare
from kvrun.launch.processes import (
    COLLECTOR,
    CONTROL,
    ENGINE,
    GATEWAY,
    INSTANCE,
    POLICY,
    collector_spec,
    control_spec,
    engine_spec,
    engine_url,
    gateway_spec,
    gateway_url,
    instance_spec,
    keys_spec,
    policy_spec,
)
from kvrun.launch.readiness import AddressInUseError, require_free, unix_accepts
from kvrun.launch.running import RunningState, note_running
from kvrun.launch.secrets import Launch, prepare_run_folder, remove_files
from kvrun.launch.supervisor import ChildState, StopRequestedError, Supervisor


class AlreadyUpError(KvrunError):
    """Another ``kvrun up`` works on the same data folder."""

    exit_code = 3


def up(
    config_file: ConfigFile = DEFAULT_CONFIG,
    model: Annotated[
        str | None, typer.Option(help='Folder, Hugging Face id, "demo" or "tiny".')
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port of the gateway.")] = None,
) -> None:
    """Start daemon, engine and gateway, and stop them together on Ctrl-C or SIGTERM.

    Nothing is restarted in silence: when one process ends by itself, kvrun says which, shows its
    last log lines and stops the others. Logs are in DATA_DIR/logs. Beside them run the collector
    of the audit log and the control plane (control.enabled); where one of these ends it is started
    again after a minute, and nothing else is stopped.

    Example: kvrun up --model Qwen/Qwen3-0.6B
    """
    overrides = {
        name: str(value)
        for name, value in (("KVRUN_DEPLOYMENT__MODEL", model), ("KVRUN_GATEWAY__PORT", port))
        if value is not None
    }
    environment = {**os.environ, **overrides}
    run_up(read_config(config_file, overrides), config_file.absolute(), environment)


def run_up(config: KvrunConfig, config_file: Path, environment: Mapping[str, str]) -> None:
    """Start everything, watch it until a stop is asked for, stop everything.

    Raises KvrunError when something cannot be started or ends by itself.
    """
    display = _Display(console())
    engine = prepare.check(config, environment)
    prepare_run_folder(config.layout)
    with only_one(config.layout), display:
        open_gateway(config)  # the drain of whoever ran before is over
        config = prepare.resolve(config, engine, display.say)
        supervisor = Supervisor(config.layout.logs, display.state)
        launch = Launch.create()
        launch.write_files(config.layout)
        with _stop_signals(supervisor):
            try:
                if config.keys.mode == "service" and not unix_accepts(config.key_socket):
                    supervisor.start(keys_spec(config, config_file, environment))
                followed = config.residency.repository is not None
                if followed and config.residency.mode != "off":
                    # First: until a policy is there, nothing but GPU memory is allowed.
                    supervisor.start(policy_spec(config, config_file, environment))
                supervisor.start(instance_spec(config, config_file, launch, environment))
                display.say(_first_start(config))
                supervisor.start(engine_spec(config, environment, cpus=prepare.usable_cpus(engine)))
                supervisor.start(gateway_spec(config, config_file, launch, environment))
                supervisor.start(collector_spec(config, config_file, environment))
                control = _start_control(supervisor, config, config_file, environment)
                write_state(config, supervisor)
                display.ready(config)
                display.say(control)
                if warning := warning_of_running(config):
                    display.say(warning)
                supervisor.watch()
            except StopRequestedError:
                display.say("stopping")
            finally:
                supervisor.stop_all()
                remove_files(config.layout)


@contextmanager
def only_one(layout: DataLayout) -> Iterator[None]:
    """Hold the data folder for one ``kvrun up``. Raises AlreadyUpError."""
    try:
        descriptor = hold_file(layout.run / "up.lock", str(os.getpid()))
    except FileTakenError as error:
        raise AlreadyUpError(
            f"`kvrun up` (process {error.holder or '?'}) runs on {layout.data_dir} already",
            hint="stop it, or give this deployment another instance.data_dir",
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def write_state(config: KvrunConfig, supervisor: Supervisor) -> None:
    """Note which processes run, for ``kvrun status``."""
    state = RunningState(
        pid=os.getpid(),
        processes=supervisor.pids(),
        gateway_url=gateway_url(config),
        engine_url=engine_url(config),
        model=config.deployment.served_model_name or config.deployment.model,
        started_at=time.time(),
        process_start=process_start(os.getpid()),
    )
    note_running(config.layout, state)


def _first_start(config: KvrunConfig) -> str:
    engine, log = config.engine, config.layout.logs / "engine.log"
    compiles = engine.kind == "vllm" and not engine.enforce_eager
    why = " and the first start compiles for minutes (engine.enforce_eager leaves that out)"
    return (
        f"the engine loads its model{why if compiles else ''}: "
        f"at most {engine.startup_timeout_s:.0f} s, log in {log}"
    )


def _start_control(
    supervisor: Supervisor, config: KvrunConfig, config_file: Path, environment: Mapping[str, str]
) -> str:
    """Start the control plane where it is wanted; what to say of it."""
    control = config.control
    if not control.enabled:
        return "control plane: not started (control.enabled)"
    try:
        require_free(control.host, control.port, "control.port")
        require_unserved(home_of(config))
    except (AddressInUseError, HomeTakenError) as error:
        return f"control plane: not started: {error.diagnostics()}"
    supervisor.start(control_spec(config, config_file, environment))
    return f"control plane: {sign_in_line(config)}"


@contextmanager
def _stop_signals(supervisor: Supervisor) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, supervisor.request_stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class _Display:
    """A live table on a terminal, one line a change elsewhere."""

    _STYLES = {ChildState.READY: "green", ChildState.FAILED: "bold red"}  # noqa: RUF012

    def __init__(self, out: Console) -> None:
        self._out = out
        self._states: dict[str, tuple[ChildState, float]] = {}
        self._live = Live(
            console=out, get_renderable=self._render, refresh_per_second=4, transient=False
        )

    def __enter__(self) -> "_Display":
        if self._out.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._out.print(text, soft_wrap=True)

    def state(self, name: str, state: ChildState) -> None:
        self._states[name] = (state, time.monotonic())
        if not self._out.is_terminal:
            self.say(f"{name}: {state.value}")

    def ready(self, config: KvrunConfig) -> None:
        url = gateway_url(config)
        name = config.deployment.served_model_name or config.deployment.model
        tenant = f" -H '{config.gateway.tenant_header}: alice'"
        key = " -H 'Authorization: Bearer <your API key>'" if config.gateway.require_auth else ""
        self.say(
            f"\n{name} is served at {url}/v1 (Ctrl-C stops it)\n\n"
            f"  curl {url}/v1/completions{key}{tenant} \\\n"
            f"    -H 'Content-Type: application/json' \\\n"
            f'    -d \'{{"model": "{name}", "prompt": "Water boils at", "max_tokens": 16}}\'\n'
        )

    def _render(self) -> Table:
        rows = table("process", "state", "for")
        for name in (POLICY, INSTANCE, ENGINE, GATEWAY, COLLECTOR, CONTROL):
            state, since = self._states.get(name, (None, 0.0))
            if state is None and name == POLICY:
                continue  # no repository is connected
            if state is None:
                rows.add_row(name, "waits", "")
                continue
            style = self._STYLES.get(state, "yellow")
            age = f"{time.monotonic() - since:.0f} s"
            rows.add_row(name, Text(state.value, style), age)
        return rows
