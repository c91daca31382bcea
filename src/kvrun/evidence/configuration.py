"""What protects a deployment by default, since when, and what its log shows of that. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kvrun.audit.record import Count, format_time
from kvrun.evidence.logs import LogFacts, SettingsFact
from kvrun.evidence.period import Period
from kvrun.evidence.scope import Site
from kvrun.instance.settings_record import (
    SettingsEntry,
    parse_settings,
    protecting_settings,
)

FORMAT = "kvrun-configuration/v2"
_NO_SWITCH = (
    "No setting turns it off: a block that cannot be sealed is not stored, and one that does not "
    "open is computed again."
)


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """One protection. ``since`` is the first time that is known of it; ``shown_by`` counts records
    of the period that show it at work."""

    on_by_default: bool
    since: str
    how: str
    can_be_turned_off: str
    shown_by: dict[str, Count]


class SettingFact(msgspec.Struct, frozen=True, kw_only=True):
    """A setting at the end of the period; ``since`` is "" where no record says since when: it has
    the value at least since then."""

    value: str
    since: str


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that another start of the daemon, in the period, had otherwise."""

    at: str
    setting: str
    before: str
    after: str


class DeploymentConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment. ``settings`` are those at the end of the period, ``changes`` those in it;
    ``on_record`` is false where they are only what the data folder or the configuration says."""

    id: str
    name: str
    since: str
    encryption: Protection
    isolation: Protection
    on_record: bool
    settings: dict[str, SettingFact]
    changes: list[SettingChange]


class Configurations(msgspec.Struct, frozen=True, kw_only=True):
    """``configuration.json``."""

    format: str = FORMAT
    deployments: list[DeploymentConfiguration]


def configuration_of(
    site: Site, logs: Sequence[LogFacts], kept: Sequence[SettingsEntry], period: Period
) -> DeploymentConfiguration:
    """What is said of one deployment. ``kept`` is what its data folder says of earlier starts: it
    counts as no record, and says since when of nothing."""

    def counted(*events: str) -> dict[str, int]:
        return {name: sum(log.counts.get(name, 0) for log in logs) for name in events}

    earlier = [
        SettingsFact(at=format_time(item.at), text=item.text)
        for item in kept
        if format_time(item.at) < period.since
    ]
    recorded = sorted((fact for log in logs for fact in log.settings), key=lambda fact: fact.at)
    settings, changes = history_of(earlier, recorded)
    created = format_time(site.created_at) if site.created_at else ""
    known = [at for at in (created, settings["encryption"].since if settings else "") if at]
    since = min((at for at in known if at < period.until), default="")
    kept_last = parse_settings(earlier[-1].text) if earlier else {}
    unsigned = kept_last or protecting_settings(site.config)
    said = {name: SettingFact(value=value, since="") for name, value in unsigned.items()}
    return DeploymentConfiguration(
        id=site.id,
        name=site.spec.name,
        since=created if created < period.until else "",
        encryption=Protection(
            on_by_default=True,
            since=since,
            how="AES-256-GCM for every block that leaves the engine's memory, under a key of its"
            " session.",
            can_be_turned_off=_NO_SWITCH,
            shown_by=counted("sealed", "opened", "integrity_failure"),
        ),
        isolation=Protection(
            on_by_default=True,
            since=since,
            how="Keys, prefix-cache salt, block names and reuse have one scope: deployment, tenant"
            " and session.",
            can_be_turned_off="No setting widens the scope. Where no tenant has to be named, the"
            " deployment is one tenant: see multi_tenant.",
            shown_by=counted("key_created", "reused", "denied"),
        ),
        on_record=bool(settings),
        settings=dict(sorted((settings or said).items())),
        changes=changes,
    )


def history_of(
    earlier: Iterable[SettingsFact], recorded: Iterable[SettingsFact]
) -> tuple[dict[str, SettingFact], list[SettingChange]]:
    """The settings after all that is ``recorded``, each since when, and the changes that it made.

    Both are in the order of their times. The first that is known of a setting is no change.
    """
    known: dict[str, str] = {}
    for fact in earlier:
        known |= parse_settings(fact.text)
    settings: dict[str, SettingFact] = {}
    changes: list[SettingChange] = []
    for fact in recorded:
        for name, value in sorted(parse_settings(fact.text).items()):
            before = known.get(name)
            known[name] = value
            if name not in settings or before != value:
                settings[name] = SettingFact(value=value, since=fact.at)
            if before is not None and before != value:
                changes.append(SettingChange(at=fact.at, setting=name, before=before, after=value))
    return settings, changes


def encode_configuration(found: Sequence[DeploymentConfiguration]) -> bytes:
    """``configuration.json``: indented, with sorted keys."""
    whole = Configurations(deployments=list(found))
    return msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=2) + b"\n"


def decode_configuration(data: bytes) -> Mapping[str, DeploymentConfiguration]:
    """The deployments in ``configuration.json``, by id. Raises msgspec.MsgspecError."""
    found = msgspec.json.decode(data, type=Configurations)
    return {item.id: item for item in found.deployments}
