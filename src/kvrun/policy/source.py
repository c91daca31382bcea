"""YAML with the place of everything in it, bounded before anything is built.

Only the plain core of YAML is read: mappings with text keys, lists and scalars, which all stay
text (no ``no`` becomes a boolean). Anchors, aliases and tags are refused, so that a small file
cannot stand for a large one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from kvrun.policy.errors import PolicyRejectedError, Problem

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 12
MAX_NODES = 100_000
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it begins. ``keys`` are the places of a mapping's keys."""

    value: str | list[Node] | dict[str, Node] | None
    line: int
    column: int
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)


def read_documents(data: bytes, file: str) -> list[Node]:
    """The documents of a file; empty ones are left out.

    Raises PolicyRejectedError with the first problem: size, encoding, syntax, a feature of YAML
    that is not read, nesting, or a key that appears twice.
    """
    if len(data) > MAX_FILE_BYTES:
        raise _rejected(file, 1, 1, f"{len(data)} bytes; a file may have {MAX_FILE_BYTES}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _rejected(file, line, 1, "this is not UTF-8 text") from None
    try:
        return list(_Builder(file).documents(yaml.parse(text, Loader=_LOADER)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _rejected(file, line, column, str(error.problem or error.context)) from None
    except yaml.YAMLError as error:
        raise _rejected(file, 1, 1, str(error).splitlines()[0]) from None


def plain(node: Node) -> object:
    """The value without places."""
    if isinstance(node.value, dict):
        return {key: plain(value) for key, value in node.value.items()}
    if isinstance(node.value, list):
        return [plain(value) for value in node.value]
    return node.value


def place_of(node: Node, path: Sequence[int | str]) -> tuple[int, int]:
    """Line and column of what ``path`` leads to, or of the last part of it that exists."""
    line, column = node.line, node.column
    for part in path:
        if isinstance(node.value, dict) and str(part) in node.value:
            line, column = node.keys[str(part)]
            node = node.value[str(part)]
        elif isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line, column = node.line, node.column
    return line, column


class _Builder:
    """Nodes from events; bounded in depth and number before memory is spent."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._nodes = 0

    def documents(self, events: Iterator[Any]) -> Iterator[Node]:
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                node = self._node(next(events), events, 0)
                if node.value is not None:
                    yield node

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        self._nodes += 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _rejected(self._file, line, column, "anchors and aliases (& and *) are not read")
        if event.tag is not None and event.tag != "!":
            raise _rejected(self._file, line, column, f"the tag {event.tag[:60]} is not read")
        if depth > MAX_DEPTH:
            raise _rejected(self._file, line, column, f"nested more than {MAX_DEPTH} deep")
        if self._nodes > MAX_NODES:
            raise _rejected(self._file, line, column, f"more than {MAX_NODES} values in a file")
        if isinstance(event, yaml.ScalarEvent):
            # A plain scalar: libyaml gives the empty text as its style, the Python parser None.
            is_null = event.style in (None, "") and event.value in _NULLS
            return Node(None if is_null else event.value, line, column)
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(list(self._items(events, depth)), line, column)
        return self._mapping(events, depth, line, column)

    def _items(self, events: Iterator[Any], depth: int) -> Iterator[Node]:
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                return
            yield self._node(event, events, depth + 1)

    def _mapping(self, events: Iterator[Any], depth: int, line: int, column: int) -> Node:
        values: dict[str, Node] = {}
        keys: dict[str, tuple[int, int]] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._node(event, events, depth + 1)
            if not isinstance(key.value, str):
                raise _rejected(self._file, key.line, key.column, "a key must be text")
            if key.value in values:
                raise _rejected(
                    self._file, key.line, key.column, f"the key {key.value[:60]!r} appears twice"
                )
            keys[key.value] = (key.line, key.column)
            values[key.value] = self._node(next(events), events, depth + 1)
        return Node(values, line, column, keys)


def _rejected(file: str, line: int, column: int, text: str) -> PolicyRejectedError:
    return PolicyRejectedError([Problem(file, line, column, text)])
