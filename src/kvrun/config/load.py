"""Reading ``kvrun.toml`` and the ``KVRUN_SECTION__KEY`` environment variables."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvrun.config.defaults import complete
from kvrun.config.document import KvrunConfig
from kvrun.config.errors import ConfigError, translate
from kvrun.config.schema import is_free_table

DEFAULT_FILE = "kvrun.toml"
ENV_PREFIX = "KVRUN_"


def load_config(path: Path, environ: Mapping[str, str]) -> KvrunConfig:
    """The configuration of ``path``, with the variables of ``environ`` on top.

    Relative folders are taken from the file's own folder. Raises ConfigError for a file that is
    missing, unreadable or not TOML, and for every setting that is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file",
            hint=f"`kvrun init` writes one; --config names another ({path})",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return parse_config(text, environ, source=path)


def parse_config(
    text: str, environ: Mapping[str, str], *, source: Path = Path(DEFAULT_FILE)
) -> KvrunConfig:
    """The configuration written in ``text``; ``source`` names it in errors and roots its paths."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{source} is not valid TOML: {error}", hint="see docs/configuration.md for an example"
        ) from error
    origins = _overlay(document, environ)
    complete(document, source.absolute().parent)
    try:
        return KvrunConfig.model_validate(document)
    except ValidationError as error:
        raise translate(error, KvrunConfig, origins, str(source)) from None


def _overlay(document: dict[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Put environment values into ``document``; return dotted key -> variable name."""
    origins: dict[str, str] = {}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or "__" not in name:
            continue
        path = _path_of(name)
        table = document
        for part in path[:-1]:
            below = table.setdefault(part, {})
            if not isinstance(below, dict):
                raise ConfigError(f"{name}: {part} is a value, not a section")
            table = below
        table[path[-1]] = _value_of(environ[name])
        origins[".".join(path)] = name
    return origins


def _path_of(name: str) -> tuple[str, ...]:
    path: list[str] = []
    for part in name.removeprefix(ENV_PREFIX).split("__"):
        # The keys of a free table are other people's names: their case counts.
        path.append(part if is_free_table(KvrunConfig, path) and path else part.lower())
    return tuple(path)


def _value_of(text: str) -> Any:
    """Lists and tables are written as in TOML; anything else is text for the setting's type."""
    if text[:1] in ("[", "{"):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    return text
