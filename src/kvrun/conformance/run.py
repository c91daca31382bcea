"""Running the checks on deployments that are made for them and end with them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kvrun.conformance.checks import (
    CHECKS,
    OBJECT_CHECKS,
    STATELESS_CHECKS,
    Check,
    Outcome,
    wait_governed,
)
from kvrun.engines.checked import CheckRow
from kvrun.errors import KvrunError
from kvrun.launch.stack import Stack, StackOptions

CONTEXT_WINDOW = 2048
_MIB = 1 << 20
ALL: Mapping[str, Check] = {**CHECKS, **OBJECT_CHECKS, **STATELESS_CHECKS}
NAMES = tuple(ALL)


@dataclass(frozen=True, slots=True)
class _Setup:
    """A deployment, and the checks that need this one."""

    checks: Mapping[str, Check]
    stateless: bool = False
    storage: bool = False


_SETUPS = (
    _Setup(CHECKS),
    _Setup(OBJECT_CHECKS, storage=True),
    _Setup(STATELESS_CHECKS, stateless=True),
)


def run_checks(
    engine: str,
    model: str,
    names: Sequence[str] = NAMES,
    progress: Callable[[str], None] = lambda _: None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> list[CheckRow]:
    """Start what the named checks need and run them, one after the other.

    ``settings`` are further ``KVRUN_SECTION__KEY`` variables of each deployment. Raises KvrunError
    where the deployment itself cannot be started.
    """
    rows: list[CheckRow] = []
    for setup in _SETUPS:
        wanted = [name for name in setup.checks if name in names]
        if not wanted:
            continue
        with _running(engine, model, setup, progress, settings) as stack:
            for name in wanted:
                progress(f"{engine}: {name}")
                outcome = _outcome(setup.checks[name], stack)
                rows.append(CheckRow(engine, name, outcome.met, outcome.detail))
    return rows


def _outcome(check: Check, stack: Stack) -> Outcome:
    try:
        return check(stack)
    except (KvrunError, OSError) as error:
        return Outcome(False, f"the check broke off: {error}")


@contextlib.contextmanager
def _running(
    engine: str,
    model: str,
    setup: _Setup,
    progress: Callable[[str], None],
    settings: Mapping[str, str],
) -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="kvc-", dir="/tmp"))
    try:
        # What is checked must not depend on how busy the machine is.
        own = {"KVRUN_INSTANCE__MATCH_DEADLINE_MS": "2000"}
        if setup.storage:
            own["KVRUN_STORAGE__URL"] = f"file://{folder}/storage"
            own["KVRUN_INSTANCE__OBJECT_TIER"] = "on"
        options = StackOptions(
            model=model,
            engine=engine,
            context_window=CONTEXT_WINDOW,
            memory_bytes=256 * _MIB,
            disk_bytes=0 if setup.storage else 512 * _MIB,
            max_num_seqs=2,
            stateless=setup.stateless,
            settings={**settings, **own},
        )
        stack = Stack(folder / "s", options, progress)
        try:
            progress(f"{engine}: starting")
            stack.start()
            if not setup.stateless:
                wait_governed(stack)
            yield stack
        finally:
            stack.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
