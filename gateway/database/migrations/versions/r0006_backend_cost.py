"""What a million tokens cost at a backend, for the choice among those that may answer."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("backend") as table:
        table.add_column(sa.Column("cost", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("backend") as table:
        table.drop_column("cost")
