"""The base of every wire message of the instance socket."""

import msgspec


class Message(msgspec.Struct, frozen=True, tag_field="t", forbid_unknown_fields=True):
    """Base of every message."""
