"""Text of others on a terminal: shown, never obeyed.

An engine's log, a name or a reason may hold control sequences that move the cursor, rename the
window or hide lines. On a terminal colours and control characters are left out; what goes to a file
or a pipe is left as it is.
"""

import re
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""They change the order in which a line is shown."""
# Left out and not replaced: Rich lays text out as if they had no width.
_CONTROLS = dict.fromkeys(
    [*(code for code in range(0x20) if chr(code) not in "\t\n"), *range(0x7F, 0xA0), *_DIRECTIONS]
)


def harmless(text: str) -> str:
    """The text as a terminal may have it."""
    if text.isascii() and text.isprintable():
        return text
    return _COLOURS.sub("", text).translate(_CONTROLS)


class HarmlessStream:
    """A terminal's stream through which no control sequence passes, but for those of Rich.

    Rich writes to ``rich_proxied_file`` itself, and SafeConsole makes harmless what it is given.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write what is left of ``text``; its length."""
        self.rich_proxied_file.write(harmless(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """As ``write``, one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.rich_proxied_file, name)


class SafeConsole(Console):
    """A console that leaves control characters of what it prints out."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See Console."""
        for segment in super().render(renderable, options):
            if segment.control is None and self.is_terminal:
                yield Segment(harmless(segment.text), segment.style)
            else:
                yield segment


def guard_terminal() -> None:
    """From here on what is printed to a terminal is harmless."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            setattr(sys, name, HarmlessStream(stream))
