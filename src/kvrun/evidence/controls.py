"""Which requirement of which framework a bundle's files are evidence for. Pure.

Exactly the table of the product: no more frameworks, no more requirements. A control is
``present`` only by what was counted in the period; without that it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from kvrun.audit.record import Count
from kvrun.evidence.populations import Population

FORMAT = "kvrun-controls/v1"
STATEMENT = (
    "kvrun produces evidence that maps to these controls. Certification of your organisation "
    "remains between you and your auditor."
)


class State(StrEnum):
    """Whether there is evidence of the period."""

    PRESENT = "present"
    NONE = "none_in_period"
    UNKNOWN = "not_known_now"
    """What it is judged by cannot be counted now. No bundle has it: none is made then."""

    @property
    def words(self) -> str:
        """The state as pages say it."""
        return _WORDS[self]


_WORDS = {
    State.PRESENT: "evidence present",
    State.NONE: "no evidence in the period",
    State.UNKNOWN: "not known now",
}


class Totals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was counted in the period. Everything but the first two comes from logs' counts."""

    certificates: Count = 0
    deployments: Count = 0
    denied: Count = 0
    evaluations: Count = 0
    isolation_tests: Count = 0
    keys_created: Count = 0
    keys_destroyed: Count = 0
    records: Count = 0
    sealed: Count = 0


@dataclass(frozen=True, slots=True)
class Control:
    """One requirement. ``evidence`` as the product words it; ``files`` are names or folders of the
    bundle; ``counts`` names the totals of which one must not be 0. ``checked_by_full`` is what
    checks it with the segments in the bundle, where that is another command."""

    framework: str
    requirement: str
    title: str
    evidence: str
    files: tuple[str, ...]
    counts: tuple[str, ...]
    checked_by: str
    checked_by_full: str = ""

    @property
    def id(self) -> str:
        """A name without spaces."""
        return f"{self.framework} {self.requirement}".lower().replace(" ", "-").replace(".", "")


class ControlEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A control as ``controls.json`` has it. ``command`` is what checks it, in the words of the
    version that wrote it; ``counted``: what its state was judged by, as far as it is known."""

    command: str
    counted: dict[str, Count]
    evidence: str
    files: list[str]
    framework: str
    id: str
    requirement: str
    state: State
    title: str


class ControlMap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``controls.json``."""

    controls: list[ControlEntry]
    format: str = FORMAT
    statement: str = STATEMENT
    totals: Totals


_WHOLE = "kvrun verify evidence.zip --trust anchor.json"
_CERTIFICATE = (
    "kvrun verify deployments/DEPLOYMENT/certificates/CERTIFICATE.json --trust anchor.json"
)
CONTROLS = (
    Control(
        framework="UK GDPR",
        requirement="Art. 17",
        title="Right to erasure",
        evidence="Erasure certificate per session",
        files=("deployments/*/certificates/", Population.ERASURE_REQUESTS.file),
        counts=("certificates",),
        checked_by=_CERTIFICATE,
    ),
    Control(
        framework="UK GDPR",
        requirement="Art. 25",
        title="Data protection by design",
        evidence="Encryption and isolation on by default",
        files=("configuration.json", Population.DEPLOYMENTS.file, Population.LOG_EVENTS.file),
        counts=("sealed",),
        checked_by=_WHOLE,
    ),
    Control(
        framework="SOC 2",
        requirement="CC6.1",
        title="Logical access",
        evidence="Per-tenant key isolation",
        files=(
            "isolation/",
            Population.ACCESS_CHANGES.file,
            Population.KEY_ROTATIONS.file,
            Population.LOG_EVENTS.file,
        ),
        counts=("keys_created", "isolation_tests"),
        checked_by=_WHOLE,
    ),
    Control(
        framework="SOC 2",
        requirement="CC7.2",
        title="Monitoring",
        evidence="Continuous audit log",
        files=("deployments/*/logs/", Population.ALERTS.file, Population.INCIDENTS.file),
        counts=("records",),
        checked_by=_WHOLE,
        checked_by_full="kvrun verify deployments/DEPLOYMENT/logs/LOG --trust anchor.json",
    ),
    Control(
        framework="ISO 27001",
        requirement="Secure disposal",
        title="Secure disposal",
        evidence="Cryptographic erasure",
        files=("deployments/*/certificates/", Population.LOG_EVENTS.file),
        counts=("keys_destroyed",),
        checked_by=_CERTIFICATE,
    ),
    Control(
        framework="EU AI Act",
        requirement="Evaluation records",
        title="Evaluation records",
        evidence="An evaluation on every fine-tune, kept with the weights",
        files=("finetunes/",),
        counts=("evaluations",),
        checked_by=_WHOLE,
    ),
)


