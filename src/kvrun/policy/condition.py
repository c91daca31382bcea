"""Conditions of policies in CEL, bounded before they are parsed and watched while they run.

CEL has no loops but its macros over lists. What a macro may cost is bounded here by the size of
the text and by allowing no macro inside another; nesting is bounded because a parser that goes too
deep ends the process. What is left is measured: an evaluation that takes too long refuses the
revision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import cel

from kvrun.policy.errors import PolicyError

MAX_CHARS = 1024
MAX_DEPTH = 16
MAX_MACROS = 4
MAX_TOKENS = 300
MAX_EVALUATION_S = 0.05
MAX_TOTAL_S = 10.0
_TEXT = re.compile(r"""[rRbB]{0,2}(?:"[^"\n]*"|'[^'\n]*')""")
_TOKEN = re.compile(r"[A-Za-z_]\w*|[0-9][\w.]*|[^\s\w]")
_MACRO = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter)\s*\(")
_CHAIN = re.compile(r"(?:[!-]\s*){6,}")
_MATCHES = re.compile(r"\bmatches\b")


class ConditionError(PolicyError):
    """A condition that cannot be used."""


@dataclass(slots=True)
class Budget:
    """The time that evaluations may take. ``clock`` in seconds, best of the thread's own processor
    time: on a busy machine a good condition may take long by the wall clock."""

    clock: Callable[[], float]
    left_s: float = MAX_TOTAL_S
    evaluations: int = field(default=0)

    def run(self, evaluate: Callable[[], object]) -> object:
        """What ``evaluate`` gives. Raises ConditionError where it, or all together, took long."""
        began = self.clock()
        try:
            return evaluate()
        finally:
            took = self.clock() - began
            self.evaluations += 1
            self.left_s -= took
            if took > MAX_EVALUATION_S:
                raise ConditionError(
                    f"one evaluation took {took * 1000:.0f} ms; {MAX_EVALUATION_S * 1000:.0f} ms"
                    " are allowed"
                )
            if self.left_s < 0:
                raise ConditionError(
                    f"the conditions took more than {MAX_TOTAL_S:g} s together"
                    f" ({self.evaluations} evaluations)"
                )


class Condition:
    """A compiled condition. ``text`` is its source."""

    def __init__(self, text: str) -> None:
        """Raises ConditionError for what is too large, or no CEL."""
        _check(text)
        self.text = text
        try:
            self._program = cel.compile(text)
        except Exception as error:
            raise ConditionError(f"this is no CEL: {_short(error)}") from None

    def holds(self, variables: Mapping[str, object], budget: Budget) -> bool | None:
        """Whether it holds; None where it cannot be said (an attribute that is not there).

        Raises ConditionError where it takes too long.
        """
        value = budget.run(lambda: self._execute(variables))
        return value if isinstance(value, bool) else None

    def try_out(self, variables: Mapping[str, object], budget: Budget) -> None:
        """Raise ConditionError for a name that does not exist, or a result that is no bool."""
        try:
            value = budget.run(lambda: self._program.execute(dict(variables)))
        except ConditionError:
            raise
        except Exception as error:
            if "undefined variable or function" in str(error).lower():
                raise ConditionError(_short(error)) from None
            return  # an attribute that this example lacks
        if not isinstance(value, bool):
            raise ConditionError(f"it gives {type(value).__name__}, not true or false")

    def _execute(self, variables: Mapping[str, object]) -> object:
        try:
            return self._program.execute(dict(variables))
        except Exception:
            return None


def _check(text: str) -> None:
    if len(text) > MAX_CHARS:
        raise ConditionError(f"{len(text)} characters; {MAX_CHARS} are allowed")
    # With these it is CEL's grammar that says where a text ends, and code could pass for text here.
    if "\\" in text or any(quotes in text for quotes in ('"""', "'''")):
        raise ConditionError("backslashes, and texts in three quotes, are not read")
    bare = _TEXT.sub(" 0 ", text)
    if '"' in bare or "'" in bare:
        raise ConditionError("a text without an end is not read")
    if "//" in bare:
        raise ConditionError("comments are not read: YAML has its own")
    tokens = len(_TOKEN.findall(bare))
    if tokens > MAX_TOKENS:
        raise ConditionError(f"{tokens} words and signs; {MAX_TOKENS} are allowed")
    if _MATCHES.search(bare):
        raise ConditionError("matches() is not allowed: use startsWith, endsWith or contains")
    if _CHAIN.search(bare):
        raise ConditionError("a chain of ! or - is not allowed")
    macros = [match.end() - 1 for match in _MACRO.finditer(bare)]
    if len(macros) > MAX_MACROS:
        raise ConditionError(f"{len(macros)} macros over lists; {MAX_MACROS} are allowed")
    depth = inside = 0
    opened: list[bool] = []
    for position, sign in enumerate(bare):
        if sign in "([{":
            depth += 1
            is_macro = position in macros
            if is_macro and inside:
                raise ConditionError("a macro over a list inside another is not allowed")
            inside += is_macro
            opened.append(is_macro)
        elif sign in ")]}" and opened:
            depth -= 1
            inside -= opened.pop()
        if depth > MAX_DEPTH:
            raise ConditionError(f"nested more than {MAX_DEPTH} deep")
    if bare.count("?") > MAX_DEPTH:
        raise ConditionError(f"more than {MAX_DEPTH} choices (? :)")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
