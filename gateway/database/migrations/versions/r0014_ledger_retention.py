"""How many days the row of a call is kept: as long as its record."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("ledger") as table:
        table.add_column(sa.Column("keep_days", sa.Integer(), nullable=True))
        table.create_index("ix_ledger_accepted_at", ["accepted_at"])


def downgrade() -> None:
    with op.batch_alter_table("ledger") as table:
        table.drop_index("ix_ledger_accepted_at")
        table.drop_column("keep_days")
