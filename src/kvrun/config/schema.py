"""Walking the configuration's classes: which keys exist, what each means."""

import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: dotted ``key``, its description and its default value."""

    key: str
    description: str
    default: Any


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """Every setting below ``model``, sections walked in the order of their fields."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        nested = _model_of(field.annotation)
        if nested is not None:
            yield from settings(nested, f"{key}.")
        else:
            default = field.get_default(call_default_factory=True, validated_data={})
            yield Setting(key, field.description or "", default)


def field_at(model: type[BaseModel], path: Sequence[str]) -> FieldInfo | None:
    """The field that a dotted path leads to, or None; list positions are ignored."""
    current: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for part in path:
        if current is None or part not in current.model_fields:
            return field
        field = current.model_fields[part]
        current = _model_of(field.annotation)
    return field


def keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys allowed below ``path``; empty where the path leads to no section."""
    current: type[BaseModel] | None = model
    for part in path:
        if current is None or part not in current.model_fields:
            return []
        current = _model_of(current.model_fields[part].annotation)
    return list(current.model_fields) if current is not None else []


def is_free_table(model: type[BaseModel], path: Sequence[str]) -> bool:
    """Whether ``path`` is a table whose keys people choose themselves (``engine.env``)."""
    field = field_at(model, path)
    return field is not None and typing.get_origin(field.annotation) is dict


def _model_of(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            found = _model_of(part)
            if found is not None:
                return found
    if typing.get_origin(annotation) is typing.Annotated:
        return _model_of(typing.get_args(annotation)[0])
    return None
