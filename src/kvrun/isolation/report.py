"""The result of a self-test as signed evidence. ``docs/spec/isolation-self-test.md``. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256

import msgspec

from kvrun.isolation.timing import Effect, Round, TimingResult
from kvrun.keys.signing import SigningKey
from kvrun.statements.document import Predicate, Signed, read_statement, sign_statement

PREDICATE_TYPE = "https://kvrun.dev/isolation-self-test/v1"
FOLDER_NAME = "isolation"
SUBJECT_NAME = "kvrun.toml"


class Outcome(StrEnum):
    """How a check ended. ``INCONCLUSIVE``: it was tried and shows nothing, which is no pass."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Check(_Part, frozen=True, kw_only=True):
    """One thing that was tried; ``detail`` says what was seen."""

    name: str
    outcome: Outcome
    detail: str


class Interval(_Part, frozen=True, kw_only=True):
    """An estimate with its 95 % interval; decimals as text."""

    value: str
    low: str
    high: str


class TimingEntry(_Part, frozen=True, kw_only=True):
    """Every time that was taken, in microseconds and in the order of the rounds, and what follows.

    Whoever has it can compute the rest again; ``seed`` decides the bootstrap's draws.
    """

    same_us: list[int]
    other_us: list[int]
    cold_us: list[int]
    seed: int
    seen: str
    ratio: Interval
    cliffs_delta: Interval
    leak: Interval
    minimum_detectable_leak: str


class IsolationPredicate(Predicate, frozen=True, kw_only=True):
    """What a self-test found. ``erased``: the certificates of its canary users."""

    started_at: str
    workspace: str
    deployment: str
    engine: str
    version: str
    prompt_tokens: int
    restarted: bool
    outcome: Outcome
    checks: list[Check]
    timing: TimingEntry | None
    erased: list[str]


def outcome_of(checks: Sequence[Check]) -> Outcome:
    """The worst: one failure fails it; nothing that passed, or one that shows nothing, is none."""
    outcomes = {check.outcome for check in checks}
    for worst in (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS):
        if worst in outcomes:
            return worst
    return Outcome.SKIPPED


def timing_entry(rounds: Sequence[Round], result: TimingResult, seed: int) -> TimingEntry:
    """The rounds and what was made of them."""
    return TimingEntry(
        same_us=[item.same_us for item in rounds],
        other_us=[item.other_us for item in rounds],
        cold_us=[item.cold_us for item in rounds],
        seed=seed,
        seen=result.seen.value,
        ratio=_interval(result.ratio),
        cliffs_delta=_interval(result.cliffs_delta),
        leak=_interval(result.leak),
        minimum_detectable_leak=f"{result.minimum_detectable_leak:.4f}",
    )


def sign_result(result: IsolationPredicate, config_file: bytes, signer: SigningKey) -> bytes:
    """The statement's bytes. Its subject is the configuration that the deployment ran with."""
    subjects = {SUBJECT_NAME: sha256(config_file).hexdigest()}
    return sign_statement(PREDICATE_TYPE, subjects, result, signer)


def read_result(data: bytes) -> Signed[IsolationPredicate]:
    """The result in a file's bytes. Raises StatementError; who signed is to be judged."""
    return read_statement(data, PREDICATE_TYPE, IsolationPredicate)


def object_name(result: IsolationPredicate) -> str:
    """Its name within the deployment's folder in Storage: by the time at which it was signed."""
    stamp = result.issued_at.replace(":", "").replace("-", "").replace(".", "")
    return f"{FOLDER_NAME}/{stamp}.json"


def day_of(name: str) -> str:
    """The day (``2026-01-31``) on which a result of this name was signed."""
    stamp = name.rpartition("/")[2]
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}"


def _interval(effect: Effect) -> Interval:
    return Interval(value=f"{effect.value:.4f}", low=f"{effect.low:.4f}", high=f"{effect.high:.4f}")
