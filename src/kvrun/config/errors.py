"""Configuration errors: each names the key, the bad value and what is allowed."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvrun.config.schema import field_at, keys_at
from kvrun.errors import KvrunError


class ConfigError(KvrunError):
    """The configuration cannot be used as it stands."""

    exit_code = 2
    status = 500


def translate(
    error: ValidationError, model: type[BaseModel], origins: Mapping[str, str], source: str
) -> ConfigError:
    """A ConfigError that lists every problem of ``error``.

    ``origins`` maps dotted keys to the environment variable that set them; every other key came
    from ``source``.
    """
    lines = [_describe(item, model, origins, source) for item in error.errors(include_url=False)]
    return ConfigError("\n".join(line for line, _ in lines), hint=_join_hints(lines))


def _describe(
    item: ErrorDetails, model: type[BaseModel], origins: Mapping[str, str], source: str
) -> tuple[str, str | None]:
    path = tuple(str(part) for part in item["loc"])
    key = ".".join(path)
    where = next((origins[prefix] for prefix in _prefixes(path) if prefix in origins), source)
    kind = item["type"]
    if kind == "extra_forbidden":
        return _unknown_key(path, where, model)
    if kind == "missing":
        return f"{where}: {key} is missing", _allowed(item, path, model)
    if kind == "value_error" and isinstance(item["input"], dict | BaseModel):
        section = f"[{key}] " if key else ""
        return f"{where}: {section}{_reason(item)}", None
    return (
        f"{where}: {key} = {_shown(item['input'])} is not valid: {_reason(item)}",
        _allowed(item, path, model),
    )


def _unknown_key(
    path: tuple[str, ...], where: str, model: type[BaseModel]
) -> tuple[str, str | None]:
    known = keys_at(model, path[:-1])
    close = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
    section = ".".join(path[:-1])
    what = "setting" if section else "section"
    message = f"{where}: {'.'.join(path)} is not a known {what}"
    if close:
        return message, f"did you mean {'.'.join((*path[:-1], close[0]))}?"
    return message, f"allowed{' in ' + section if section else ''}: {', '.join(sorted(known))}"


def _reason(item: ErrorDetails) -> str:
    text = item["msg"]
    for prefix in ("Value error, ", "Assertion failed, ", "Input should be ", "Input should "):
        if text.startswith(prefix):
            text = text[len(prefix) :]
            break
    if item["type"] in ("value_error", "assertion_error"):
        return text
    return _PLAIN.get(item["type"], f"must be {text}" if "Input should" in item["msg"] else text)


_PLAIN = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "path_type": "must be a path",
    "dict_type": "must be a table",
    "model_type": "must be a section (a table)",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
}


def _allowed(item: ErrorDetails, path: tuple[str, ...], model: type[BaseModel]) -> str | None:
    field = field_at(model, path)
    if field is None:
        return None
    limits = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    bounds = [
        f"{words} {getattr(rule, name)}"
        for rule in field.metadata
        for name, words in limits.items()
        if getattr(rule, name, None) is not None
    ]
    parts = [" and ".join(bounds)] if bounds else []
    context: Mapping[str, Any] = item.get("ctx", {})
    if "expected" in context:
        parts = [f"allowed: {context['expected']}"]
    elif parts:
        parts = [f"allowed: {parts[0]}"]
    if field.description:
        parts.append(field.description)
    return "; ".join(parts) or None


def _shown(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _prefixes(path: tuple[str, ...]) -> list[str]:
    return [".".join(path[:end]) for end in range(len(path), 0, -1)]


def _join_hints(lines: list[tuple[str, str | None]]) -> str | None:
    hints = list(dict.fromkeys(hint for _, hint in lines if hint))
    return "\n  ".join(hints) or None
