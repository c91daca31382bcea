"""``[log]``: how the processes' own logs look; the audit log has a section of its own."""

from typing import Literal

from kvrun.config.values import Section, setting


class LogSection(Section):
    """The logs of daemon, gateway, collector and control plane."""

    format: Literal["text", "json"] = setting(
        "text", '"json": one JSON object a line, for log collectors; "text": for people.'
    )
