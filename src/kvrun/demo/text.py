"""About 3,000 tokens of real English text that every Python installation carries."""

from __future__ import annotations

from pydoc_data.topics import topics

_TOPICS = ("execmodel", "exceptions", "naming", "imports", "compound", "objects")


def long_text(characters: int) -> str:
    """The first ``characters`` of Python's own language reference, as ``help()`` shows it."""
    text = "\n\n".join(topics[name] for name in _TOPICS if name in topics)
    return text[:characters].rsplit(" ", 1)[0]
