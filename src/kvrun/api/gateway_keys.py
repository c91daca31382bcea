"""The API keys in the gateways' files are the database's, and none outlives its deployment."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict

from kvrun.accounts import Accounts
from kvrun.deployments.errors import DeploymentNotFoundError
from kvrun.deployments.model import Deployment, DeploymentState, LauncherKind
from kvrun.deployments.service import Deployments
from kvrun.errors import KvrunError

_log = logging.getLogger(__name__)


class GatewayKeys:
    """Writes the files of the deployments that this control plane runs. Thread-safe."""

    def __init__(self, accounts: Accounts, deployments: Deployments) -> None:
        self._accounts = accounts
        self._deployments = deployments
        self._table = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def give(self, deployment: Deployment) -> None:
        """Bring the API keys that a deployment's gateway knows up to date.

        Raises what ``Deployments.set_api_keys`` raises.
        """
        if deployment.launcher is LauncherKind.ATTACHED or deployment.read_only:
            return
        with self._table:
            lock = self._locks[deployment.id]
        # Who reads first writes first: a slower one would put a revoked key back.
        with lock:
            keys = self._accounts.gateway_keys(deployment.workspace_id, deployment.id)
            self._deployments.set_api_keys(deployment.id, keys)

    def give_all(self) -> None:
        """Bring every gateway's API keys up to date; one that fails does not stop the others."""
        for deployment in self._deployments.list(deleted=False):
            try:
                self.give(deployment)
            except (KvrunError, OSError) as error:
                _log.warning("API keys of %s: %s", deployment.id, error)

    def end_of(self, deployment: Deployment) -> None:
        """Revoke the keys that are for a deployment which is deleted or forgotten alone."""
        try:
            self._accounts.revoke_deployment_keys(deployment.id)
        except Exception:
            # It has happened already, and the next round tries again.
            _log.exception("the API keys of %s are not revoked yet", deployment.id)

    def keep_up(self) -> None:
        """What a crash between a change and its file left behind, and keys that expired."""
        for deployment_id in self._accounts.deployments_with_keys():
            try:
                found = self._deployments.get(deployment_id)
            except DeploymentNotFoundError:
                continue
            if found.state is DeploymentState.DELETED:
                self.end_of(found)
        self.give_all()
