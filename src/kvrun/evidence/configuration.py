"""What protects a deployment by default, since when, and what its log shows of that. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvrun.audit.record import Count, format_time
from kvrun.evidence.logs import LogFacts
from kvrun.evidence.period import Period
from kvrun.evidence.scope import Site

FORMAT = "kvrun-configuration/v1"
_NO_SWITCH = (
    "No setting turns it off: a block that cannot be sealed is not stored, and one that does not "
    "open is computed again."
)


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """One protection. ``shown_by`` counts records of the period that show it at work."""

    on_by_default: bool
    how: str
    can_be_turned_off: str
    shown_by: dict[str, Count]


class DeploymentConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment. ``settings`` are those in force when the bundle was made; what was changed
    when stands in ``populations/deployment_changes.csv``."""

    id: str
    name: str
    since: str
    encryption: Protection
    isolation: Protection
    settings: dict[str, str]


class Configurations(msgspec.Struct, frozen=True, kw_only=True):
    """``configuration.json``."""

    format: str = FORMAT
    deployments: list[DeploymentConfiguration]


def configuration_of(
    site: Site, logs: Sequence[LogFacts], period: Period
) -> DeploymentConfiguration:
    """What is said of one deployment."""

    def counted(*events: str) -> dict[str, int]:
        return {name: sum(log.counts.get(name, 0) for log in logs) for name in events}

    config = site.config
    since = format_time(site.created_at) if site.created_at else ""
    return DeploymentConfiguration(
        id=site.id,
        name=site.spec.name,
        since=since if since < period.until else "",
        encryption=Protection(
            on_by_default=True,
            how="AES-256-GCM for every block that leaves the engine's memory, under a key of its"
            " session.",
            can_be_turned_off=_NO_SWITCH,
            shown_by=counted("sealed", "opened", "integrity_failure"),
        ),
        isolation=Protection(
            on_by_default=True,
            how="Keys, prefix-cache salt, block names and reuse have one scope: deployment, tenant"
            " and session.",
            can_be_turned_off="No setting widens the scope. Where no tenant has to be named, the"
            " deployment is one tenant: see multi_tenant.",
            shown_by=counted("key_created", "reused", "denied"),
        ),
        settings={
            "audit.mode": _text(config.audit.mode),
            "context_window": _text(site.spec.context_window or "the model's own"),
            "engine": site.spec.engine,
            "keys.root": config.keys.root_address.kind,
            "multi_tenant": _text(site.spec.multi_tenant),
            "stateless": _text(site.spec.stateless),
            "strict": _text(config.deployment.strict),
        },
    )


def encode_configuration(found: Sequence[DeploymentConfiguration]) -> bytes:
    """``configuration.json``: indented, with sorted keys."""
    whole = Configurations(deployments=list(found))
    return msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=2) + b"\n"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(getattr(value, "value", value))
