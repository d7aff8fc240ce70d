"""AI systems and projects that a person stopped."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "oversight_stop",
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("project", sa.String(31), nullable=False),
        sa.Column("ai_system_id", sa.String(200), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("stopped_at", INSTANT, nullable=False),
        sa.Column("stopped_by", sa.String(), nullable=False),
        sa.Column("resumed_at", INSTANT, nullable=True),
        sa.Column("resumed_by", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "project", "ai_system_id", name="pk_oversight_stop"),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_oversight_stop_tenant"),
    )
    op.create_index("ix_oversight_stop_epoch", "oversight_stop", ["epoch"])


def downgrade() -> None:
    op.drop_table("oversight_stop")
