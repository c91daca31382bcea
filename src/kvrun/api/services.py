"""Everything that routes and pages work with, opened once from the configuration.

Routes and pages hold an :class:`~kvrun.accounts.Actor` and say which permission an operation
needs; :meth:`Services.find` is the one place where a deployment is looked up for somebody.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
from sqlalchemy import text

from kvrun.accounts import Accounts, OidcClient, OidcSettings
from kvrun.accounts.actor import Actor
from kvrun.accounts.errors import ConflictError, NotFoundError
from kvrun.accounts.events import AccessEvent, AccessEventKind
from kvrun.accounts.part import SignInLimits
from kvrun.accounts.permissions import Permission, may, require
from kvrun.accounts.records import Workspace
from kvrun.api.access_log import AccessLog
from kvrun.api.defaults import LivingDefaults
from kvrun.api.gateway_keys import GatewayKeys
from kvrun.api.home import home_of
from kvrun.api.policy_pushes import PolicyPushes
from kvrun.api.reading import note_read
from kvrun.config import ConfigError, KvrunConfig
from kvrun.config.control import ControlSection
from kvrun.config.secret_file import read_secret
from kvrun.control.webhook import Webhook, tell
from kvrun.deployments.alerts_view import AlertViews
from kvrun.deployments.audit_view import AuditViews
from kvrun.deployments.errors import DeploymentNotFoundError
from kvrun.deployments.launcher import Launcher
from kvrun.deployments.model import (
    Deployment,
    DeploymentSpec,
    DeploymentState,
    LauncherKind,
)
from kvrun.deployments.service import Deployments
from kvrun.deployments.spec import OVERRIDE
from kvrun.deployments.storage_view import StorageViews
from kvrun.deployments.views import DeploymentViews
from kvrun.evidence.jobs import EvidenceJobs
from kvrun.state import Database

DATABASE_FILE = "control.db"
CALLBACK_PATH = "/api/v1/sign-in/oidc/callback"
_SUPERVISE_EVERY_S = 1.0
_KEYS_EVERY_S = 30.0
_FORGET_EVERY_S = 60.0
_TELL_EVERY_S = 2.0
_WEBHOOK_EVERY_S = 15.0
_OIDC_TIMEOUT_S = 10.0
_SHOWN_NAME = 64


@dataclass(frozen=True, slots=True)
class Services:
    """The control plane's parts. Thread-safe. Made by :func:`open_services`."""

    config: KvrunConfig
    database: Database
    accounts: Accounts
    deployments: Deployments
    keys: GatewayKeys
    views: DeploymentViews
    audit: AuditViews
    storage: StorageViews
    alerts: AlertViews
    evidence: EvidenceJobs
    policy_pushes: PolicyPushes
    oidc: OidcClient | None
    access_log: AccessLog
    first_workspace: str
    now: Callable[[], float]

    @property
    def settings(self) -> ControlSection:
        """``[control]``."""
        return self.config.control

    @property
    def home(self) -> Path:
        """The control plane's own folder."""
        return home_of(self.config)

    def find(self, actor: Actor, permission: Permission, deployment_id: str) -> Deployment:
        """A deployment with which the actor may do this.

        Raises NotFoundError where it is not there or is none of the actor's business, with the
        same words, and ForbiddenError.
        """
        try:
            found = self.deployments.get(deployment_id)
        except DeploymentNotFoundError:
            raise NotFoundError("there is no such workspace or deployment") from None
        require(actor, permission, found.workspace_id, found.id)
        return found

    def find_to_delete(self, actor: Actor, deployment_id: str) -> Deployment:
        """A deployment that the actor may delete: who ends all its keys needs ``erase_wide`` too.

        Raises NotFoundError and ForbiddenError.
        """
        found = self.find(actor, Permission.DEPLOY, deployment_id)
        require(actor, Permission.ERASE_WIDE, found.workspace_id, found.id)
        return found

    def listed(self, actor: Actor, workspace_id: str, *, deleted: bool = True) -> list[Deployment]:
        """The deployments of a workspace that the actor may see, the living ones first."""
        found = self.deployments.list(workspace_id, deleted=deleted)
        seen = [item for item in found if may(actor, Permission.VIEW, workspace_id, item.id)]
        if not seen:
            require(actor, Permission.VIEW, workspace_id)
        return seen

    def create_deployment(
        self, actor: Actor, workspace_id: str, spec: DeploymentSpec
    ) -> Deployment:
        """Make a deployment; it has the workspace's API keys at once.

        Raises ForbiddenError, NotFoundError, ConflictError (the workspace is being deleted) and
        what ``Deployments.create`` raises.
        """
        require(actor, Permission.DEPLOY, workspace_id)
        self.check_override(actor, workspace_id, spec)
        self.open_workspace(actor, workspace_id)
        made = self.deployments.create(workspace_id, spec)
        self.access_log.created(made, actor.reference)
        self.keys.give(made)
        return made

    def ask(self, actor: Actor, what: str, deployment_id: str) -> Deployment:
        """The deployment that somebody may start, stop or delete; the wish is on record.

        Raises NotFoundError, ForbiddenError and AuditError.
        """
        if what == "delete":
            found = self.find_to_delete(actor, deployment_id)
        else:
            found = self.find(actor, Permission.DEPLOY, deployment_id)
        self.access_log.asked(found, what, actor.reference)
        return found

    def rebuild_deployment(
        self, actor: Actor, deployment_id: str, spec: DeploymentSpec | None = None
    ) -> Deployment:
        """Have a new instance made, of another spec where one is given; the wish is on record.

        Raises what ``ask`` and ``Deployments.rebuild`` raise.
        """
        if spec is not None:
            found = self.find(actor, Permission.DEPLOY, deployment_id)
            self.check_override(actor, found.workspace_id, spec)
        found = self.ask(actor, "rebuild", deployment_id)
        return self.deployments.rebuild(found.id, spec)

    def check_override(self, actor: Actor, workspace_id: str, spec: DeploymentSpec) -> None:
        """Raise ForbiddenError where the spec serves an unevaluated model and the actor is no
        owner."""
        if spec.settings.get(OVERRIDE):
            require(actor, Permission.OVERRIDE, workspace_id)

    def read_log(self, actor: Actor, deployment_id: str, what: str) -> Deployment:
        """The deployment whose log somebody may read; that they do is on record.

        Raises NotFoundError, ForbiddenError, and AuditError where it cannot be put on record.
        """
        found = self.find(actor, Permission.AUDIT_READ, deployment_id)
        note_read(self.deployments, actor, found, what)
        return found

    def same_workspace(self, deployment: Deployment, workspace_id: str) -> None:
        """Raise NotFoundError for a deployment of another workspace."""
        if deployment.workspace_id != workspace_id:
            raise NotFoundError("there is no such workspace or deployment")

    def open_workspace(self, actor: Actor, workspace_id: str) -> Workspace:
        """A workspace in which something may be made. Raises NotFoundError or ConflictError."""
        found = self.accounts.get_workspace(actor, workspace_id)
        if found.closing_at is not None:
            raise ConflictError("the workspace is being deleted; nothing new is made in it")
        return found

    def delete_workspace(self, actor: Actor, workspace_id: str) -> Workspace:
        """Close a workspace, and end it once all its deployments are deleted.

        Raises ConflictError that names the deployments which are left.
        """
        self.accounts.close_workspace(actor, workspace_id)
        left = self.deployments.list(workspace_id, deleted=False)
        if left:
            names = ", ".join(item.spec.name for item in left[:5])
            raise ConflictError(
                f"the workspace is closed, and {len(left)} deployments are left in it: {names}",
                hint="Delete them: their keys are destroyed with a certificate each. Then repeat.",
            )
        return self.accounts.delete_workspace(actor, workspace_id)

    def rounds(self) -> list[tuple[str, Callable[[], object], float]]:
        """What is done again and again: its name, what it is, and seconds between two."""
        return [
            ("supervision", self.deployments.supervise, _SUPERVISE_EVERY_S),
            ("labels of tenants that are gone", self.deployments.forget_gone, _FORGET_EVERY_S),
            ("labels for daemons", self.deployments.tell_tenants, _TELL_EVERY_S),
            ("the gateways' API keys", self.keys.keep_up, _KEYS_EVERY_S),
            ("the webhook for alerts", self.tell_webhook, _WEBHOOK_EVERY_S),
        ]

    def tell_webhook(self) -> None:
        """Tell the webhook of the control plane's own alerts; collectors tell of theirs."""
        folder = self.access_log.folder.parent
        tell(Webhook(self.config.alerts, self.access_log.alerts, folder, self.now))

    def check(self) -> None:
        """Raise where the database cannot be read."""
        with self.database.reading() as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close what is open."""
        self.database.close()


def open_services(
    config: KvrunConfig,
    config_file: Path | None = None,
    *,
    launchers: Mapping[LauncherKind, Launcher] | None = None,
    now: Callable[[], float] = time.time,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Services:
    """Open the control plane of a configuration; the database is made when it is missing.

    ``config_file`` is where the configuration is read from: its deployment is listed as this
    control plane's own. ``launchers`` run deployments in other ways than on this machine. Raises
    KvrunError.
    """
    settings = config.control
    home = home_of(config)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = Database.open(settings.database_url or f"sqlite:///{home / DATABASE_FILE}")
    try:
        access_log = AccessLog(home, now)
        opened: list[GatewayKeys] = []

        def changed(deployment: Deployment, before: DeploymentState) -> None:
            access_log.changed(deployment, before)
            if deployment.state is DeploymentState.DELETED and opened:
                opened[0].end_of(deployment)

        deployments = Deployments(
            database,
            home,
            defaults=LivingDefaults(config),
            launchers=launchers,
            on_change=changed,
            now=now,
        )

        def after(event: AccessEvent) -> None:
            access_log.warn(event)
            if event.kind in _KEYS_CHANGE and opened:
                opened[0].give_all()

        accounts = Accounts(
            database,
            now,
            random_bytes,
            access_log.note,
            after_event=after,
            limits=SignInLimits(settings.session_idle_s, settings.session_absolute_s),
            owner_link=config.layout.owner_link,
        )
        keys = GatewayKeys(accounts, deployments)
        opened.append(keys)
        workspace = accounts.ensure_workspace(config.deployment.workspace)
        if config_file is not None:
            deployments.register_own(config, config_file, workspace_id=workspace.id)
        services = Services(
            config=config,
            database=database,
            accounts=accounts,
            deployments=deployments,
            keys=keys,
            views=DeploymentViews(deployments),
            audit=AuditViews(deployments),
            storage=StorageViews(deployments),
            alerts=AlertViews(deployments),
            evidence=EvidenceJobs(home / "evidence", now),
            policy_pushes=PolicyPushes(deployments, now),
            oidc=_oidc(settings),
            access_log=access_log,
            first_workspace=config.deployment.workspace,
            now=now,
        )
    except BaseException:
        database.close()
        raise
    return services


def requester(actor: Actor) -> str:
    """An actor as certificates name who asked: kind and id, which nobody chooses, come first.

    The name after them is cut off: where it stands last it can hide nothing.
    """
    return f"{actor.reference} ({actor.name[:_SHOWN_NAME]})"


def _oidc(settings: ControlSection) -> OidcClient | None:
    if settings.oidc_issuer is None or settings.oidc_client_id is None:
        return None
    secret = None
    if settings.oidc_client_secret_file is not None:
        # The provider made it, so how long it is was for the provider to say.
        raw = read_secret(
            settings.oidc_client_secret_file, "control.oidc_client_secret_file", at_least=1
        )
        try:
            secret = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise ConfigError("control.oidc_client_secret_file must hold text (UTF-8)") from None
    asked = OidcSettings(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        redirect_uri=settings.url + CALLBACK_PATH,
        client_secret=secret,
        scopes=settings.oidc_scopes,
        groups_claim=settings.oidc_groups_claim,
    )
    return OidcClient(asked, httpx.Client(timeout=_OIDC_TIMEOUT_S), time.monotonic)


_KEYS_CHANGE = frozenset(
    {
        AccessEventKind.API_KEY_CREATED,
        AccessEventKind.API_KEY_REVOKED,
        AccessEventKind.MEMBER_REMOVED,
        AccessEventKind.ROLE_CHANGED,
        AccessEventKind.SERVICE_ACCOUNT_DELETED,
        AccessEventKind.WORKSPACE_DELETED,
    }
)
"""After these some gateway may have to know other API keys."""
