"""The records of deployments in the database. Nothing here touches processes or folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Select, delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from kvrun.deployments.errors import (
    AttachTokenError,
    DeploymentNotFoundError,
    NameTakenError,
    WrongStateError,
)
from kvrun.deployments.machine import Command, Life, command
from kvrun.deployments.model import Deployment, DeploymentSpec, DeploymentState, GpuNote
from kvrun.deployments.records import (
    REASON_LENGTH,
    AttachTokenRow,
    DeploymentRow,
    deployment_of,
    encode,
    life_of,
    new_row,
    put_life,
)
from kvrun.state import Database

OnChange = Callable[[Deployment, DeploymentState], None]


class DeploymentStore:
    """Reads and writes records. ``host`` names this machine, ``now`` in seconds since 1970."""

    def __init__(
        self, database: Database, *, host: str, now: Callable[[], float], on_change: OnChange
    ) -> None:
        self._database = database
        self._host = host
        self._now = now
        self._on_change = on_change

    def insert(self, made: Deployment, port: int) -> None:
        """A new record. Raises NameTakenError, or WrongStateError for a file that has one."""
        try:
            with self._database.transaction() as session:
                self._add(session, made, port)
        except IntegrityError:
            raise _taken(made) from None

    def take_token(self, token_sha256: str) -> tuple[str, str]:
        """Use a token up: its workspace and the name it is for.

        Raises AttachTokenError, and NameTakenError, which leaves the token as it is.
        """
        with self._database.transaction() as session:
            row = session.get(AttachTokenRow, token_sha256, with_for_update=True)
            if row is None or row.expires_at <= self._now():
                raise AttachTokenError("the token is not valid", hint="Ask for another one.")
            taken = select(DeploymentRow.id).where(
                DeploymentRow.workspace_id == row.workspace_id,
                DeploymentRow.name == row.name,
                DeploymentRow.deleted_at.is_(None),
            )
            if session.scalars(taken).first() is not None:
                raise _name_taken(row.name)
            session.delete(row)
            return row.workspace_id, row.name

    def put_token(self, token_sha256: str, workspace_id: str, name: str, expires_at: float) -> None:
        """Remember a token; those that are too old are forgotten."""
        row = AttachTokenRow(
            sha256=token_sha256, workspace_id=workspace_id, name=name, expires_at=expires_at
        )
        with self._database.transaction() as session:
            session.execute(delete(AttachTokenRow).where(AttachTokenRow.expires_at <= self._now()))
            session.add(row)

    def get(self, deployment_id: str) -> Deployment:
        """One record. Raises DeploymentNotFoundError."""
        return self.read(deployment_id)[0]

    def read(self, deployment_id: str) -> tuple[Deployment, Life]:
        """One record, and the part of it that changes by itself. Raises as ``get`` does."""
        with self._database.reading() as session:
            row = _found(session, deployment_id)
            return deployment_of(row), life_of(row)

    def all(self, workspace_id: str | None, *, deleted: bool) -> tuple[Deployment, ...]:
        """Records, the living ones first, by name."""
        query = select(DeploymentRow).order_by(DeploymentRow.name, DeploymentRow.created_at)
        if workspace_id is not None:
            query = query.where(DeploymentRow.workspace_id == workspace_id)
        if not deleted:
            query = query.where(DeploymentRow.deleted_at.is_(None))
        with self._database.reading() as session:
            found = [deployment_of(row) for row in session.scalars(query)]
        return tuple(sorted(found, key=lambda item: item.read_only))

    def living_here(self) -> tuple[str, ...]:
        """The ids of what this machine runs."""
        query = select(DeploymentRow.id).where(
            DeploymentRow.deleted_at.is_(None), DeploymentRow.host == self._host
        )
        with self._database.reading() as session:
            return tuple(session.scalars(query))

    def all_here(self) -> tuple[Deployment, ...]:
        """Every record of this machine, deleted ones too."""
        query = select(DeploymentRow).where(DeploymentRow.host == self._host)
        with self._database.reading() as session:
            return tuple(deployment_of(row) for row in session.scalars(query))

    def by_file(self, config_file: Path) -> Deployment | None:
        """The living record of a configuration file on this machine."""
        with self._database.reading() as session:
            row = session.scalars(self._of_file(config_file)).first()
            return None if row is None else deployment_of(row)

    def command(
        self,
        deployment_id: str,
        asked: Command,
        *,
        requester: str = "",
        spec: DeploymentSpec | None = None,
    ) -> None:
        """Note what was asked for, by whom, and another spec for it.

        Raises WrongStateError or NameTakenError; nothing is noted then.
        """
        made: Deployment | None = None
        try:
            with self._database.transaction() as session:
                row = _found(session, deployment_id)
                before = deployment_of(row)
                put_life(row, command(life_of(row), asked, self._now()))
                row.requester = requester[:200] or row.requester
                row.instance += asked is Command.REBUILD
                if spec is not None:
                    made = replace(before, spec=spec)
                    row.spec, row.name = encode(spec), spec.name
                after = deployment_of(row)
        except IntegrityError:
            raise _taken(made) from None
        self._tell(before, after)

    def save(self, before: Deployment, life: Life) -> Deployment:
        """Write back what changed by itself."""
        with self._database.transaction() as session:
            row = _found(session, before.id)
            put_life(row, life)
            after = deployment_of(row)
        self._tell(before, after)
        return after

    def put_place(self, deployment_id: str, endpoint: str, notes: Sequence[GpuNote]) -> None:
        """Note where it answers and what its GPUs looked like."""
        with self._database.transaction() as session:
            row = _found(session, deployment_id)
            row.endpoint, row.gpu_notes = endpoint, encode(tuple(notes))

    def say(self, deployment_id: str, reason: str) -> None:
        """Note what is wrong with it."""
        with self._database.transaction() as session:
            _found(session, deployment_id).reason = reason[:REASON_LENGTH]

    def finish(self, deployment_id: str, certificates: Sequence[str], reason: str) -> Deployment:
        """It is deleted: from now on its record is read only."""
        with self._database.transaction() as session:
            row = _found(session, deployment_id)
            before = deployment_of(row)
            now = self._now()
            row.state, row.reason = DeploymentState.DELETED.value, reason
            row.deleted_at = row.state_since = now
            row.restart_at = None
            row.certificates = encode(tuple(certificates))
            after = deployment_of(row)
        self._tell(before, after)
        return after

    def refresh(
        self, found: Deployment, spec: DeploymentSpec, port: int, endpoint: str
    ) -> Deployment:
        """Note what its configuration says now; a name that another has leaves it the old one."""
        if self._name_of(found.workspace_id, spec.name) not in (None, found.id):
            spec = replace(spec, name=found.spec.name)
        with self._database.transaction() as session:
            row = _found(session, found.id)
            row.spec, row.name, row.port, row.endpoint = encode(spec), spec.name, port, endpoint
            return deployment_of(row)

    def port(self, deployment_id: str) -> int:
        """The port of its gateway."""
        with self._database.reading() as session:
            return _found(session, deployment_id).port

    def requester(self, deployment_id: str) -> str:
        """Who asked for its deletion."""
        with self._database.reading() as session:
            return _found(session, deployment_id).requester

    def _add(self, session: Session, made: Deployment, port: int) -> None:
        if session.scalars(self._of_file(made.config_file)).first() is not None:
            raise WrongStateError(f"{made.config_file} is a deployment here already")
        session.add(new_row(made, host=self._host, port=port))

    def _name_of(self, workspace_id: str, name: str) -> str | None:
        """The id of the living deployment of a name."""
        query = select(DeploymentRow.id).where(
            DeploymentRow.workspace_id == workspace_id,
            DeploymentRow.name == name,
            DeploymentRow.deleted_at.is_(None),
        )
        with self._database.reading() as session:
            return session.scalars(query).first()

    def _of_file(self, config_file: Path) -> Select[Any]:
        return select(DeploymentRow).where(
            DeploymentRow.config_file == str(config_file),
            DeploymentRow.host == self._host,
            DeploymentRow.deleted_at.is_(None),
        )

    def _tell(self, before: Deployment, after: Deployment) -> None:
        if after.state is not before.state:
            self._on_change(after, before.state)


def _found(session: Session, deployment_id: str) -> DeploymentRow:
    row = session.get(DeploymentRow, deployment_id)
    if row is None:
        raise DeploymentNotFoundError(f"there is no deployment {deployment_id[:80]!r}")
    return row


def _taken(made: Deployment | None) -> NameTakenError:
    return _name_taken(made.spec.name if made is not None else "that name")


def _name_taken(name: str) -> NameTakenError:
    return NameTakenError(
        f"the workspace has a deployment called {name!r} already", hint="Choose another name."
    )
