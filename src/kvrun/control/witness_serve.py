"""Running the witness server as a process: address, TLS, state."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kvrun.audit.errors import NoteFormatError
from kvrun.audit.note import ED25519, VerifierKey, check_key_name
from kvrun.config.values import is_loopback
from kvrun.control.witness_app import WitnessApp
from kvrun.control.witness_errors import WitnessError
from kvrun.control.witness_metrics import WitnessMetrics
from kvrun.control.witness_server import Cosigner
from kvrun.control.witness_state import WitnessState
from kvrun.gateway.server import bind, forbid_dumps, serve_on
from kvrun.telemetry.endpoint import PATHS, serving


class WitnessServeError(WitnessError):
    """A witness server was told something that it refuses."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """``listen``: HOST:PORT. ``name``: the key's name, needed for a new ``folder`` only.

    ``metrics_port``: readiness and metrics are at that port of 127.0.0.1, not at ``listen``.
    """

    listen: str
    folder: Path
    name: str | None
    log_keys: Sequence[VerifierKey]
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False
    metrics_port: int | None = None


def serve_witness(settings: ServeSettings, announce: Callable[[str, VerifierKey], None]) -> None:
    """Serve until SIGTERM or SIGINT; ``announce`` gets the address and the witness's key.

    Raises WitnessServeError for settings that are not allowed, KvrunError for a folder or an
    address that cannot be used.
    """
    host, port = _address(settings)
    for key in settings.log_keys:
        if key.algorithm != ED25519:
            raise WitnessServeError(
                f"--log-key: {key.name} is a witness's key, not a log's",
                hint="A log's key is in signer.vkey beside its segments.",
            )
    try:
        check_key_name(settings.name or "known")
    except NoteFormatError as error:
        raise WitnessServeError(f"--name: {error.message}") from None
    forbid_dumps()
    state = WitnessState(settings.folder, settings.name, now=time.time)
    try:
        cosigner = Cosigner(state, settings.log_keys, now=time.time)
        metrics = WitnessMetrics(state, cosigner.logs)
        apart = settings.metrics_port is not None
        app = WitnessApp(cosigner, metrics, offered=("/healthz",) if apart else PATHS)
        listener = bind(host, port)
        scheme = "http" if settings.tls_cert is None else "https"
        shown = f"[{host}]" if ":" in host else host
        with listener, serving(metrics.probes, port=settings.metrics_port, socket_file=None):
            announce(f"{scheme}://{shown}:{listener.getsockname()[1]}", state.key)
            serve_on(listener, app, tls_cert=settings.tls_cert, tls_key=settings.tls_key)
    finally:
        state.close()


def _address(settings: ServeSettings) -> tuple[str, int]:
    """Host and port, refused where others could reach them without TLS."""
    try:
        parts = urlsplit(f"//{settings.listen}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or "@" in settings.listen:
        raise WitnessServeError(
            f"--listen {settings.listen!r} is no address", hint="HOST:PORT, such as 127.0.0.1:8470"
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise WitnessServeError("--tls-cert and --tls-key belong together: give both or neither")
    for path in filter(None, (settings.tls_cert, settings.tls_key)):
        if not path.is_file():
            raise WitnessServeError(f"{path} is no file")
    if not is_loopback(host) and settings.tls_cert is None and not settings.behind_proxy:
        raise WitnessServeError(
            f"--listen {settings.listen} is reachable from other machines without TLS",
            hint="Give --tls-cert and --tls-key, or --behind-proxy where a proxy in front speaks "
            "TLS; or listen on 127.0.0.1.",
        )
    return host, port
