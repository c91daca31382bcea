"""Which deployments a control plane has on record, read from its database without serving it."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection
from pathlib import Path

from sqlalchemy import select

from kvrun.accounts.tables import WorkspaceRow
from kvrun.api.home import home_of
from kvrun.api.joint_targets import MAY_HOLD_NOTHING, name_in_log
from kvrun.api.services import DATABASE_FILE
from kvrun.config import KvrunConfig
from kvrun.deployments.store import DeploymentStore
from kvrun.state import Database


def known_beside(
    config: KvrunConfig, workspace: str, names: Collection[str], files: Collection[Path]
) -> dict[str, str]:
    """The deployments of a workspace that the configuration's control plane has on record, beside
    those with these names or configuration files: what people call each, by its name in logs.

    Nothing where there is no control plane. Raises DatabaseError where it cannot be read.
    """
    home, url = home_of(config), config.control.database_url
    if not config.control.enabled or (url is None and not (home / DATABASE_FILE).exists()):
        return {}
    database = Database.open(url or f"sqlite:///{home / DATABASE_FILE}")
    try:
        with database.reading() as session:
            named = select(WorkspaceRow.id).where(WorkspaceRow.name == workspace)
            workspace_id = session.scalars(named).first()
        if workspace_id is None:
            return {}
        store = DeploymentStore(
            database, host=socket.gethostname(), now=time.time, on_change=lambda *_: None
        )
        found = [
            item
            for item in store.all(workspace_id, deleted=False)
            if item.state not in MAY_HOLD_NOTHING and item.config_file.resolve() not in files
        ]
    finally:
        database.close()
    called = {name_in_log(item): item.spec.name for item in found}
    return {name: shown for name, shown in called.items() if name not in names}
