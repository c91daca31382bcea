"""What the adapter must know to find the daemon: a socket and a token, nothing secret inline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvrun.errors import KvrunError

SOCKET_KEY = "kvrun.socket"
FINGERPRINT_KEY = "kvrun.model_fingerprint"
_KNOWN = {SOCKET_KEY, FINGERPRINT_KEY, "spec_name", "spec_module_path", "offload_prompt_only"}
TOKEN_FILE_VARIABLE = "KVRUN_ENGINE_TOKEN_FILE"  # noqa: S105 - a variable's name, not a secret
SOCKET_VARIABLE = "KVRUN_SOCKET"
START_TIMEOUT_S = 30.0


class AdapterSettingsError(KvrunError):
    """The engine was started without something that the adapter needs."""


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Where the daemon listens, and this engine's launch token."""

    socket: Path
    token: str
    model_fingerprint: str | None


def adapter_settings(
    extra_config: Mapping[str, object], environment: Mapping[str, str] = os.environ
) -> AdapterSettings:
    """The settings in ``kv_connector_extra_config`` and the environment.

    Raises:
        AdapterSettingsError: a value is missing, unknown or unreadable.
    """
    unknown = sorted(set(extra_config) - _KNOWN)
    if unknown:
        raise AdapterSettingsError(
            f"kv_connector_extra_config has the unknown key {unknown[0]!r}",
            hint=f"known are {SOCKET_KEY} and {FINGERPRINT_KEY}",
        )
    socket = extra_config.get(SOCKET_KEY) or environment.get(SOCKET_VARIABLE)
    if not isinstance(socket, str):
        raise AdapterSettingsError(
            "the engine does not know the instance daemon's socket",
            hint=f"set {SOCKET_KEY!r} in kv_connector_extra_config or {SOCKET_VARIABLE}",
        )
    fingerprint = extra_config.get(FINGERPRINT_KEY)
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise AdapterSettingsError(f"{FINGERPRINT_KEY} must be text, not {fingerprint!r}")
    default = str(Path(socket).parent / "engine.token")
    token_file = Path(environment.get(TOKEN_FILE_VARIABLE, default))
    try:
        token = token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AdapterSettingsError(
            f"the engine's launch token {token_file} cannot be read: {error}",
            hint=f"start the instance daemon first, or set {TOKEN_FILE_VARIABLE}",
        ) from error
    return AdapterSettings(Path(socket), token, fingerprint)
