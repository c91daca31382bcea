"""Running a self-test on a deployment of this machine, and keeping its signed result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvrun import __version__
from kvrun.audit.record import format_time
from kvrun.config import KvrunConfig
from kvrun.config.layout import storage_prefix
from kvrun.control.alerts import Alert, AlertKind
from kvrun.control.plane import ControlPlane
from kvrun.control.remembered import RememberedLog
from kvrun.control.rounds import run_round
from kvrun.errors import KvrunError
from kvrun.isolation.deployment import RunningDeployment, canary_key
from kvrun.isolation.report import (
    FOLDER_NAME,
    IsolationPredicate,
    Outcome,
    object_name,
    outcome_of,
    read_result,
    sign_result,
)
from kvrun.isolation.run import Found, Options, run_self_test
from kvrun.keys.signing import KeyPurpose, PublicKeyRecord, SigningRing
from kvrun.launch.trust import own_keys
from kvrun.statements.document import Signer, StatementError, judge_signer

MAX_RESULTS = 200
_MAX_SAID = 500


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A result in Storage; ``signer`` as it is judged by this installation's own keys."""

    name: str
    data: bytes
    result: IsolationPredicate
    signer: Signer


def self_test(
    config: KvrunConfig,
    config_file: Path,
    options: Options,
    *,
    api_key: str = "",
    restart: Callable[[], None] | None = None,
    now: Callable[[], float] = time.time,
    random_bytes: Callable[[int], bytes] = os.urandom,
    say: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
) -> StoredResult:
    """Test the running deployment of ``config``, sign what was found, and store it.

    One that fails raises an alert. Raises KvrunError where it cannot be tested, or ``stopped`` says
    so; nothing is stored then.
    """
    started = now()
    with canary_key(config, api_key, now) as key:
        target = RunningDeployment(config, key, restart)
        found = run_self_test(target, options, random_bytes, say, stopped)
    result = predicate_of(found, started, now())
    ring = SigningRing(config.layout.signing_keys, now=now)
    content = config_file.read_bytes() if config_file.is_file() else b""
    data = sign_result(result, content, ring.load_or_create(KeyPurpose.EVIDENCE))
    name = f"{_folder(config)}/{object_name(result).rpartition('/')[2]}"
    ControlPlane(config).storage().create(name, data)
    stored = StoredResult(name, data, result, Signer.TRUSTED)
    if result.outcome is Outcome.FAIL:
        raise_alert(ControlPlane(config, now), stored)
    return stored


def raise_alert(plane: ControlPlane, stored: StoredResult) -> Alert | None:
    """Have a person look at a result that failed; None where one waits for them already.

    Raises KvrunError where it cannot be put on record.
    """
    log = _log_of(plane)
    if log is None:
        # Nothing of it was collected yet, so there is no log to hang the alert on.
        run_round(plane, reason=FOLDER_NAME)
        log = _log_of(plane)
    if log is None:
        raise KvrunError(f"the self-test {stored.name} failed, and no log can carry the alert")
    with plane.hold():
        return plane.alarm.warn(
            AlertKind.ISOLATION_FAILED,
            log,
            _what_failed(stored.result),
            {"result.json": stored.data},
            about=FOLDER_NAME,
        )


def predicate_of(found: Found, started: float, ended: float) -> IsolationPredicate:
    """What is signed of a self-test. Times in seconds since 1970."""
    return IsolationPredicate(
        issued_at=format_time(ended),
        started_at=format_time(started),
        workspace=found.facts.workspace,
        deployment=found.facts.deployment,
        engine=found.facts.engine,
        version=__version__,
        prompt_tokens=found.prompt_tokens,
        restarted=found.restarted,
        outcome=outcome_of(found.checks),
        checks=found.checks,
        timing=found.timing,
        erased=found.erased,
    )


def stored_results(config: KvrunConfig) -> list[StoredResult]:
    """The deployment's results in Storage, the last one first. Raises StorageError.

    What is there and is no result is passed over.
    """
    storage = ControlPlane(config).storage()
    names = sorted((item.name for item in storage.list(_folder(config))), reverse=True)
    known = [key.public() for key in own_keys(config.layout)]
    found = []
    for name in names[:MAX_RESULTS]:
        result = read_stored(name, storage.get(name), known)
        if result is not None:
            found.append(result)
    return found


def read_stored(name: str, data: bytes, known: list[PublicKeyRecord]) -> StoredResult | None:
    """A result in bytes; None where they are none."""
    try:
        signed = read_result(data)
    except StatementError:
        return None
    return StoredResult(name, data, signed.predicate, judge_signer(signed, known)[0])


def _log_of(plane: ControlPlane) -> RememberedLog | None:
    deployment = plane.config.deployment
    whose = (deployment.workspace, deployment.name)
    logs = (item for item in plane.memory.all() if (item.workspace, item.deployment) == whose)
    return next((item for item in logs if not item.retired), None)


def _what_failed(result: IsolationPredicate) -> str:
    failed = [item for item in result.checks if item.outcome is Outcome.FAIL]
    said = "; ".join(f"{item.name}: {item.detail}" for item in failed)
    return f"the isolation self-test of {result.issued_at[:19]}Z failed: {said}"[:_MAX_SAID]


def _folder(config: KvrunConfig) -> str:
    deployment = config.deployment
    return f"{storage_prefix(deployment.workspace, deployment.name)}/{FOLDER_NAME}"
