"""Running the checks on deployments that are made for them and end with them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from kvrun.conformance.checks import (
    CHECKS,
    STATELESS_CHECKS,
    Check,
    Outcome,
    wait_governed,
)
from kvrun.errors import KvrunError
from kvrun.launch.stack import Stack, StackOptions

CONTEXT_WINDOW = 2048
_MIB = 1 << 20
NAMES = (*CHECKS, *STATELESS_CHECKS)


class Row(msgspec.Struct, frozen=True):
    """One check of one engine."""

    engine: str
    check: str
    met: bool
    detail: str


def run_checks(
    engine: str,
    model: str,
    names: Sequence[str] = NAMES,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Start what the named checks need and run them, one after the other.

    Raises KvrunError where the deployment itself cannot be started.
    """
    rows: list[Row] = []
    for checks, stateless in ((CHECKS, False), (STATELESS_CHECKS, True)):
        wanted = [name for name in checks if name in names]
        if not wanted:
            continue
        with _running(engine, model, stateless, progress) as stack:
            for name in wanted:
                progress(f"{engine}: {name}")
                outcome = _outcome(checks[name], stack)
                rows.append(Row(engine, name, outcome.met, outcome.detail))
    return rows


def _outcome(check: Check, stack: Stack) -> Outcome:
    try:
        return check(stack)
    except (KvrunError, OSError) as error:
        return Outcome(False, f"the check broke off: {error}")


@contextlib.contextmanager
def _running(
    engine: str, model: str, stateless: bool, progress: Callable[[str], None]
) -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="kvc-", dir="/tmp"))
    try:
        options = StackOptions(
            model=model,
            engine=engine,
            context_window=CONTEXT_WINDOW,
            memory_bytes=256 * _MIB,
            disk_bytes=512 * _MIB,
            max_num_seqs=2,
            stateless=stateless,
        )
        stack = Stack(folder / "s", options, progress)
        try:
            progress(f"{engine}: starting")
            stack.start()
            if not stateless:
                wait_governed(stack)
            yield stack
        finally:
            stack.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
