"""Deployments, the tokens to attach one, and what operators say of tenants."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "deployments",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("workspace_id", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("launcher", sa.String(16), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("config_file", sa.Text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("wanted", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(1000), nullable=False),
        sa.Column("instance", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("requester", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("state_since", sa.Float(53), nullable=False),
        sa.Column("started_at", sa.Float(53)),
        sa.Column("restart_at", sa.Float(53)),
        sa.Column("deleted_at", sa.Float(53)),
        sa.Column("gpu_notes", sa.Text(), nullable=False),
        sa.Column("certificates", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deployments"),
    )
    op.create_index("ix_deployments_workspace_id", "deployments", ["workspace_id"])
    live = sa.text("deleted_at IS NULL")
    op.create_index(
        "uq_deployments_workspace_id_name",
        "deployments",
        ["workspace_id", "name"],
        unique=True,
        sqlite_where=live,
        postgresql_where=live,
    )
    op.create_table(
        "attach_tokens",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("workspace_id", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("expires_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_attach_tokens"),
    )
    op.create_table(
        "tenants",
        sa.Column("deployment_id", sa.String(128), nullable=False),
        sa.Column("tenant_ref", sa.String(128), nullable=False),
        sa.Column("tenant_class", sa.String(64), nullable=False),
        sa.Column("region", sa.String(64), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("deployment_id", "tenant_ref", name="pk_tenants"),
    )
