"""What ``kv_connector_extra_config`` may say to the adapter."""

from __future__ import annotations

import os
from collections.abc import Mapping

from kvrun.engines.settings import AdapterSettings, AdapterSettingsError, find_daemon

SOCKET_KEY = "kvrun.socket"
FINGERPRINT_KEY = "kvrun.model_fingerprint"
_KNOWN = {SOCKET_KEY, FINGERPRINT_KEY, "spec_name", "spec_module_path", "offload_prompt_only"}


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
    fingerprint = extra_config.get(FINGERPRINT_KEY)
    if fingerprint is not None and not isinstance(fingerprint, str):
        raise AdapterSettingsError(f"{FINGERPRINT_KEY} must be text, not {fingerprint!r}")
    return find_daemon(
        extra_config.get(SOCKET_KEY),
        fingerprint,
        environment,
        where=f"{SOCKET_KEY!r} of kv_connector_extra_config",
    )
