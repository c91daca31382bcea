"""The commented ``kvrun.toml`` that ``kvrun init`` writes."""

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from kvrun.config import KvrunConfig
from kvrun.config.schema import Setting, settings
from kvrun.config.values import format_size

_WIDTH = 96


def render(chosen: Mapping[str, Any]) -> str:
    """The file's text: ``chosen`` (dotted keys) are set, everything else is a comment."""
    lines = [
        "# kvrun.toml: one deployment. Every setting is listed with its default; remove the # to",
        "# change one. KVRUN_SECTION__KEY in the environment wins over this file.",
    ]
    sections: dict[str, list[Setting]] = {}
    for setting in settings(KvrunConfig):
        sections.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    # A nested section comes after its parent's own settings: TOML has one place for each.
    for name in sorted(sections, key=lambda name: list(sections).index(name.split(".")[0])):
        # An optional section must stay away as a whole while it is not used.
        lines += ["", f"[{name}]" if "." not in name else f"# [{name}]"]
        for setting in sections[name]:
            key = setting.key.rpartition(".")[2]
            lines += [f"# {line}" for line in textwrap.wrap(setting.description, _WIDTH)]
            if setting.key in chosen:
                lines.append(f"{key} = {to_toml(key, chosen[setting.key])}")
            else:
                lines.append(f"# {key} = {to_toml(key, setting.default)}")
    return "\n".join(lines) + "\n"


def to_toml(key: str, value: Any) -> str:
    """A default as TOML; what has none is shown as empty text to fill in."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and key.endswith("_bytes") and value >= 1 << 20:
        return json.dumps(format_size(value))
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return json.dumps(list(value))
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return json.dumps(str(value))
    return '""'
