"""The tables of deployments and tenants' labels, and how rows become data.

No tenant's or session's id is ever in them: a tenant is known by its reference, a pseudonym under
its own key, which dies with the tenant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Float, Index, Integer, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from kvrun.deployments.machine import Life
from kvrun.deployments.model import (
    Deployment,
    DeploymentSpec,
    DeploymentState,
    GpuNote,
    LauncherKind,
    Wanted,
)
from kvrun.state import Base

ID_LENGTH = 128
REASON_LENGTH = 1000
_LIVE = text("deleted_at IS NULL")


class DeploymentRow(Base):
    """One deployment. ``host`` is the machine that runs it; ``port`` its gateway's.

    ``attempt`` numbers its launches, ``failures`` counts crashes that followed each other fast,
    ``requester`` is who asked for its deletion.
    """

    __tablename__ = "deployments"
    __table_args__ = (
        # A deleted one's name may be given again.
        Index(
            "uq_deployments_workspace_id_name",
            "workspace_id",
            "name",
            unique=True,
            sqlite_where=_LIVE,
            postgresql_where=_LIVE,
        ),
    )

    id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(String(ID_LENGTH), index=True)
    name: Mapped[str] = mapped_column(String(ID_LENGTH))
    launcher: Mapped[str] = mapped_column(String(16))
    host: Mapped[str] = mapped_column(String(255))
    folder: Mapped[str] = mapped_column(Text)
    config_file: Mapped[str] = mapped_column(Text)
    port: Mapped[int] = mapped_column(Integer, default=0)
    endpoint: Mapped[str] = mapped_column(Text, default="")
    spec: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    wanted: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(REASON_LENGTH), default="")
    instance: Mapped[int] = mapped_column(Integer, default=1)
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    restarts: Mapped[int] = mapped_column(Integer, default=0)
    failures: Mapped[int] = mapped_column(Integer, default=0)
    requester: Mapped[str] = mapped_column(String(200), default="")
    created_at: Mapped[float] = mapped_column(Float(53))
    state_since: Mapped[float] = mapped_column(Float(53))
    started_at: Mapped[float | None] = mapped_column(Float(53))
    restart_at: Mapped[float | None] = mapped_column(Float(53))
    deleted_at: Mapped[float | None] = mapped_column(Float(53))
    gpu_notes: Mapped[str] = mapped_column(Text, default="[]")
    certificates: Mapped[str] = mapped_column(Text, default="[]")


class AttachTokenRow(Base):
    """A one-time token with which somebody registers an engine; its hash only."""

    __tablename__ = "attach_tokens"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    workspace_id: Mapped[str] = mapped_column(String(ID_LENGTH))
    name: Mapped[str] = mapped_column(String(ID_LENGTH))
    expires_at: Mapped[float] = mapped_column(Float(53))


class TenantRow(Base):
    """What operators say of a tenant, under the reference that its key makes."""

    __tablename__ = "tenants"

    deployment_id: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_ref: Mapped[str] = mapped_column(String(ID_LENGTH), primary_key=True)
    tenant_class: Mapped[str] = mapped_column(String(64), default="")
    region: Mapped[str] = mapped_column(String(64), default="")
    labels: Mapped[str] = mapped_column(Text, default="{}")
    updated_at: Mapped[float] = mapped_column(Float(53))


def new_row(deployment: Deployment, *, host: str, port: int) -> DeploymentRow:
    """The row of a new deployment."""
    return DeploymentRow(
        id=deployment.id,
        workspace_id=deployment.workspace_id,
        name=deployment.spec.name,
        launcher=deployment.launcher.value,
        host=host,
        folder=str(deployment.folder),
        config_file=str(deployment.config_file),
        port=port,
        endpoint=deployment.endpoint,
        spec=encode(deployment.spec),
        state=deployment.state.value,
        wanted=deployment.wanted.value,
        reason=deployment.reason,
        instance=deployment.instance,
        attempt=0,
        restarts=0,
        failures=0,
        requester="",
        created_at=deployment.created_at,
        state_since=deployment.state_since,
        gpu_notes="[]",
        certificates="[]",
    )


def deployment_of(row: DeploymentRow) -> Deployment:
    """A row as data."""
    return Deployment(
        id=row.id,
        workspace_id=row.workspace_id,
        spec=msgspec.json.decode(row.spec, type=DeploymentSpec),
        state=DeploymentState(row.state),
        wanted=Wanted(row.wanted),
        reason=row.reason,
        launcher=LauncherKind(row.launcher),
        folder=Path(row.folder),
        config_file=Path(row.config_file),
        endpoint=row.endpoint,
        instance=row.instance,
        restarts=row.restarts,
        created_at=row.created_at,
        state_since=row.state_since,
        started_at=row.started_at,
        restart_at=row.restart_at,
        deleted_at=row.deleted_at,
        gpu_notes=msgspec.json.decode(row.gpu_notes, type=tuple[GpuNote, ...]),
        certificates=msgspec.json.decode(row.certificates, type=tuple[str, ...]),
    )


def encode(value: Any) -> str:
    """Data as a text column holds it."""
    return msgspec.json.encode(value).decode()


def life_of(row: DeploymentRow) -> Life:
    """The part of a row that changes by itself."""
    return Life(
        state=DeploymentState(row.state),
        wanted=Wanted(row.wanted),
        reason=row.reason,
        attempt=row.attempt,
        failures=row.failures,
        restarts=row.restarts,
        state_since=row.state_since,
        started_at=row.started_at,
        restart_at=row.restart_at,
    )


def put_life(row: DeploymentRow, life: Life) -> None:
    """Write it back."""
    row.state, row.wanted = life.state.value, life.wanted.value
    row.reason = life.reason[:REASON_LENGTH]
    row.attempt, row.failures, row.restarts = life.attempt, life.failures, life.restarts
    row.state_since, row.started_at, row.restart_at = (
        life.state_since,
        life.started_at,
        life.restart_at,
    )
