"""Isolation self-tests that nobody has to ask for: each deployment that runs, once in a while.

When each was last tried is kept in a file, so that a restart of the control plane tests nothing
twice, and one that cannot be tested is tried again at its next turn and not at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from kvrun.api.services import Services
from kvrun.deployments.model import Deployment, DeploymentState
from kvrun.durable import replace_private_file
from kvrun.errors import KvrunError
from kvrun.isolation.run import Options
from kvrun.isolation.service import StoredResult, self_test

LOOK_EVERY_S = 60.0
_FILE = "isolation-schedule.json"
_WHO = "the schedule"
_log = logging.getLogger(__name__)

Test = Callable[[Services, Deployment, Callable[[], bool]], StoredResult]


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """When a deployment's last turn began, in seconds since 1970, and how it ended: an outcome, or
    why it could not be tested."""

    at: float
    said: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """``every_s`` is 0 where nothing is tested by itself; ``next_at`` in seconds since 1970."""

    every_s: int
    last: Tried | None

    @property
    def next_at(self) -> float:
        """The next turn; 0 where it is due or there is none."""
        return self.last.at + self.every_s if self.last is not None and self.every_s else 0.0


def schedule_of(services: Services, deployment_id: str) -> Schedule:
    """What is planned for a deployment, and how its last turn went."""
    return Schedule(services.config.isolation.every_s, _read(services).get(deployment_id))


def run_due(services: Services, stopped: Callable[[], bool], test: Test | None = None) -> list[str]:
    """Test every running deployment whose turn it is; their ids.

    What one of them raises is put down as how its turn went. ``stopped`` ends the round early.
    """
    every_s, tested = services.config.isolation.every_s, []
    if not every_s:
        return []
    for found in services.deployments.list(deleted=False):
        if stopped():
            break
        tried, now = _read(services), services.now()
        last = tried.get(found.id)
        if found.state is not DeploymentState.RUNNING:
            continue
        if last is not None and 0 <= now - last.at < every_s:
            continue
        _note(services, found.id, Tried(at=now, said="begun"))
        said = _said(services, found, stopped, test or _test)
        # What the end of the control plane cut off is done again when it is back.
        _note(services, found.id, last if stopped() else Tried(at=now, said=said))
        tested.append(found.id)
    return tested


def _said(services: Services, found: Deployment, stopped: Callable[[], bool], test: Test) -> str:
    try:
        services.access_log.asked(found, "isolation self-test", _WHO)
        return test(services, found, stopped).result.outcome.value
    except KvrunError as error:
        _log.warning("%s was not tested for isolation: %s", found.spec.name, error.message)
        return error.message
    except Exception:
        _log.exception("%s was not tested for isolation", found.spec.name)
        return "it failed; the control plane's own messages say how"


def _test(services: Services, found: Deployment, stopped: Callable[[], bool]) -> StoredResult:
    return self_test(
        services.deployments.config_of(found.id),
        found.config_file,
        Options(),
        now=services.now,
        stopped=stopped,
    )


def _read(services: Services) -> dict[str, Tried]:
    try:
        return _TRIED.decode((services.home / _FILE).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return {}  # tested once more


def _note(services: Services, deployment_id: str, tried: Tried | None) -> None:
    known = {item.id for item in services.deployments.list(deleted=False)} - {deployment_id}
    kept = {name: last for name, last in _read(services).items() if name in known}
    if tried is not None:
        kept[deployment_id] = tried
    replace_private_file(services.home / _FILE, msgspec.json.encode(kept, order="sorted"))


_TRIED = msgspec.json.Decoder(dict[str, Tried])
