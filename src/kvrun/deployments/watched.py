"""Deployments that somebody else runs: they are seen, and left alone."""

from __future__ import annotations

import msgspec

from kvrun.deployments.errors import NotOursError
from kvrun.deployments.launcher import Site
from kvrun.deployments.machine import Seen
from kvrun.errors import KvrunError
from kvrun.launch.admin import ask_daemon
from kvrun.launch.processes import gateway_url
from kvrun.launch.readiness import http_answers, unix_accepts

_TIMEOUT_S = 2.0


class _Status(msgspec.Struct):
    engine: str = ""


class WatchedLauncher:
    """Asks the daemon and the gateway; starts and stops nothing."""

    def launch(self, site: Site, attempt: int) -> None:
        """Raises NotOursError."""
        raise _not_ours(site)

    def observe(self, site: Site) -> Seen:
        """See Launcher. It is ready when its gateway answers, or its daemon has an engine."""
        gateway = http_answers(gateway_url(site.config), "/healthz")
        try:
            status = ask_daemon(site.config, "status", timeout_s=_TIMEOUT_S)
            engine = msgspec.json.decode(status, type=_Status).engine
        except (KvrunError, OSError, msgspec.MsgspecError):
            return Seen(alive=gateway or unix_accepts(site.config.instance_socket), ready=gateway)
        return Seen(alive=True, ready=gateway or bool(engine))

    def terminate(self, site: Site) -> None:
        """Raises NotOursError."""
        raise _not_ours(site)

    def kill(self, site: Site) -> None:
        """Raises NotOursError."""
        raise _not_ours(site)


def _not_ours(site: Site) -> NotOursError:
    return NotOursError(
        f"the deployment {site.deployment_id} is run by somebody else",
        hint="Who started it starts and stops it.",
    )
