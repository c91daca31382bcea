"""Reading a JSON body so that nobody downstream can read it differently.

JSON parsers differ on repeated keys: one keeps the first, another the last. A body with a
repeated key is refused, at any depth, and what the engine gets is always written anew.
"""

import json
import math
from typing import NoReturn

import msgspec

from kvrun.gateway.errors import GatewayError

JsonObject = dict[str, object]


def parse_object(body: bytes) -> JsonObject:
    """The JSON object in ``body`` (UTF-8, RFC 8259). Raises GatewayError 400."""
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise _bad_json("the body is not UTF-8") from None
    except RecursionError:
        raise _bad_json("the body is nested too deeply") from None
    except ValueError as error:
        raise _bad_json(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _bad_json("the body must be a JSON object")
    return value


def encode_object(value: JsonObject) -> bytes:
    """The object as JSON. Raises GatewayError 400 for what JSON text cannot carry safely."""
    try:
        return _ENCODER.encode(value)
    except (ValueError, RecursionError):
        raise _bad_json(
            "the body holds a value that cannot be passed on: a broken Unicode escape, or nesting"
            " too deep"
        ) from None


def _object(pairs: list[tuple[str, object]]) -> JsonObject:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _bad_json(f"the key {key[:64]!r} stands twice in one JSON object")
            seen.add(key)
    return result


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _bad_json(f"the number {text[:32]} is too large")
    return value


def _constant(name: str) -> NoReturn:
    raise _bad_json(f"the body is not valid JSON: {name} is not a JSON value")


def _bad_json(message: str) -> GatewayError:
    return GatewayError(message, code="invalid_json")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
_ENCODER = msgspec.json.Encoder()
