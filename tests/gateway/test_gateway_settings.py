import socket
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from kvrun.config.gateway import GatewaySettings
from kvrun.gateway.app import GatewayParts, build_proxy, check_settings
from kvrun.gateway.errors import GatewayConfigError
from kvrun.gateway.server import bind

JWT = {"issuer": "https://id", "audience": "kvrun", "jwks_url": "https://id/jwks"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"host": "0.0.0.0"}, "is reachable from other machines: set tls_cert and tls_key"),
        ({"host": "::"}, "is reachable from other machines"),
        ({"host": "example.org"}, "is reachable from other machines"),
        (
            {"host": "0.0.0.0", "tls_cert": "c", "tls_key": "k", "require_auth": False},
            "require_auth = false would let anyone who reaches 0.0.0.0 in",
        ),
        ({"tls_cert": "c"}, "tls_cert and tls_key belong together"),
        ({"tenant_from": "jwt:sub"}, "tenant_from = 'jwt:sub' needs the section gateway.jwt"),
        ({"tenant_from": "cookie"}, "allowed are header, jwt:<claim>"),
        ({"tenant_header": "X-A", "session_header": "x-a"}, "must differ"),
        ({"tenant_header": "X A"}, "a header name is 1 to 64 letters, digits and hyphens"),
        ({"tenant_header": "Authorization"}, "has another meaning in HTTP or in the engine"),
        ({"session_header": "X-Session-ID"}, "has another meaning in HTTP or in the engine"),
        ({"engine_url": "http://10.0.0.1:8000"}, "the engine must be on a Unix socket"),
        ({"engine_url": "http://127.0.0.1:99999"}, "the engine must be on a Unix socket"),
        ({"engine_url": "http://127.0.0.1:80@evil:80"}, "the engine must be on a Unix socket"),
        ({"engine_url": "https://127.0.0.1:80"}, "the engine must be on a Unix socket"),
        ({"jwt": {**JWT, "jwks_file": "f"}}, "set exactly one of jwks_url and jwks_file"),
        ({"jwt": {**JWT, "jwks_url": None}}, "set exactly one of jwks_url and jwks_file"),
        ({"jwt": {**JWT, "jwks_url": "http://id/jwks"}}, "jwks_url must be https"),
        ({"jwt": {**JWT, "algorithms": ["HS256"]}}, "Input should be"),
        ({"jwt": {**JWT, "algorithms": ["none"]}}, "Input should be"),
        ({"jwt": {**JWT, "algorithms": []}}, "at least one signature algorithm"),
        ({"port": 70000}, "less than or equal to 65535"),
        ({"claim_lifetime_s": 9999}, "less than or equal to 3600"),
        ({"tennant_from": "header"}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GatewaySettings(**settings)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"host": "::1"},
        {"host": "localhost"},
        {"host": "127.9.9.9"},
        {"host": "0.0.0.0", "behind_proxy": True},
        {"host": "0.0.0.0", "behind_proxy": True, "require_auth": False},
        {"host": "0.0.0.0", "tls_cert": "c", "tls_key": "k"},
        {"engine_url": "unix:/run/engine.sock"},
        {"engine_url": "http://127.0.0.1:8001"},
        {"tenant_from": "jwt:sub", "jwt": JWT},
        {"jwt": {**JWT, "jwks_url": "http://127.0.0.1:9/jwks"}},
    ],
)
def test_settings_that_can_work_are_taken(settings: dict[str, Any]) -> None:
    assert GatewaySettings(**settings)


def test_authentication_without_a_way_to_check_it_does_not_start() -> None:
    with pytest.raises(GatewayConfigError, match=r"neither gateway.api_keys_file nor"):
        check_settings(GatewaySettings())


def test_an_unreadable_certificate_does_not_start(tmp_path: Path) -> None:
    settings = GatewaySettings(
        require_auth=False, tls_cert=tmp_path / "none.pem", tls_key=tmp_path / "none.key"
    )
    with pytest.raises(
        GatewayConfigError, match=r"gateway.tls_cert .*none.pem cannot be read"
    ) as found:
        check_settings(settings)
    assert "may read" in (found.value.hint or "")


def test_a_daemon_without_a_claim_key_does_not_start(tmp_path: Path) -> None:
    settings = GatewaySettings(require_auth=False, instance_socket=tmp_path / "instance.sock")
    with pytest.raises(GatewayConfigError, match="no key to sign claims with"):
        GatewayParts(settings)
    assert GatewayParts(settings, claim_key=Ed25519PrivateKey.generate()).directory is not None


def test_a_gateway_without_an_engine_does_not_start() -> None:
    settings = GatewaySettings(require_auth=False)
    with pytest.raises(GatewayConfigError, match=r"gateway.engine_url is not set"):
        build_proxy(settings, GatewayParts(settings))


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(GatewayConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address"):
            bind("127.0.0.1", port)
