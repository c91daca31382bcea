"""Where an adapter finds the daemon: a socket and a launch token, nothing secret inline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvrun.errors import KvrunError

TOKEN_FILE_VARIABLE = "KVRUN_ENGINE_TOKEN_FILE"  # noqa: S105 - a variable's name, not a secret
SOCKET_VARIABLE = "KVRUN_SOCKET"
START_TIMEOUT_S = 30.0


class AdapterSettingsError(KvrunError):
    """The engine was started without something that the adapter needs."""


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Where the daemon listens, and this engine's launch token.

    ``model_fingerprint`` (hex) stands for the digest of the model's files where they are not here.
    """

    socket: Path
    token: str
    model_fingerprint: str | None


def find_daemon(
    socket: object,
    fingerprint: object = None,
    environment: Mapping[str, str] = os.environ,
    *,
    prefix: str = "",
    where: str = "the engine's configuration",
) -> AdapterSettings:
    """The settings, from ``socket`` or the environment.

    ``prefix`` stands before the names of the variables, for engines that pass only some on.

    Raises:
        AdapterSettingsError: a value is missing or unreadable.
    """
    socket = socket or environment.get(prefix + SOCKET_VARIABLE)
    if not isinstance(socket, str):
        raise AdapterSettingsError(
            "the engine does not know the instance daemon's socket",
            hint=f"set it in {where} or in {prefix + SOCKET_VARIABLE}",
        )
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise AdapterSettingsError(f"the model's fingerprint must be text, not {fingerprint!r}")
    default = str(Path(socket).parent / "engine.token")
    token_file = Path(environment.get(prefix + TOKEN_FILE_VARIABLE, default))
    try:
        token = token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AdapterSettingsError(
            f"the engine's launch token {token_file} cannot be read: {error}",
            hint=f"start the instance daemon first, or set {prefix + TOKEN_FILE_VARIABLE}",
        ) from error
    return AdapterSettings(Path(socket), token, fingerprint)
