"""One look at one deployment, and what follows from it: the hands of the state machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from kvrun.config import KvrunConfig, load_config
from kvrun.deployments import deleting, folder
from kvrun.deployments.configs import ReadConfigs
from kvrun.deployments.errors import WrongStateError
from kvrun.deployments.gpus import check_gpus
from kvrun.deployments.launcher import Launcher, Site
from kvrun.deployments.machine import Action, Life, failed, step, watched
from kvrun.deployments.model import Deployment, DeploymentState, GpuNote, LauncherKind
from kvrun.deployments.registry import TenantRegistry
from kvrun.deployments.spec import Value, checked_config, config_text, settings_of
from kvrun.deployments.store import DeploymentStore
from kvrun.errors import KvrunError
from kvrun.launch.admin import ask_daemon
from kvrun.launch.processes import gateway_url

GpuProbe = Callable[[Sequence[int]], tuple[GpuNote, ...] | None]
_IDLE_TIMEOUT_S = 5.0


class Supervision:
    """Leads a deployment's processes to what its record asks for. The caller holds its lock."""

    def __init__(
        self,
        store: DeploymentStore,
        tenants: TenantRegistry,
        launchers: Mapping[LauncherKind, Launcher],
        *,
        defaults: Mapping[str, Value],
        gpus: GpuProbe,
        now: Callable[[], float],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._tenants = tenants
        self._launchers = launchers
        self._defaults = defaults
        self._gpus = gpus
        self._now = now
        self._random_bytes = random_bytes
        self._configs = ReadConfigs()

    def site(self, deployment: Deployment) -> Site:
        """Where it lives; its folder is made where a crash came before that. Raises ConfigError."""
        ours = deployment.launcher is LauncherKind.LOCAL
        if ours and not deployment.read_only and not deployment.config_file.exists():
            self.prepare(deployment)
        if deployment.launcher is LauncherKind.OWN:
            # What `kvrun up` was told by variables counts for its own deployment alone.
            config = load_config(deployment.config_file, os.environ)
        else:
            config = self._configs.read(deployment.config_file)
        return Site(deployment.id, deployment.folder, deployment.config_file, config)

    def prepare(self, deployment: Deployment) -> None:
        """Make its folder as its spec says."""
        text = self.text(deployment, self._store.port(deployment.id))
        folder.prepare(deployment.config_file, text, self._random_bytes)

    def text(self, deployment: Deployment, port: int) -> str:
        """Its ``kvrun.toml``. Raises SpecError for a spec that cannot be written as one."""
        settings = settings_of(
            deployment.spec,
            deployment_id=deployment.id,
            workspace_id=deployment.workspace_id,
            port=port,
            defaults=self._defaults,
        )
        text = config_text(settings)
        checked_config(text, deployment.config_file)
        return text

    def check_gpus(self, deployment: Deployment) -> tuple[GpuNote, ...]:
        """What its GPUs look like now. Raises SharedGpuError."""
        return check_gpus(deployment.spec, self._gpus(deployment.spec.gpu_ids))

    def is_alive(self, deployment: Deployment) -> bool:
        """Whether anything of it runs."""
        return self._launchers[deployment.launcher].observe(self.site(deployment)).alive

    def round(self, deployment_id: str) -> Deployment:
        """One look, and what follows. Raises what a step raises; the next round tries again."""
        deployment, life = self._store.read(deployment_id)
        if life.state is DeploymentState.DELETED:
            return deployment
        site, launcher = self.site(deployment), self._launchers[deployment.launcher]
        seen = launcher.observe(site)
        if deployment.launcher is not LauncherKind.LOCAL and life.state is not _DELETING:
            return self._saved(deployment, life, watched(life, seen, self._now()))
        if life.state is DeploymentState.DRAINING:
            folder.close_gateway(site.config)
            seen = replace(seen, idle=_is_idle(site.config))
        after, action = step(life, seen, self._now())
        deployment = self._saved(deployment, life, after)
        if action is Action.LAUNCH:
            self._launch(deployment, after)
        elif action is Action.TERMINATE:
            launcher.terminate(site)
        elif action is Action.KILL:
            launcher.kill(site)
        elif action is Action.DELETE:
            self.delete(deployment_id)
        return self._store.get(deployment_id)

    def delete(self, deployment_id: str) -> deleting.Deleted:
        """Carry out a deletion that was asked for. Raises what a step raises; it goes on later."""
        deployment, life = self._store.read(deployment_id)
        try:
            certificates, openings, held = deleting.delete_data(
                self.site(deployment),
                self._launchers[deployment.launcher],
                self._store.requester(deployment_id),
                ours=deployment.launcher is LauncherKind.LOCAL,
            )
        except (KvrunError, OSError) as error:
            why = error.message if isinstance(error, KvrunError) else str(error)
            later = failed(life, f"the deletion is not finished: {why}", self._now())
            self._store.save(deployment, replace(later, state=_DELETING))
            if isinstance(error, KvrunError):
                raise
            raise WrongStateError(f"the deletion is not finished: {why}") from None
        self._tenants.forget(deployment_id)
        done = self._store.finish(deployment_id, certificates, held)
        return deleting.Deleted(done, certificates, openings)

    def _launch(self, deployment: Deployment, life: Life) -> None:
        try:
            notes = self.check_gpus(deployment)
            self.prepare(deployment)
            site = self.site(deployment)
            self._store.put_place(deployment.id, gateway_url(site.config), notes)
            folder.open_gateway(site.config)
            self._launchers[deployment.launcher].launch(site, life.attempt)
        except KvrunError as error:
            self._store.save(deployment, failed(life, error.message, self._now()))

    def _saved(self, deployment: Deployment, before: Life, after: Life) -> Deployment:
        return self._store.save(deployment, after) if after != before else deployment


class _Usage(msgspec.Struct):
    running_requests: int


def _is_idle(config: KvrunConfig) -> bool | None:
    """Whether no request is under way; None where the daemon does not say."""
    try:
        answer = ask_daemon(config, "usage", timeout_s=_IDLE_TIMEOUT_S)
        return msgspec.json.decode(answer, type=_Usage).running_requests == 0
    except (KvrunError, OSError, msgspec.MsgspecError):
        return None


_DELETING = DeploymentState.DELETING
