"""Deleting a deployment's data: the log collected, keys erased and certified, ciphertext removed,
the rest of the log collected.

Every step finds out what an earlier try did, so that one which was cut short anywhere goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kvrun.config import KvrunConfig
from kvrun.config.layout import storage_prefix
from kvrun.control.closing import store_rest
from kvrun.control.collector import CollectOutcome
from kvrun.control.plane import ControlPlane
from kvrun.control.rounds import run_round
from kvrun.deployments.errors import WrongStateError
from kvrun.deployments.folder import close_gateway, remove_data
from kvrun.deployments.launcher import Launcher, Site
from kvrun.deployments.machine import KILL_AFTER_S
from kvrun.deployments.model import Deployment
from kvrun.erasure.archive import CertificateArchive
from kvrun.erasure.certificate import RequestKind
from kvrun.errors import KvrunError
from kvrun.instance.connection import InstanceUnavailableError
from kvrun.instance.parts import certificates_folder
from kvrun.keys.opening import copies_folder
from kvrun.launch.admin import NotRunningError
from kvrun.launch.erasing import erase, plan_erasure

DELETION_REFERENCE = "deletion of "
"""How the references of deletions begin; nobody else's may."""
_POLL_S = 0.1
_AT_ONCE = 8
_KIND = {"kind": RequestKind.DEPLOYMENT.value}


@dataclass(frozen=True, slots=True)
class Deleted:
    """What came of a deletion. ``certificates`` are ids; none where there never was a key.

    ``openings`` (by certificate id) prove which deployment a certificate is about; they are given
    out here only, and those of a try that was cut short are lost.
    """

    deployment: Deployment
    certificates: tuple[str, ...]
    openings: Mapping[str, str]


def delete_data(
    site: Site,
    launcher: Launcher,
    requester: str,
    *,
    ours: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[tuple[str, ...], dict[str, str], str]:
    """Do it; the certificates' ids, the openings of those that were made now, and what of the log
    Storage holds for another time than it should.

    The log is evidence, so it is collected up to now before a key goes. Raises WrongStateError
    where somebody else (not ``ours``) runs it still, and what a step raises; call it again then.
    """
    openings: dict[str, str] = {}
    if ours:
        close_gateway(site.config)
    elif launcher.observe(site).alive:
        raise WrongStateError(
            "the deployment is run by somebody else and runs still", hint="Stop it there first."
        )
    unread = "" if certified(site) else _collect_now(site)
    if ours:
        # First with the engines there, which then zero their pages and say so.
        if not certified(site) and not unread:
            openings |= _erase(site, requester, offline=False)
        _stop(site, launcher, clock, sleep)
        # What a daemon did not give out is read from its folder.
        if unread:
            unread = _collect_now(site)
    _require_read(unread)
    # A request that was let in meanwhile may have made new keys.
    openings |= _erase(site, requester, offline=True)
    # Before the log is collected: without keys nothing opens it again, so it has its last record.
    remove_data(site.config, site.folder if ours else None)
    remove_packs(site.config)
    held = _collect(site)
    return certified(site), openings, held


def remove_packs(config: KvrunConfig) -> int:
    """Delete sealed blocks and key slots in the workspace's object store, whatever wrote them; how
    many objects that were. Log and certificates stay. Raises StorageError.
    """
    if config.storage.url is None:
        return 0
    deployment = config.deployment
    storage = ControlPlane(config).storage()
    kv = f"{storage_prefix(deployment.workspace, deployment.name)}/kv"
    keys = copies_folder(deployment.workspace, deployment.name)
    names = [item.name for folder in (kv, keys) for item in storage.list(folder)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(storage.delete, names):
            pass
    return len(names)


def certified(site: Site) -> tuple[str, ...]:
    """The ids of the certificates of this deletion, oldest first."""
    archive = CertificateArchive(certificates_folder(site.config))
    return tuple(
        statement.id
        for statement in archive.statements()
        if statement.request.reference == _reference(site)
        and statement.request.kind is RequestKind.DEPLOYMENT
    )


def _erase(site: Site, requester: str, *, offline: bool) -> dict[str, str]:
    """Erase what keys there are; nothing where no daemon answers and it may not do without."""
    if offline and not site.config.layout.keys.is_dir():
        return {}
    try:
        if certified(site) and not plan_erasure(site.config, _KIND, offline=offline).tenants:
            return {}
        asked = {
            **_KIND,
            "requester": requester,
            "reference": _reference(site),
            "confirmed": "yes",
        }
        done = erase(site.config, asked, offline=offline)
    except (NotRunningError, InstanceUnavailableError):
        if offline:
            raise
        return {}
    return {done.id: done.opening}


def _stop(
    site: Site, launcher: Launcher, clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    deadline = clock() + KILL_AFTER_S
    launcher.terminate(site)
    while launcher.observe(site).alive:
        if clock() >= deadline:
            launcher.kill(site)
        else:
            launcher.terminate(site)
        sleep(_POLL_S)


def _collect(site: Site) -> str:
    """The log up to its last record; what of it stays held otherwise than asked, in words."""
    if not site.config.layout.audit.is_dir():
        return ""
    _require_read(_collect_now(site))
    return "; ".join(store_rest(ControlPlane(site.config)))


def _collect_now(site: Site) -> str:
    """One round of the collector; why the log could not be read, empty where it was.

    One whose collection an alert stopped stays where it is.
    """
    if not site.config.layout.audit.is_dir():
        return ""
    report = run_round(ControlPlane(site.config), reason="deployment is being deleted")
    away = (item for item in report.logs if item.outcome is CollectOutcome.UNAVAILABLE)
    return next((item.message for item in away), "")


def _require_read(why: str) -> None:
    if why:
        raise KvrunError(f"the log cannot be collected yet: {why}")


def _reference(site: Site) -> str:
    return f"{DELETION_REFERENCE}{site.deployment_id}"
