"""What is wrong with a policy, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvrun.errors import KvrunError

_SHOWN = 20


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong. Lines and columns count from 1; a file as a whole is 1:1."""

    file: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.text}"


class PolicyError(KvrunError):
    """A policy, or what should be done with one, is not right."""


class PolicyUnreadableError(PolicyError):
    """A file could not be read now; what it says may be right."""


class PolicyBusyError(PolicyError):
    """Another process looks at the repository for long."""

    exit_code = 3
    status = 409


class PolicyRejectedError(PolicyError):
    """A revision that cannot be used; ``problems`` says where and why."""

    def __init__(self, problems: Sequence[Problem], *, hint: str | None = None) -> None:
        self.problems = tuple(sorted(problems))
        lines = [str(problem) for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"and {len(self.problems) - _SHOWN} more")
        super().__init__("\n".join(lines), hint=hint)
