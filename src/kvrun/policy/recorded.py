"""What a configuration's policy, or another revision, says about what is on record."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvrun.audit.cursor import read_records
from kvrun.audit.decisions import DECISION_PREFIX
from kvrun.audit.errors import AuditError
from kvrun.audit.record import Event, Record
from kvrun.config import KvrunConfig
from kvrun.git import Git, GitError
from kvrun.policy.compile import CompiledRevision, PolicyEngine, aged_table, closed_table
from kvrun.policy.errors import PolicyError
from kvrun.policy.held import Held, HeldSession
from kvrun.policy.matching import InstanceFacts
from kvrun.policy.named import active_revision, read_named
from kvrun.policy.revision import Revision
from kvrun.policy.setup import believed_facts, folder_of, settings_of
from kvrun.policy.simulate import Simulation, placements, simulate
from kvrun.policy.violations import Violations, violations

_MAX_REVISIONS = 20
"""So many earlier revisions are read for the reasons that they gave."""
_REFUSALS = (
    f'"reason":"{DECISION_PREFIX}'.encode(),
    f'"event":"{Event.POLICY_ACTIVATED}"'.encode(),
)


def simulated(
    config: KvrunConfig, revision: Revision, records: Iterable[Record], since: float
) -> Simulation:
    """What a revision would have decided about the recorded placements since a time.

    Tenants and places are judged by what is known of them now. Raises PolicyError.
    """
    tenants = folder_of(config).tenants()
    table = CompiledRevision(revision, believed_facts(config)).table(tenants)
    return simulate(table, placements(records, since))


def marks_of_violations(config: KvrunConfig) -> tuple[bytes, ...]:
    """What the lines have in them of the records that ``violated`` needs; nothing for all of them.

    What is misplaced follows from everything that was placed. Without a policy nothing is.
    """
    return () if _has_policy(config) else _REFUSALS


def placed_sessions(config: KvrunConfig) -> list[HeldSession]:
    """Which sessions have blocks where, by the log that is here. Raises PolicyError."""
    held = Held()
    try:
        for record in read_records(config.layout.audit) if config.layout.audit.is_dir() else ():
            held.apply(record)
    except (AuditError, OSError) as error:
        raise PolicyError(f"the log does not say what is placed now: {error}") from None
    return list(held.sessions.values())


def violated(
    config: KvrunConfig, records: Iterable[Record], since: float, now: float
) -> Violations:
    """What the policy in force did not allow since a time, and what is misplaced now.

    Raises PolicyError for a file that is damaged.
    """

    def in_force(facts: InstanceFacts) -> PolicyEngine | None:
        return _in_force(config, facts, now) if _has_policy(config) else None

    return violations(records, believed_facts(config), in_force, since, _explained(config))


def _has_policy(config: KvrunConfig) -> bool:
    return config.residency.repository is not None and config.residency.mode != "off"


def _in_force(config: KvrunConfig, facts: InstanceFacts, now: float) -> PolicyEngine:
    """What the daemon decides by, before a mode leaves it without effect."""
    folder = folder_of(config)
    tenants = folder.tenants()
    if folder.active() is None:
        return closed_table(facts, tenants)
    table = CompiledRevision(active_revision(config).revision, facts).table(tenants)
    age_s = now - folder.status().confirmed_at
    return aged_table(table) if age_s > config.residency.max_age_s else table


def _explained(config: KvrunConfig) -> Callable[[str, str], tuple[str, str]]:
    known: dict[str, dict[str, tuple[str, str]]] = {}

    def explained(revision: str, rule: str) -> tuple[str, str]:
        if revision not in known and len(known) < _MAX_REVISIONS:
            found = _kept(config, revision)
            rules = found.rules if found is not None else ()
            known[revision] = {item.name: (item.where, item.policy.reason) for item in rules}
        return known.get(revision, {}).get(rule, ("", ""))

    return explained


def _kept(config: KvrunConfig, revision: str) -> Revision | None:
    """A revision that is active or in the clone, without asking anybody for it."""
    folder, settings = folder_of(config), settings_of(config)
    try:
        active = folder.active()
        if active is not None and active.origin.revision == revision:
            return active_revision(config).revision
        if settings is None or not _is_commit(revision) or not folder.repository.is_dir():
            return None
        git = Git.open(folder.repository, settings.access(), make=False)
        return read_named(git, revision, settings.path).revision
    except (GitError, PolicyError):
        return None


def _is_commit(revision: str) -> bool:
    return len(revision) in (40, 64) and not set(revision) - set("0123456789abcdef")
