"""Putting the gateway together from its settings: the one place that knows all its parts."""

import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvrun.claims.keyfile import load_signing_key
from kvrun.claims.rotating import RotatingSigner
from kvrun.config.gateway import GatewaySettings, JwtSettings
from kvrun.gateway.admission import Admission
from kvrun.gateway.apikeys_file import WatchedApiKeys
from kvrun.gateway.auth import Authenticator
from kvrun.gateway.draining import Drain
from kvrun.gateway.elsewhere import OtherGateways
from kvrun.gateway.errors import GatewayConfigError
from kvrun.gateway.identity import identity_policy
from kvrun.gateway.jwt import JWKS_HINT, JwksFetch, JwtVerifier, file_fetch
from kvrun.gateway.link import InstanceClient, InstanceLink
from kvrun.gateway.metrics import GatewayMetrics
from kvrun.gateway.proxy import GatewayProxy
from kvrun.gateway.running import RunningRequests
from kvrun.gateway.salts import SessionDirectory
from kvrun.gateway.seen import FileSeenTenant, MemorySeenTenant, SeenTenant
from kvrun.gateway.upstream import Engine
from kvrun.telemetry.traces import NoTracing, Tracing

MAX_JWKS_BYTES = 1 << 20
JWKS_TIMEOUT_S = 5.0


Announcer = Callable[[str, str, int, str], None]


