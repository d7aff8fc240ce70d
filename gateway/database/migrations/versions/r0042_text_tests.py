"""Texts that were tested within the last hour, counted for all gateways together."""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "text_test",
        sa.Column("tenant", sa.String(31), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_text_test_tenant"),
    )


def downgrade() -> None:
    op.drop_table("text_test")
