"""The energy that a call took, where its backend measured it."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("ledger") as table:
        table.add_column(sa.Column("energy_mj", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("ledger") as table:
        table.drop_column("energy_mj")
