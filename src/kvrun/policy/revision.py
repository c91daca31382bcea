"""A revision: every document of a repository's policies folder at one commit, checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvrun.policy.condition import Budget, Condition, ConditionError
from kvrun.policy.document import ResidencyPolicy
from kvrun.policy.errors import PolicyRejectedError, Problem
from kvrun.policy.source import MAX_FILE_BYTES, Node, place_of, plain, read_documents

MAX_FILES = 256
MAX_TOTAL_BYTES = 8 << 20
MAX_RULES = 1000
_EXAMPLE: dict[str, object] = {
    "tenant": {"class": "", "region": "", "labels": {}},
    "workspace": "",
    "deployment": "",
    "model": "",
    "engine": "",
    "instance": {"region": ""},
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A document and where it stands."""

    policy: ResidencyPolicy
    file: str
    line: int
    when_at: tuple[int, int]
    tests_at: tuple[tuple[int, int], ...]
    condition: Condition | None

    @property
    def name(self) -> str:
        """The document's name."""
        return self.policy.metadata.name

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Revision:
    """Rules in the order of files and lines; ``id`` is a commit, or a word where there is none."""

    id: str
    rules: tuple[Rule, ...]


def parse_revision(
    files: Mapping[str, bytes],
    revision_id: str,
    clock: Callable[[], float] = time.thread_time,
) -> Revision:
    """The revision in ``files``, content by path.

    Raises PolicyRejectedError with every problem that was found, each with file, line and column.
    """
    total = sum(map(len, files.values()))
    if len(files) > MAX_FILES or total > MAX_TOTAL_BYTES:
        raise PolicyRejectedError([Problem(_first(files), 1, 1, _too_much(len(files), total))])
    problems: list[Problem] = []
    rules: list[Rule] = []
    for file in sorted(files):
        try:
            documents = read_documents(files[file], file)
        except PolicyRejectedError as error:
            problems += error.problems
            continue
        for node in documents:
            rule = _rule(node, file, problems)
            if rule is not None:
                rules.append(rule)
    if len(rules) > MAX_RULES:
        last = rules[MAX_RULES]
        problems.append(Problem(last.file, last.line, 1, f"more than {MAX_RULES} documents"))
        rules = rules[:MAX_RULES]
    _check_names(rules, problems)
    _try_conditions(rules, problems, Budget(clock))
    if problems:
        raise PolicyRejectedError(problems)
    return Revision(revision_id, tuple(rules))


def _rule(node: Node, file: str, problems: list[Problem]) -> Rule | None:
    if not isinstance(node.value, dict):
        problems.append(Problem(file, node.line, node.column, "a document is a mapping"))
        return None
    try:
        policy = ResidencyPolicy.model_validate(plain(node))
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False):
            line, column = place_of(node, detail["loc"])
            problems.append(Problem(file, line, column, _message(detail)))
        return None
    when_at = _value_place(node, "when")
    condition = None
    if policy.when is not None:
        try:
            condition = Condition(policy.when)
        except ConditionError as error:
            problems.append(Problem(file, *when_at, f"when: {error.message}"))
            return None
    tests_at = tuple(place_of(node, ("tests", index)) for index in range(len(policy.tests)))
    return Rule(policy, file, node.line, when_at, tests_at, condition)


def _value_place(node: Node, key: str) -> tuple[int, int]:
    value = node.value.get(key) if isinstance(node.value, dict) else None
    return (value.line, value.column) if value is not None else (node.line, node.column)


def _check_names(rules: list[Rule], problems: list[Problem]) -> None:
    seen: dict[str, Rule] = {}
    for rule in rules:
        first = seen.setdefault(rule.name, rule)
        if first is not rule:
            text = f"the name {rule.name} is taken by {first.where}"
            problems.append(Problem(rule.file, rule.line, 1, text))


def _try_conditions(rules: list[Rule], problems: list[Problem], budget: Budget) -> None:
    for rule in rules:
        if rule.condition is not None:
            try:
                rule.condition.try_out(_EXAMPLE, budget)
            except ConditionError as error:
                problems.append(Problem(rule.file, *rule.when_at, f"when: {error.message}"))


def _message(detail: Any) -> str:
    path = ".".join(str(part) for part in detail["loc"] if part != "[key]")
    text = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        return f"{path} is not known here"
    if detail["type"] == "missing":
        return f"{path} is missing"
    return f"{path}: {text}"


def _first(files: Mapping[str, bytes]) -> str:
    return max(files, key=lambda name: len(files[name]), default="policies")


def _too_much(count: int, total: int) -> str:
    return (
        f"{count} files of {total} bytes together; {MAX_FILES} files of at most {MAX_FILE_BYTES}"
        f" and {MAX_TOTAL_BYTES} bytes together are allowed"
    )
