"""The commented ``kvrun.toml`` that ``kvrun init`` writes."""

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from kvrun.config import KvrunConfig
from kvrun.config.schema import Setting, settings
from kvrun.config.values import format_size

_WIDTH = 96

GATEWAY_NOTES: Mapping[str, str] = {
    "gateway.host": "Address to listen on; anything but loopback needs TLS or behind_proxy.",
    "gateway.port": "Port to listen on.",
    "gateway.tls_cert": "Certificate chain (PEM).",
    "gateway.tls_key": "Private key (PEM).",
    "gateway.behind_proxy": "true where a proxy on this machine or network speaks TLS in front.",
    "gateway.engine_url": "Engine on this machine; unset: the one that `kvrun up` starts.",
    "gateway.engine_api_key_file": "File with the engine's own API key, if it wants one.",
    "gateway.instance_socket": "Socket of the daemon; unset: instance.socket.",
    "gateway.claim_key_file": "Private key that signs claims, for `kvrun gateway` run alone.",
    "gateway.state_dir": "Where it remembers having seen a tenant; unset: gateway in data_dir.",
    "gateway.tenant_from": '"header", "jwt:CLAIM", "body:safety_identifier" or "body:user".',
    "gateway.tenant_header": "Header that names the tenant.",
    "gateway.session_header": "Header that names the session.",
    "gateway.multi_tenant": "true: a request without a tenant gets 400.",
    "gateway.mixed": "true: requests without a tenant stay allowed beside those with one.",
    "gateway.require_auth": "false: no API key is asked for (loopback or behind a proxy only).",
    "gateway.api_keys_file": "API keys (hashes); unset: api_keys.json in data_dir.",
    "gateway.max_body_bytes": "Largest request body in bytes.",
    "gateway.max_sessions_cached": "Sessions whose salt is kept in memory.",
    "gateway.claim_lifetime_s": "How long a signed claim is valid (seconds).",
    "gateway.session_timeout_s": "Longest wait for the daemon's answer (seconds).",
    "gateway.body_timeout_s": "Longest wait for a request's body (seconds).",
    "gateway.connect_timeout_s": "Longest wait for a connection to the engine (seconds).",
    "gateway.response_timeout_s": "Longest wait for the engine's next bytes (seconds).",
    "gateway.jwt.issuer": "Who issues the tokens (iss).",
    "gateway.jwt.audience": "For whom they are issued (aud).",
    "gateway.jwt.jwks_url": "Where the issuer's keys are (https, or http on loopback).",
    "gateway.jwt.jwks_file": "The issuer's keys as a file, instead of jwks_url.",
    "gateway.jwt.algorithms": "Signature algorithms that are accepted.",
    "gateway.jwt.jwks_max_age_s": "How long fetched keys are kept (seconds).",
    "gateway.jwt.leeway_s": "Clock difference that is tolerated (seconds).",
}
"""One line for each setting of ``[gateway]``, whose class belongs to the gateway."""


def describe(setting: Setting) -> str:
    """A setting's one-line description."""
    return setting.description or GATEWAY_NOTES.get(setting.key, "")


def render(chosen: Mapping[str, Any]) -> str:
    """The file's text: ``chosen`` (dotted keys) are set, everything else is a comment."""
    lines = [
        "# kvrun.toml: one deployment. Every setting is listed with its default; remove the # to",
        "# change one. KVRUN_SECTION__KEY in the environment wins over this file.",
    ]
    sections: dict[str, list[Setting]] = {}
    for setting in settings(KvrunConfig):
        sections.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    # A nested section comes after its parent's own settings: TOML has one place for each.
    for name in sorted(sections, key=lambda name: list(sections).index(name.split(".")[0])):
        # An optional section must stay away as a whole while it is not used.
        lines += ["", f"[{name}]" if "." not in name else f"# [{name}]"]
        for setting in sections[name]:
            key = setting.key.rpartition(".")[2]
            lines += [f"# {line}" for line in textwrap.wrap(describe(setting), _WIDTH)]
            if setting.key in chosen:
                lines.append(f"{key} = {to_toml(key, chosen[setting.key])}")
            else:
                lines.append(f"# {key} = {to_toml(key, setting.default)}")
    return "\n".join(lines) + "\n"


def to_toml(key: str, value: Any) -> str:
    """A default as TOML; what has none is shown as empty text to fill in."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and key.endswith("_bytes") and value >= 1 << 20:
        return json.dumps(format_size(value))
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return json.dumps(list(value))
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return json.dumps(str(value))
    return '""'
