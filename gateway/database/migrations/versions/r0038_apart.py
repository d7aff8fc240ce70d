"""Roles of backends whose tenant has prefill and decode apart, and deployments of them."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("backend") as table:
        table.add_column(sa.Column("role", sa.String(16), nullable=False, server_default="mixed"))
        table.add_column(sa.Column("transfer", sa.String(), nullable=True))
    with op.batch_alter_table("deployment") as table:
        table.add_column(sa.Column("kind", sa.String(16), nullable=False, server_default="mixed"))
        table.add_column(sa.Column("prefill", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("replica") as table:
        table.add_column(sa.Column("role", sa.String(16), nullable=False, server_default="mixed"))


def downgrade() -> None:
    with op.batch_alter_table("replica") as table:
        table.drop_column("role")
    with op.batch_alter_table("deployment") as table:
        table.drop_column("prefill")
        table.drop_column("kind")
    with op.batch_alter_table("backend") as table:
        table.drop_column("transfer")
        table.drop_column("role")
