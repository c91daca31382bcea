"""The gateway as ``kvrun bench gateway`` runs it: all but the daemon, whose answers are fixed.

Started as ``python -m kvrun.bench.gateway_process PORT ENGINE_URL KEYS_FILE``.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.config.gateway import GatewaySettings
from kvrun.gateway.app import GatewayParts, build_proxy
from kvrun.gateway.server import serve


@dataclass(frozen=True, slots=True)
class FixedGrant:
    """A session's salt and generation."""

    salt: str
    generation: int


class FixedDaemon:
    """Knows every session at once; after the first request the gateway asks it no more."""

    workspace = "bench"
    deployment = "bench"
    connected = True

    async def start(self, *, timeout_s: float) -> None:
        """Nothing to connect to."""

    async def open_session(self, tenant: str, session: str) -> FixedGrant:
        """The same grant for all: isolation is not what is measured here."""
        return FixedGrant("A" * 43, 1)

    async def erase_user(
        self, tenant: str, session: str, *, requester: str, reference: str, legal_basis: str
    ) -> bytes:
        """Nothing is erased here."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to close."""


def main(port: str, engine_url: str, keys_file: str) -> None:
    """Serve until the bench ends this process."""
    settings = GatewaySettings(
        port=int(port), engine_url=engine_url, api_keys_file=Path(keys_file), multi_tenant=True
    )
    parts = GatewayParts(settings, claim_key=Ed25519PrivateKey.generate(), make_client=FixedDaemon)
    serve(settings, build_proxy(settings, parts))


if __name__ == "__main__":
    main(*sys.argv[1:])