class GatewayParts:
    """What proxy and middleware share: admission, and the link to the daemon behind it.

    ``token`` is the launch token for the daemon. ``make_client`` replaces the daemon's client
    (tests, benches). Raises GatewayConfigError for settings that cannot work.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        claim_key: Ed25519PrivateKey | None = None,
        token: str = "",
        make_client: Callable[[], InstanceClient] | None = None,
    ) -> None:
        check_settings(settings)
        self.directory: SessionDirectory | None = None
        self.link: InstanceLink | None = None
        self.running = RunningRequests()
        self._announcer: Announcer | None = None
        if claim_key is None and settings.claim_key_file is not None:
            claim_key = load_signing_key(settings.claim_key_file)
        signer = RotatingSigner(claim_key) if claim_key is not None else None
        if make_client is None and settings.instance_socket is not None:
            make_client = self._daemon_client(settings.instance_socket, token, signer)
        if make_client is not None:
            if signer is None:
                raise GatewayConfigError(
                    "the gateway has an instance daemon but no key to sign claims with",
                    hint="Set gateway.claim_key_file.",
                )
            self.link = InstanceLink(make_client)
            self.directory = SessionDirectory(
                self.link,
                capacity=settings.max_sessions_cached,
                timeout_s=settings.session_timeout_s,
                clock=time.monotonic,
            )
        self.admission = Admission(
            policy=identity_policy(settings),
            authenticator=_authenticator(settings),
            directory=self.directory,
            signer=signer,
            seen=_seen_tenant(settings),
            claim_lifetime_s=settings.claim_lifetime_s,
            now=time.time,
            random_bytes=os.urandom,
            drain=Drain(settings.state_dir),
            require_daemon=settings.require_daemon,
            announce=self._announce,
        )

    def on_invalidated(self, tenant: str, session: str) -> None:
        """The daemon's push: forget this session's grant (or all of the tenant's)."""
        if self.directory is not None:
            self.directory.invalidate(tenant, session)

    def on_erasing(self, tenant: str, session: str) -> None:
        """The daemon's push: the session is being erased; its running requests end."""
        self.on_invalidated(tenant, session)
        self.running.end(tenant, session)

    async def close(self) -> None:
        """Let the daemon go."""
        if self.link is not None:
            await self.link.close()

    def _forget_all(self) -> None:
        if self.directory is not None:
            self.directory.invalidate_all()

    def _daemon_client(
        self, socket_path: Path, token: str, signer: RotatingSigner | None
    ) -> Callable[[], InstanceClient]:
        def make() -> InstanceClient:
            # Imported here: the gateway's pure parts are used without a daemon (tests, benches).
            from kvrun.instance.client import AsyncInstanceClient

            client = AsyncInstanceClient(
                socket_path,
                token,
                on_invalidated=self.on_invalidated,
                on_erasing=self.on_erasing,
                on_lost=self._forget_all,
                claims=signer,
            )
            self._announcer = client.announce
            return client

        return make

    def _announce(self, salt: str, claim: str, uses: int, traceparent: str) -> None:
        if self._announcer is not None:
            self._announcer(salt, claim, uses, traceparent)


def build_proxy(
    settings: GatewaySettings,
    parts: GatewayParts,
    *,
    labels: Mapping[str, str] | None = None,
    tracing: Tracing | None = None,
) -> GatewayProxy:
    """The ASGI application for these settings; every metric carries ``labels``.

    Raises GatewayConfigError.
    """
    tracing = tracing or NoTracing()
    if settings.engine_url is None:
        raise GatewayConfigError(
            "gateway.engine_url is not set", hint="Set it to unix:/path or http://127.0.0.1:port."
        )
    engine = Engine(
        settings.engine_url,
        api_key=_read_secret(settings.engine_api_key_file),
        connect_timeout_s=settings.connect_timeout_s,
        response_timeout_s=settings.response_timeout_s,
    )

    metrics = GatewayMetrics(labels)
    elsewhere = OtherGateways.of(settings, metrics.was_routed)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        await engine.open()
        await elsewhere.open()
        try:
            yield
        finally:
            await engine.close()
            await elsewhere.close()
            await parts.close()
            tracing.close()

    return GatewayProxy(
        admission=parts.admission,
        engine=engine,
        elsewhere=elsewhere,
        metrics=metrics,
        link=parts.link,
        running=parts.running,
        max_body_bytes=settings.max_body_bytes,
        body_timeout_s=settings.body_timeout_s,
        lifespan=lifespan,
        clock=time.perf_counter,
        tracing=tracing,
    )


def check_settings(settings: GatewaySettings) -> None:
    """Refuse what cannot work before anything is started. Raises GatewayConfigError."""
    if settings.require_auth and settings.api_keys_file is None and settings.jwt is None:
        raise GatewayConfigError(
            "gateway.require_auth = true, but neither gateway.api_keys_file nor [gateway.jwt] is"
            " set",
            hint="Set one of them; require_auth = false lets every local process in.",
        )
    for name, path in (("tls_cert", settings.tls_cert), ("tls_key", settings.tls_key)):
        if path is not None and not os.access(path, os.R_OK):
            raise GatewayConfigError(
                f"gateway.{name} {path} cannot be read",
                hint="It has to be a file that the user of the gateway may read.",
            )


def _authenticator(settings: GatewaySettings) -> Authenticator:
    keys = None
    # Without require_auth the header Authorization may be meant for the engine behind.
    if settings.require_auth and settings.api_keys_file is not None:
        keys = WatchedApiKeys(settings.api_keys_file)
    verifier = None
    if settings.jwt is not None:
        verifier = JwtVerifier(settings.jwt, _jwks_fetch(settings.jwt), time.monotonic)
    return Authenticator(api_keys=keys, jwt=verifier, required=settings.require_auth, now=time.time)


def _jwks_fetch(settings: JwtSettings) -> JwksFetch:
    if settings.jwks_file is not None:
        return file_fetch(settings.jwks_file)
    url = settings.jwks_url or ""

    async def fetch() -> bytes:
        timeout = aiohttp.ClientTimeout(total=JWKS_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise GatewayConfigError(
                        f"{url} answered with status {response.status}", hint=JWKS_HINT
                    )
                return await _read_at_most(response, MAX_JWKS_BYTES, url)
        except aiohttp.ClientError as error:
            raise GatewayConfigError(f"cannot fetch {url}: {error}", hint=JWKS_HINT) from None

    return fetch


async def _read_at_most(response: aiohttp.ClientResponse, limit: int, url: str) -> bytes:
    document = bytearray()
    async for chunk in response.content.iter_any():
        document += chunk
        if len(document) > limit:
            raise GatewayConfigError(f"{url} is larger than {limit} bytes", hint=JWKS_HINT)
    return bytes(document)


def _seen_tenant(settings: GatewaySettings) -> SeenTenant:
    return FileSeenTenant(settings.state_dir) if settings.state_dir else MemorySeenTenant()


def _read_secret(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text().strip()
    except OSError as error:
        raise GatewayConfigError(
            f"cannot read gateway.engine_api_key_file {path}: {error.strerror}",
            hint="The gateway's user must be able to read the key that the engine asks for.",
        ) from None
