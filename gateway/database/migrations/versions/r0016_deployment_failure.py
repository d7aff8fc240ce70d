"""Deployments: how often starting failed since it last succeeded, and why and when it did so last."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("deployment") as table:
        table.add_column(sa.Column("failures", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("failure", sa.String(400), nullable=True))
        table.add_column(sa.Column("failed_at", sa.DateTime(timezone=True), nullable=True))
    with op.batch_alter_table("deployment") as table:
        table.alter_column("failures", server_default=None)  # for the rows that there were


def downgrade() -> None:
    with op.batch_alter_table("deployment") as table:
        table.drop_column("failed_at")
        table.drop_column("failure")
        table.drop_column("failures")
