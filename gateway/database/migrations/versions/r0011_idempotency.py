"""Calls with an Idempotency-Key: which attempt holds the key, and what it changed."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("idempotent_answer") as table:
        table.add_column(sa.Column("holder", sa.String(32), nullable=True))
        table.add_column(sa.Column("made", sa.String(400), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("idempotent_answer") as table:
        table.drop_column("made")
        table.drop_column("holder")
