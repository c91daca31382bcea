"""What the plan of an approval counted, for whoever is to agree."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the counts."""
    op.add_column("approvals", sa.Column("tenants", sa.BigInteger(), nullable=True))
    op.add_column("approvals", sa.Column("sessions", sa.BigInteger(), nullable=True))
