"""Marks of running gateways, by which each knows a database in PostgreSQL that was put back to an older state."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gateway_mark",
        sa.Column("gateway", sa.String(32), primary_key=True),
        sa.Column("mark", sa.String(32), nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("gateway_mark")
