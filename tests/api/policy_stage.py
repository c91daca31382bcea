"""A deployment that follows a policy repository, with placements and refusals on its record."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from kvrun.audit.record import AuditEvent, Event, Outcome, encode_event, format_time
from kvrun.audit.segment import segment_name
from kvrun.config import KvrunConfig
from kvrun.deployments.model import Deployment
from kvrun.deployments.service import Deployments
from kvrun.policy.bundle import TenantEntry
from kvrun.policy.setup import facts_of, folder_of, settings_of
from kvrun.policy.sync import PolicySync
from policy.policies import EU, US, Repository

EVE, ULI, NIL = "e" * 32, "a1" * 16, "b2" * 16
"""Tenants of the classes eu and us, and one of whom nothing is known."""
STRICTER = EU.replace("[gpu, memory, disk, object]", "[gpu, memory]").replace(
    "tier: disk\n    expect: allow", "tier: memory\n    expect: allow"
)
SECRET = "a secret of the policy repository"


@dataclass
class PolicyStage:
    """``first`` is in force; ``second`` is on the branch ``stricter`` and was never fetched."""

    deployment: Deployment
    config_file: Path
    config: KvrunConfig
    repository: Repository
    first: str
    second: str

    def sync(self) -> str:
        """Follow the repository once, as ``kvrun policy sync`` does; how that ended."""
        settings = settings_of(self.config)
        assert settings is not None
        following = PolicySync(
            folder_of(self.config),
            settings,
            lambda: facts_of(self.config),
            now=time.time,
            clock=time.monotonic,
        )
        return following.run().outcome


def connect(
    deployments: Deployments, made: Deployment, folder: Path, *, mode: str = "warn"
) -> PolicyStage:
    """Have a deployment follow a new repository in ``folder``."""
    repository = Repository(folder / f"policies-{made.id}")
    first = repository.commit({"eu.yaml": EU, "us.yaml": US})
    repository.git("checkout", "-q", "-b", "stricter")
    second = repository.commit({"eu.yaml": STRICTER})
    repository.git("checkout", "-q", "main")
    secret = folder / f"secret-{made.id}"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    deployments.config_of(made.id)  # from now on its file is there
    file = deployments.get(made.id).config_file
    settings = (
        f'\n[residency]\nrepository = "{repository.folder}"\nregion = "eu-west-1"\n'
        f'storage_region = "eu-central-1"\nmode = "{mode}"\nwebhook_secret_file = "{secret}"\n'
    )
    file.write_text(file.read_text() + settings)
    config = deployments.config_of(made.id)
    stage = PolicyStage(made, file, config, repository, first, second)
    folder_of(config).put_tenants(
        [
            TenantEntry(tenant_ref=EVE, tenant_class="eu"),
            TenantEntry(tenant_ref=ULI, tenant_class="us"),
        ]
    )
    assert stage.sync() == "activated"
    write_log(config, first)
    return stage


def write_log(config: KvrunConfig, revision: str) -> None:
    """Records of the last hour, and one that is older than a week."""
    warned = {"reason": "residency: unknown_attributes eu x2", "tier": "disk"}
    denied = {"reason": "residency: region_not_allowed us x3", "tier": "gpu"}
    left = {"reason": "residency: tier_not_allowed eu", "tier": "object"}
    events = [
        _of(Event.KEY_CREATED, EVE),
        _of(Event.ALLOCATED, EVE),
        _of(Event.SEALED, EVE, tier="memory", blocks=4, bytes=4096),
        _of(Event.PERSISTED, EVE, tier="memory", tier_to="disk", blocks=4, bytes=4096),
        _of(Event.EVICTED, EVE, blocks=2, bytes=2048, **left),
        _of(Event.KEY_CREATED, NIL),
        _of(Event.SEALED, NIL, tier="memory", blocks=1, bytes=1024),
        _of(Event.PERSISTED, NIL, tier="memory", tier_to="disk", blocks=1, bytes=1024),
        _of(Event.DENIED, NIL, outcome=Outcome.OK, **warned),
        _of(Event.DENIED, ULI, outcome=Outcome.DENIED, **denied),
        _of(Event.DENIED, "", outcome=Outcome.DENIED,
            reason="residency: 7 more placements have no record"),
    ]  # fmt: skip
    old = [_of(Event.DENIED, ULI, outcome=Outcome.DENIED, **denied)]
    begin = time.time()
    lines = [
        encode_event(
            event,
            log="w/d/i",
            epoch=0,
            seq=seq,
            prev="0" * 64,
            ts=format_time(begin - (700_000 if seq < len(old) else 3600) + seq),
        )
        for seq, event in enumerate([*old, *(_at(event, revision) for event in events)])
    ]
    config.layout.audit.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = config.layout.audit / segment_name(0)
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def _of(event: Event, who: str, **rest: object) -> AuditEvent:
    session = who and f"{who[:2]}" * 16
    return AuditEvent(event=event, tenant_ref=who, session_ref=session, **rest)  # type: ignore[arg-type]


def _at(event: AuditEvent, revision: str) -> AuditEvent:
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return AuditEvent(**{**fields, "policy_revision": revision})
