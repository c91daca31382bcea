"""Options of a deployment's specification, read into what the API takes."""

import typer

from kvrun.config.values import parse_size

_WORDS = {"true": True, "false": False}


def size_of(option: str, text: str | None) -> int | None:
    """Bytes from ``8GiB``; None where nothing was said. Raises BadParameter."""
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def labels_of(given: list[str]) -> dict[str, str] | None:
    """Labels by name; None where there are none. Raises BadParameter."""
    return dict(_pair(item, "--label") for item in given) or None


def settings_of(given: list[str]) -> dict[str, str | int | bool]:
    """Further settings by key: whole numbers, true and false, and text. Raises BadParameter."""
    return {key: _value(text) for key, text in (_pair(item, "--set") for item in given)}


def _pair(item: str, option: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{item[:80]!r} is not NAME=VALUE", param_hint=option)
    return name, value


def _value(text: str) -> str | int | bool:
    if text in _WORDS:
        return _WORDS[text]
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else text
