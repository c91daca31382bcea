"""Asking the running daemon, with the admin token of its launch."""

from collections.abc import Mapping

from kvrun.config import KvrunConfig
from kvrun.errors import KvrunError
from kvrun.instance.client import AdminClient


class NotRunningError(KvrunError):
    """No daemon runs on this data folder."""

    exit_code = 3


def ask_daemon(
    config: KvrunConfig,
    operation: str,
    arguments: Mapping[str, str] | None = None,
    *,
    timeout_s: float = 60.0,
) -> bytes:
    """The daemon's answer to one admin operation, as JSON.

    Raises NotRunningError or InstanceUnavailableError when no daemon can be reached, else what the
    daemon refused with.
    """
    try:
        token = config.layout.admin_token.read_text(encoding="ascii").strip()
    except OSError as error:
        raise NotRunningError(
            f"no instance daemon runs on {config.instance.data_dir} "
            f"(its token cannot be read: {error.strerror})",
            hint="start it with `kvrun up` or `kvrun instance`, as the same user",
        ) from None
    with AdminClient(config.instance_socket, token) as client:
        return client.call(operation, arguments, timeout_s=timeout_s)
