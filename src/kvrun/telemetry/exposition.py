"""Prometheus's text format, with the labels that say which deployment a process serves."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric

__all__ = ["CONTENT_TYPE_LATEST", "Labelled", "MetricSource", "deployment_labels", "render"]


class MetricSource(Protocol):
    """Whatever gives metric families when asked; a CollectorRegistry is one."""

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A source whose samples carry ``labels`` besides their own."""

    source: MetricSource
    labels: Mapping[str, str]

    def collect(self) -> Iterator[Metric]:
        """See MetricSource."""
        for family in self.source.collect():
            family.samples = [
                sample._replace(labels={**self.labels, **sample.labels})
                for sample in family.samples
            ]
            yield family


def deployment_labels(workspace: str, deployment: str) -> dict[str, str]:
    """The labels that every metric of a deployment's process carries."""
    return {"workspace": workspace, "deployment": deployment}


def render(*sources: MetricSource) -> bytes:
    """All families in Prometheus's text format; those of one name become one."""
    # generate_latest needs nothing of a registry but this one method.
    return generate_latest(cast(CollectorRegistry, _Joined(sources)))


@dataclass(frozen=True, slots=True)
class _Joined:
    sources: tuple[MetricSource, ...]

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for source in self.sources:
            for family in source.collect():
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples = [*known.samples, *family.samples]
        return families.values()
