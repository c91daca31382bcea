"""Names and addresses that people type. Each check raises InvalidError that names the field."""

import re

from kvrun.accounts.errors import InvalidError

MAX_NAME_CHARS = 128


def check_name(value: str, field: str) -> str:
    """A name for people to read: 1 to 128 printable characters, no space at its ends."""
    if not 1 <= len(value) <= MAX_NAME_CHARS or not value.isprintable() or value != value.strip():
        raise InvalidError(
            f"{field} must be 1 to {MAX_NAME_CHARS} printable characters without spaces at the ends"
        )
    return value


def check_workspace_name(value: str) -> str:
    """A workspace's name: it is part of paths and keys, and never changes."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", value):
        raise InvalidError(
            "a workspace's name is 1 to 63 of A-Z a-z 0-9 . _ - and begins with a letter or digit"
        )
    return value


def check_email(value: str) -> str:
    """An e-mail address in lower case."""
    if len(value) > 254 or not re.fullmatch(
        r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", value
    ):
        raise InvalidError("email must be an address such as name@example.com")
    return value.lower()


def check_deployment_id(value: str | None) -> str | None:
    """A deployment's id as callers name it, or none."""
    return None if value is None else check_word(value, "deployment_id", 128)


def is_id(value: str) -> bool:
    """Whether it could be an id of ours; nothing else is looked up in the database."""
    return re.fullmatch(r"[a-z0-9-]{1,32}", value) is not None


def check_word(value: str, field: str, max_chars: int) -> str:
    """A word for programs: printable ASCII without spaces."""
    if not re.fullmatch(r"[\x21-\x7e]+", value) or len(value) > max_chars:
        raise InvalidError(
            f"{field} must be 1 to {max_chars} printable ASCII characters without spaces"
        )
    return value
