"""The instance daemon's process: opens what it needs in order, serves, and closes in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvrun.audit.record import Event
from kvrun.cache.memory import MemoryTier
from kvrun.cache.state import BlockOwner
from kvrun.claims.claim import key_id_of
from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.instance.admin import AdminService
from kvrun.instance.audit_access import AuditAccess
from kvrun.instance.auditing import AuditWatch, Directory
from kvrun.instance.canary_release import CanaryRelease
from kvrun.instance.claim_keys import ClaimKeys
from kvrun.instance.erasures import Erasures
from kvrun.instance.instance import Instance
from kvrun.instance.key_access import KeyAccess
from kvrun.instance.known_engines import KnownEngines
from kvrun.instance.launch_secrets import LaunchSecrets
from kvrun.instance.lease_end import LeaseEnd
from kvrun.instance.metrics import InstanceMetrics, MetricsSource
from kvrun.instance.observing import Observer, bucket_region, instance_region
from kvrun.instance.parts import folder_lock, open_erasures, open_parts
from kvrun.instance.pinning import PinAccess
from kvrun.instance.residency import Residency, residency_operations
from kvrun.instance.scrubbing import SchedulerScrubber
from kvrun.instance.sealing import SealingThreads
from kvrun.instance.server import InstanceServer, ServerSettings
from kvrun.instance.settings_record import note_settings
from kvrun.instance.sweeping import SWEEP_REST, Pacer, Sweep
from kvrun.instance.taken_pages import TakenKeyPages
from kvrun.instance.transfers import Transfers
from kvrun.instance.usage import UsageAccess
from kvrun.process import HardenReport, harden_process
from kvrun.telemetry.endpoint import Probes, serving
from kvrun.telemetry.tracing import open_tracing

_HOUSEKEEPING_S = 1.0
_EXPIRY_EVERY_S = 30.0
_TURN_S = 2.0
_log = logging.getLogger(__name__)


def run(config: KvrunConfig, secrets: LaunchSecrets) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        KvrunError: something that the daemon cannot work without is missing; nothing was started.
    """
    hardened = harden_process()
    with (
        folder_lock(config.layout.data_dir),
        _open_instance(config, secrets, hardened) as opened,
    ):
        asyncio.run(_serve(opened, config))


@dataclass(slots=True)
class _Opened:
    server: InstanceServer
    instance: Instance
    watch: AuditWatch
    erasures: Erasures
    metrics: InstanceMetrics
    sweep: Sweep
    scrubber: SchedulerScrubber
    observer: Observer
    memory: MemoryTier[BlockOwner]


