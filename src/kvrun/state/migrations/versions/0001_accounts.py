"""People, workspaces and credentials."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )
    op.create_table(
        "workspaces",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("account_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("closing_at", sa.BigInteger(), nullable=True),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_workspaces_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspaces")),
        sa.UniqueConstraint("name", name=op.f("uq_workspaces_name")),
    )
    op.create_index(op.f("ix_workspaces_account_id"), "workspaces", ["account_id"])
    op.create_table(
        "users",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("issuer", sa.String(512), nullable=True),
        sa.Column("subject", sa.String(255), nullable=True),
        sa.Column("email", sa.String(254), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("is_local_owner", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_sign_in_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("issuer", "subject", name=op.f("uq_users_issuer_subject")),
    )
    op.create_index(op.f("ix_users_email"), "users", ["email"])
    op.create_table(
        "members",
        sa.Column("workspace_id", sa.String(32), nullable=False),
        sa.Column("user_id", sa.String(32), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("from_group", sa.Boolean(), nullable=False),
        sa.Column("added_by", sa.String(32), nullable=False),
        sa.Column("added_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_members_workspace_id_workspaces")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_members_user_id_users")),
        sa.PrimaryKeyConstraint("workspace_id", "user_id", name=op.f("pk_members")),
    )
    op.create_index(op.f("ix_members_user_id"), "members", ["user_id"])
    op.create_table(
        "service_accounts",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("workspace_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_by", sa.String(32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["workspace_id"],
            ["workspaces.id"],
            name=op.f("fk_service_accounts_workspace_id_workspaces"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_service_accounts")),
    )
    op.create_index(op.f("ix_service_accounts_workspace_id"), "service_accounts", ["workspace_id"])
    _make_credentials()
    _make_approvals()


def _make_credentials() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("workspace_id", sa.String(32), nullable=False),
        sa.Column("deployment_id", sa.String(128), nullable=True),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("scopes", sa.String(200), nullable=False),
        sa.Column("user_id", sa.String(32), nullable=True),
        sa.Column("service_account_id", sa.String(32), nullable=True),
        sa.Column("person_id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_api_keys_workspace_id_workspaces")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_api_keys_user_id_users")),
        sa.ForeignKeyConstraint(
            ["person_id"], ["users.id"], name=op.f("fk_api_keys_person_id_users")
        ),
        sa.ForeignKeyConstraint(
            ["service_account_id"],
            ["service_accounts.id"],
            name=op.f("fk_api_keys_service_account_id_service_accounts"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_keys_sha256")),
    )
    op.create_index(op.f("ix_api_keys_workspace_id_name"), "api_keys", ["workspace_id", "name"])
    op.create_index(op.f("ix_api_keys_deployment_id"), "api_keys", ["deployment_id"])
    op.create_index(op.f("ix_api_keys_user_id"), "api_keys", ["user_id"])
    op.create_index(op.f("ix_api_keys_service_account_id"), "api_keys", ["service_account_id"])
    op.create_table(
        "sign_ins",
        sa.Column("token_sha256", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(32), nullable=False),
        sa.Column("method", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_sign_ins_user_id_users")),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_sign_ins")),
    )
    op.create_index(op.f("ix_sign_ins_user_id"), "sign_ins", ["user_id"])
    op.create_index(op.f("ix_sign_ins_expires_at"), "sign_ins", ["expires_at"])
    op.create_table(
        "used_owner_links",
        sa.Column("token_sha256", sa.String(64), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_used_owner_links")),
    )
    op.create_table(
        "oidc_flows",
        sa.Column("browser_sha256", sa.String(64), nullable=False),
        sa.Column("state_sha256", sa.String(64), nullable=False),
        sa.Column("nonce", sa.String(64), nullable=False),
        sa.Column("verifier", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("browser_sha256", name=op.f("pk_oidc_flows")),
    )
    op.create_index(op.f("ix_oidc_flows_created_at"), "oidc_flows", ["created_at"])


def _make_approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("workspace_id", sa.String(32), nullable=False),
        sa.Column("deployment_id", sa.String(128), nullable=True),
        sa.Column("operation", sa.String(64), nullable=False),
        sa.Column("plan", sa.String(200), nullable=False),
        sa.Column("asked_by", sa.String(32), nullable=False),
        sa.Column("person_id", sa.String(32), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("decided_by", sa.String(32), nullable=True),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.Column("agreed", sa.Boolean(), nullable=True),
        sa.Column("taken_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_approvals_workspace_id_workspaces")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
    )
    op.create_index(op.f("ix_approvals_workspace_id"), "approvals", ["workspace_id"])
