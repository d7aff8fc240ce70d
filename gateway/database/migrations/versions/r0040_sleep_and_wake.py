"""What a person asked of a deployment: to sleep, or to wake."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("deployment") as table:
        table.add_column(sa.Column("asked", sa.String(16), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("deployment") as table:
        table.drop_column("asked")
