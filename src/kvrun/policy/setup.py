"""What a configuration says about residency, in the words of this package."""

from __future__ import annotations

from kvrun.config import KvrunConfig
from kvrun.policy.bundle import PolicyFolder
from kvrun.policy.document import Tier
from kvrun.policy.matching import InstanceFacts, Place
from kvrun.policy.observed import believed
from kvrun.policy.sync import SyncSettings


def facts_of(config: KvrunConfig) -> InstanceFacts:
    """The instance of a configuration and where its tiers are."""
    residency, deployment = config.residency, config.deployment
    storage = Place(residency.storage_region or residency.region, residency.storage_class)
    return InstanceFacts(
        workspace=deployment.workspace,
        deployment=deployment.name,
        model=deployment.served_model_name or deployment.model,
        engine=config.engine.kind,
        region=residency.region,
        places={Tier.OBJECT: storage},
    )


def asked_of(config: KvrunConfig) -> str:
    """Who is asked where instance and Storage are: another is to be asked anew."""
    bucket = config.storage.url if config.residency.bucket_location and config.object_tier else ""
    return f"{config.residency.instance_metadata} {bucket}"


def believed_facts(config: KvrunConfig) -> InstanceFacts:
    """What the daemon's decisions rest on: a place that was seen elsewhere is in no region."""
    return believed(facts_of(config), folder_of(config).seen(asked_of(config)))


def folder_of(config: KvrunConfig) -> PolicyFolder:
    """Where the active policy is kept."""
    return PolicyFolder(config.layout.residency)


def settings_of(config: KvrunConfig) -> SyncSettings | None:
    """Which repository is followed; None where none is connected."""
    residency = config.residency
    if residency.repository is None:
        return None
    return SyncSettings(
        repository=residency.repository,
        ref=residency.ref,
        path=residency.path,
        require_signed=residency.require_signed,
        allowed_signers=residency.allowed_signers,
        allow_rewind=residency.allow_rewind,
        timeout_s=residency.timeout_s,
        ssh_key_file=residency.ssh_key_file,
        token_file=residency.token_file,
        ca_file=residency.ca_file,
    )
