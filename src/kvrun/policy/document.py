"""The policy document: what it matches, what it allows, and the tests that it carries.

Specified in docs/spec/residency-policy.md; ``schema_text`` is the JSON Schema that is published
there.
"""

from __future__ import annotations

import json
import re
from enum import IntEnum
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)

from kvrun.config.values import parse_size

MAX_ITEMS = 64
MAX_TESTS = 64


class Tier(IntEnum):
    """Where blocks can be; GPU memory stands for being processed at all."""

    GPU = 0
    MEMORY = 1
    DISK = 2
    OBJECT = 3


TIER_NAMES = tuple(tier.name.lower() for tier in Tier)


def _pattern(text: str) -> str:
    if "*" in text[:-1]:
        raise ValueError("a star may stand at the end only")
    return text


def parse_duration(value: object) -> int:
    """Seconds from text such as ``30m``. Raises ValueError."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('a duration is text such as "45s", "30m", "12h" or "7d"')
    return int(match[1]) * _SECONDS[match[2]]


_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]
Word = Annotated[str, StringConstraints(max_length=128, pattern=r"^[\x21-\x7e]*$")]
Pattern = Annotated[
    str,
    StringConstraints(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$"),
    AfterValidator(_pattern),
]
LabelText = Annotated[str, StringConstraints(max_length=256)]
Patterns = Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=MAX_ITEMS)]
LabelPatterns = Annotated[tuple[LabelText, ...], Field(min_length=1, max_length=MAX_ITEMS)]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
Sentence = Annotated[str, StringConstraints(max_length=300, pattern=r"^[\x20-\x7e]*$")]
TierName = Literal["gpu", "memory", "disk", "object"]
Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "pattern": f"^{_DURATION.pattern}$"}),
]
Size = Annotated[
    int,
    BeforeValidator(lambda value: parse_size(int(value) if _is_whole(value) else value)),
    Field(ge=0),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "maxLength": 40}]}
    ),
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Metadata(_Part):
    """What the document is called."""

    name: Name = Field(description="Unique in the repository; audit records and errors name it.")


class Match(_Part):
    """Whom the document is about; what is left out matches everything.

    A star at a pattern's end stands for any rest. Tenants' attributes are those of the tenant
    registry; where one that is asked for is not known, the document matches for the worse.
    """

    workspaces: Patterns | None = Field(default=None, description="Workspaces of deployments.")
    deployments: Patterns | None = Field(default=None, description="Names of deployments.")
    classes: Patterns | None = Field(default=None, description="Classes of tenants.")
    tenant_regions: Patterns | None = Field(default=None, description="Regions of tenants.")
    labels: Annotated[dict[LabelKey, LabelPatterns], Field(max_length=16)] | None = Field(
        default=None, description="Labels of tenants: one of the listed values each."
    )
    models: Patterns | None = Field(default=None, description="Models that are served.")
    engines: Patterns | None = Field(default=None, description="Engines: vllm, ...")
    instance_regions: Patterns | None = Field(default=None, description="Regions of instances.")


class Allow(_Part):
    """Where blocks of those may be; nothing else is allowed."""

    tiers: Annotated[tuple[TierName, ...], Field(max_length=len(TIER_NAMES))] = Field(
        description="gpu: may be processed there; memory, disk, object: sealed blocks may be there."
    )
    regions: Patterns = Field(description="Regions in which that holds.")
    storage_classes: Patterns = Field(("*",), description="Storage classes of the object tier.")
    ttl: Duration | None = Field(default=None, description="Longest life of a sealed block.")
    max_bytes: Size | None = Field(
        default=None, description="Sealed bytes of one tenant in a tier."
    )


class TestTenant(_Part):
    """The tenant of a test."""

    __test__ = False  # what pytest collects is something else

    tenant_class: Word = Field(default="", alias="class")
    region: Word = ""
    labels: Annotated[dict[LabelKey, LabelText], Field(max_length=16)] = Field(default_factory=dict)


class InlineTest(_Part):
    """What the whole revision must decide in one case."""

    name: Sentence = ""
    tenant: TestTenant = TestTenant()
    workspace: Word = "default"
    deployment: Word = "default"
    model: Word = ""
    engine: Word = "vllm"
    instance_region: Word = Field(default="", description="Where the instance is.")
    tier: TierName
    region: Word | None = Field(
        default=None, description="Where the tier is; by default the instance's."
    )
    storage_class: Word = ""
    expect: Literal["allow", "deny"]


class ResidencyPolicy(_Part):
    """One document."""

    api_version: Literal["kvrun.dev/v1"] = Field(alias="apiVersion")
    kind: Literal["ResidencyPolicy"]
    metadata: Metadata
    match: Match = Match()
    when: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None, description="A condition in CEL over tenant and instance, besides match."
    )
    allow: Allow
    reason: Sentence = Field(
        default="", description="Why; it stands in audit records and explanations."
    )
    tests: Annotated[tuple[InlineTest, ...], Field(max_length=MAX_TESTS)] = ()


def schema_text() -> str:
    """The JSON Schema of a document."""
    schema = ResidencyPolicy.model_json_schema(by_alias=True)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://kvrun.dev/schemas/residency-policy-v1.json",
        **schema,
    }
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def _is_whole(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19
