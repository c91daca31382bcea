"""The label that an approval is about, and the token of a plan over several deployments."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both."""
    op.add_column("approvals", sa.Column("subject", sa.String(320), nullable=True))
    op.add_column("approvals", sa.Column("token", sa.Text(), nullable=True))