async def _serve(opened: _Opened, config: KvrunConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics, settings = opened.metrics, config.instance
    probes = Probes(lambda: _takes_turns(loop), metrics.readiness, metrics.render)
    with serving(probes, port=settings.metrics_port, socket_file=settings.metrics_socket):
        housekeeping = asyncio.gather(
            _keep_house(opened),
            _every_second(opened.sweep.run, opened.observer.run),
            _every_second(opened.memory.make_ready),
            _keep_following(opened),
        )
        try:
            await opened.server.serve(config.instance_socket, stop)
        finally:
            opened.sweep.stop()  # its thread would be waited for
            housekeeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await housekeeping


def _takes_turns(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the event loop runs what is given to it; asked from another thread."""
    turned = threading.Event()
    try:
        loop.call_soon_threadsafe(turned.set)
    except RuntimeError:
        return False
    return turned.wait(_TURN_S)


async def _keep_house(opened: _Opened) -> None:
    instance = opened.instance
    next_expiry = time.monotonic() + _EXPIRY_EVERY_S
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        await _in_thread(instance.cache.deliver_events)
        await _in_thread(instance.residency.refresh)
        await _in_thread(instance.residency.write_refusals)
        await _in_thread(instance.journal.write_owed)
        opened.watch.check()
        instance.handles.forget_finished(time.time())
        if time.monotonic() >= next_expiry:
            next_expiry = time.monotonic() + _EXPIRY_EVERY_S
            await _in_thread(instance.expire)
            await _in_thread(instance.cache.expire)
            await _in_thread(opened.erasures.retry)


async def _every_second(*steps: Callable[[], object]) -> None:
    """What may take long, beside the housekeeping."""
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        for step in steps:
            await _in_thread(step)


def _observer(config: KvrunConfig, residency: Residency) -> Observer:
    cloud, storage = config.residency.instance_metadata, config.storage
    asked = config.residency.bucket_location and config.object_tier
    return Observer(
        residency,
        instance=None if cloud == "off" else partial(instance_region, cloud),
        storage=partial(bucket_region, storage.url or "", storage.options) if asked else None,
    )


async def _keep_following(opened: _Opened) -> None:
    """What engines and other daemons confirm late."""
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        await _in_thread(opened.scrubber.look)
        await _in_thread(opened.erasures.follow_up)


async def _in_thread(step: Callable[[], object]) -> None:
    """One step of the housekeeping; what fails now is tried again the next time."""
    try:
        await asyncio.to_thread(step)
    except KvrunError as error:
        _log.warning("housekeeping waits: %s", error.message)
    except Exception:
        _log.exception("housekeeping failed")


@contextlib.contextmanager
def _open_instance(
    config: KvrunConfig, secrets: LaunchSecrets, hardened: HardenReport
) -> Iterator[_Opened]:
    """Everything behind the socket, opened in order and closed in reverse."""
    public_keys = [Ed25519PublicKey.from_public_bytes(raw) for raw in secrets.claim_public_keys]
    with contextlib.ExitStack() as stack:
        parts = stack.enter_context(open_parts(config, public_keys))
        if reason := config.deployment.unevaluated_reason:
            parts.journal.deployment_event(
                Event.DEPLOYMENT_STARTED,
                f"a model without a valid evaluation may be served: {reason}",
            )
            parts.journal.commit()  # or nothing starts
        note_settings(config, parts.journal, config.layout.settings_record, time.time)
        instance, memory, facts = parts.instance, parts.memory, parts.root
        threads = SealingThreads(config.instance.sealing_threads, config.instance.sealing_cpus)
        stack.callback(threads.close)
        instance.tracing = open_tracing("kvrun-instance", os.environ)
        stack.callback(instance.tracing.close)
        transfers = Transfers(
            instance.handles,
            parts.journal,
            threads,
            instance.residency.refusals,
            instance.tracing,
        )
        scrubber = SchedulerScrubber(
            deadline_s=config.erasure.engine_deadline_s,
            known=KnownEngines(config.layout.known_engines),
        )
        instance.on_expired = scrubber.expired
        lease_end = LeaseEnd(instance, transfers, scrubber)
        instance.keys.on_lease_end = lease_end
        instance.on_taken = TakenKeyPages(
            transfers, scrubber, lease_end, stateless=instance.stateless
        )
        erasures = stack.enter_context(open_erasures(config, parts, transfers, scrubber))
        admin = AdminService(
            instance,
            erasures,
            audit=parts.log.health,
            protections={
                "process": "not dumpable" if hardened.complete else "core dumps are possible",
                "keys": instance.keys.protection.value,
                "erasure": f"{facts.claim.value}: {facts.reason}",
                "staging": "no engine is connected",
                "memory_tier": "locked" if memory.locked else f"not locked: {memory.lock_error}",
            },
            key_copy_refused=parts.key_copy_refused,
        )
        admin.add(KeyAccess(instance.keys, parts.journal).operations())
        claim_keys = ClaimKeys(
            instance.verifier,
            {
                key_id_of(key): raw
                for key, raw in zip(public_keys, secrets.claim_public_keys, strict=True)
            },
            parts.journal,
            now=time.time,
            overlap_s=config.gateway.claim_lifetime_s,
        )
        admin.add(claim_keys.operations())
        admin.add(AuditAccess(parts.log).operations())
        admin.add({"whois": Directory(instance.keys, parts.journal).whois})
        sweep = Sweep(instance, Pacer(SWEEP_REST, asked=lambda: instance.cache.asked))
        instance.residency.on_new_table = sweep.begin
        admin.add(residency_operations(instance.residency))
        admin.add({"residency_sweep": lambda _: sweep.report()})
        admin.add(UsageAccess(instance).operations())
        admin.add(CanaryRelease(instance.keys, scrubber, instance.cache).operations())
        admin.add(PinAccess(instance).operations())
        server = InstanceServer(
            instance,
            transfers,
            admin,
            erasures,
            scrubber,
            claim_keys,
            ServerSettings(
                instance_id=parts.log_id,
                tokens=secrets.tokens(),
                context_window=config.deployment.context_window or 0,
                match_deadline_ms=config.instance.match_deadline_ms,
                transfer_deadline_ms=config.instance.load_deadline_ms,
                staging_bytes=config.instance.staging_bytes,
                strict=config.deployment.strict,
            ),
        )
        source = MetricsSource(
            instance,
            erasures,
            parts.log.health,
            config.instance.metrics_tenants,
            parts.key_copy_refused,
        )
        metrics = InstanceMetrics(source)
        watch = AuditWatch(parts.log.health)
        observer = _observer(config, instance.residency)
        yield _Opened(server, instance, watch, erasures, metrics, sweep, scrubber, observer, memory)
