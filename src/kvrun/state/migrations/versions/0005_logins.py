"""Codes with which command lines get a person's login, and why an approval was refused."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table and the columns."""
    op.create_table(
        "login_codes",
        sa.Column("code_sha256", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(32), nullable=False),
        sa.Column("challenge", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("browser_sha256", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_login_codes_user_id_users")
        ),
        sa.PrimaryKeyConstraint("code_sha256", name=op.f("pk_login_codes")),
    )
    op.create_index(op.f("ix_login_codes_user_id"), "login_codes", ["user_id"])
    op.create_index(op.f("ix_login_codes_browser_sha256"), "login_codes", ["browser_sha256"])
    op.add_column("sign_ins", sa.Column("browser_sha256", sa.String(64), nullable=True))
    op.create_index(op.f("ix_sign_ins_browser_sha256"), "sign_ins", ["browser_sha256"])
    op.add_column("api_keys", sa.Column("login_sha256", sa.String(64), nullable=True))
    op.create_index(op.f("ix_api_keys_login_sha256"), "api_keys", ["login_sha256"])
    op.add_column("approvals", sa.Column("reason", sa.String(500), nullable=True))
