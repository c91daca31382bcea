"""Reading something of each deployment of a workspace, of which one may be unreadable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from kvrun.deployments.model import Deployment
from kvrun.deployments.service import Deployments
from kvrun.errors import KvrunError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """A deployment that could not be read, and why."""

    deployment_id: str
    deployment_name: str
    why: str


def read_each(
    deployments: Deployments,
    workspace_id: str,
    read: Callable[[Deployment], Iterable[T]],
    deployment_id: str | None = None,
) -> tuple[list[T], tuple[Problem, ...]]:
    """What ``read`` finds in each deployment, deleted ones included, or in one.

    What it raises for one, such as a configuration that cannot be read, is that one's problem.
    """
    rows: list[T] = []
    problems: list[Problem] = []
    for item in deployments.list(workspace_id):
        if deployment_id not in (None, item.id):
            continue
        try:
            rows += list(read(item))
        except KvrunError as error:
            problems.append(Problem(item.id, item.spec.name, error.message))
        except OSError as error:
            problems.append(Problem(item.id, item.spec.name, error.strerror or "it is unreadable"))
    return rows, tuple(problems)