def control_map(
    totals: Totals,
    has: Callable[[str], bool],
    *,
    full: bool = False,
    unknown: frozenset[str] = frozenset(),
) -> ControlMap:
    """The controls with their states. ``has`` says whether the bundle has a file or folder of a
    name; those that it has not are left out. ``full``: the segments are in it. ``unknown`` names
    totals that could not be counted: a control that one of them belongs to has no other state."""
    return ControlMap(
        controls=[_entry(control, totals, has, full, unknown) for control in CONTROLS],
        totals=totals,
    )


def with_results(totals: Totals, names: Iterable[str]) -> Totals:
    """The totals with the results of self-tests and evaluations that are among the files."""
    kept = list(names)
    return msgspec.structs.replace(
        totals,
        isolation_tests=sum(name.startswith("isolation/") for name in kept),
        evaluations=sum(
            name.startswith("finetunes/") and name.endswith("/evaluation.json") for name in kept
        ),
    )


def encode_controls(controls: ControlMap) -> bytes:
    """``controls.json``: indented, with sorted keys."""
    return msgspec.json.format(msgspec.json.encode(controls, order="sorted"), indent=2) + b"\n"


def says(stated: bytes, controls: ControlMap) -> bool:
    """Whether a ``controls.json`` says these, byte for byte but for its commands.

    Those are the words of the version that wrote it; what signs the file vouches for them.
    Raises ValueError for what is no ``controls.json``.
    """
    try:
        commands = [entry.command for entry in _MAP.decode(stated).controls]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"it is malformed: {error}") from None
    if len(commands) != len(controls.controls):
        return False
    worded = [
        msgspec.structs.replace(entry, command=command)
        for entry, command in zip(controls.controls, commands, strict=True)
    ]
    return encode_controls(msgspec.structs.replace(controls, controls=worded)) == stated


def file_matcher(names: list[str]) -> Callable[[str], bool]:
    """Whether one of ``names`` is a file, or lies in a folder (``a/*/b/``), of a control."""

    def has(wanted: str) -> bool:
        if not wanted.endswith("/"):
            return wanted in known
        start, _, rest = wanted.partition("*/")
        return any(name.startswith(start) and (not rest or f"/{rest}" in name) for name in known)

    known = frozenset(names)
    return has


def _entry(
    control: Control,
    totals: Totals,
    has: Callable[[str], bool],
    full: bool,
    unknown: frozenset[str],
) -> ControlEntry:
    counted = {name: getattr(totals, name) for name in control.counts if name not in unknown}
    state = State.PRESENT if any(counted.values()) else State.NONE
    return ControlEntry(
        command=(control.checked_by_full if full else "") or control.checked_by,
        counted=counted,
        evidence=control.evidence,
        files=[name for name in control.files if has(name)],
        framework=control.framework,
        id=control.id,
        requirement=control.requirement,
        state=State.UNKNOWN if unknown.intersection(control.counts) else state,
        title=control.title,
    )


_MAP = msgspec.json.Decoder(ControlMap)
