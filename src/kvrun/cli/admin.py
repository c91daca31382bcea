"""Asking the running daemon."""

from collections.abc import Mapping
from typing import Any

import msgspec

from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.instance.client import AdminClient


class NotRunningError(KvrunError):
    """No daemon runs on this data folder."""

    exit_code = 3


def ask(config: KvrunConfig, operation: str, arguments: Mapping[str, str] | None = None) -> Any:
    """The daemon's answer to one admin operation, decoded from JSON.

    Raises NotRunningError when no daemon can be reached, else what the daemon refused with.
    """
    try:
        token = config.layout.admin_token.read_text(encoding="ascii").strip()
    except OSError as error:
        raise NotRunningError(
            f"no instance daemon runs on {config.instance.data_dir}: "
            f"{config.layout.admin_token}: {error.strerror}",
            hint="start it with `kvrun up` or `kvrun instance`, as the same user",
        ) from None
    try:
        client = AdminClient(config.instance_socket, token)
    except OSError as error:
        raise NotRunningError(
            f"the instance daemon does not answer on {config.instance_socket}: {error.strerror}",
            hint="start it with `kvrun up` or `kvrun instance`",
        ) from None
    with client:
        return msgspec.json.decode(client.call(operation, arguments))
