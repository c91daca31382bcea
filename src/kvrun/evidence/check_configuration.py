"""Whether what a bundle says of settings over time is what its records say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kvrun.evidence.archive import Archive
from kvrun.evidence.configuration import DeploymentConfiguration, decode_configuration, history_of
from kvrun.evidence.errors import BundleFormatError
from kvrun.evidence.logs import SettingsFact
from kvrun.evidence.manifest import CONFIGURATION_NAME
from kvrun.evidence.period import Period
from kvrun.evidence.report import BundleCheck, CheckResult, Findings
from kvrun.instance.settings_record import SETTINGS_PREFIX

_MAX_BYTES = 64 << 20


def check_configuration(
    archive: Archive, period: Period, deployments: Iterable[str], rows: Iterable[Mapping[str, str]]
) -> CheckResult:
    """``deployments``: their ids. ``rows``: those of the list ``deployment_changes``."""
    found = Findings(BundleCheck.CONFIGURATION)
    recorded: dict[str, list[SettingsFact]] = {}
    for row in rows:
        if row["what"].startswith(SETTINGS_PREFIX):
            fact = SettingsFact(at=row["at"], text=row["what"])
            recorded.setdefault(row["deployment"], []).append(fact)
    try:
        stated = decode_configuration(archive.read(CONFIGURATION_NAME, _MAX_BYTES))
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BundleFormatError(f"it is malformed: {error}", name=CONFIGURATION_NAME) from None
    if set(stated) != set(deployments):
        found.fail(CONFIGURATION_NAME, "it is about other deployments")
    changes = 0
    for name, configuration in stated.items():
        facts = sorted(recorded.get(name, ()), key=lambda fact: fact.at)
        if problem := _problem(configuration, facts, period):
            found.fail(CONFIGURATION_NAME, f"{name}: {problem}")
        changes += len(configuration.changes)
    return found.result(
        f"{len(stated)} deployment(s), {changes} change(s) of settings, as recorded"
    )


def _problem(stated: DeploymentConfiguration, recorded: list[SettingsFact], period: Period) -> str:
    """What does not fit; empty where all of it does."""
    at_end, within = history_of((), recorded)
    for setting, fact in at_end.items():
        if setting not in stated.settings or stated.settings[setting].value != fact.value:
            return f"{setting} is not what was recorded last: {fact.value}"
    known = [(item.at, item.setting, item.before, item.after) for item in stated.changes]
    for change in within:
        if (change.at, change.setting, change.before, change.after) not in known:
            return f"it lacks the change of {change.setting} at {change.at}"
    texts = {(fact.at, pair) for fact in recorded for pair in fact.text.split()}
    for item in stated.changes:
        if (item.at, f"{item.setting}={item.after}") not in texts:
            return f"no record shows the change of {item.setting} at {item.at}"
    for setting, value in stated.settings.items():
        if period.has(value.since) and (value.since, f"{setting}={value.value}") not in texts:
            return f"no record shows {setting} at {value.since}"
    return ""
