"""Where an instance and its Storage are said to be, and where they were seen to be. Pure.

What was seen decides nothing by itself: it can only contradict. A place that is elsewhere than it
is said to be is in no region that a policy could name, so only ``*`` fits it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from kvrun.policy.document import Tier
from kvrun.policy.matching import InstanceFacts, Place

_PLACES = re.compile(r"; instance in (\S*); storage in (\S*)$")


class Standing(StrEnum):
    """What is known of a region that the configuration declares."""

    UNVERIFIED = "unverified"
    VERIFIED = "verified"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Observed:
    """Regions that were seen; empty where nobody could be asked."""

    instance: str = ""
    storage: str = ""


@dataclass(frozen=True, slots=True)
class Standings:
    """How what was declared stands against what was seen."""

    instance: Standing = Standing.UNVERIFIED
    storage: Standing = Standing.UNVERIFIED


def standings(facts: InstanceFacts, observed: Observed) -> Standings:
    """Both places of an instance. A region that is not declared is not contradicted."""
    return Standings(
        _standing(facts.region, observed.instance),
        _standing(facts.place(Tier.OBJECT).region, observed.storage),
    )


def believed(facts: InstanceFacts, observed: Observed) -> InstanceFacts:
    """What decisions rest on: a place that is elsewhere than declared is in no named region."""
    found, storage = standings(facts, observed), facts.place(Tier.OBJECT)
    if found.storage is Standing.MISMATCH:
        storage = Place("", storage.storage_class)
    region = "" if found.instance is Standing.MISMATCH else facts.region
    return _at(facts, region, storage)


def places_text(facts: InstanceFacts) -> str:
    """The end of a ``policy_activated`` record's reason: where decisions put instance and Storage.

    Regions have no spaces, so that it can be read again.
    """
    return f"; instance in {facts.region}; storage in {facts.place(Tier.OBJECT).region}"


def places_of(reason: str) -> tuple[str, str] | None:
    """Regions of instance and Storage by such a reason; None for another."""
    found = _PLACES.search(reason)
    return (found[1], found[2]) if found is not None else None


def placed(facts: InstanceFacts, reason: str) -> InstanceFacts:
    """The facts with the regions that such a reason names; as they are for another reason."""
    found = places_of(reason)
    if found is None:
        return facts
    return _at(facts, found[0], replace(facts.place(Tier.OBJECT), region=found[1]))


def _at(facts: InstanceFacts, region: str, storage: Place) -> InstanceFacts:
    return replace(facts, region=region, places={**facts.places, Tier.OBJECT: storage})


def _standing(declared: str, observed: str) -> Standing:
    if not declared or not observed:
        return Standing.UNVERIFIED
    return Standing.VERIFIED if declared == observed else Standing.MISMATCH
