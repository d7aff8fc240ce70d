"""LoRA adapters of projects."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "adapter",
        sa.Column("tenant", sa.String(31), primary_key=True),
        sa.Column("project", sa.String(31), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("path", sa.String(1024), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant", "project"], ["project.tenant", "project.id"], name="fk_adapter_tenant_project"
        ),
    )
    op.create_index("ix_adapter_epoch", "adapter", ["epoch"])


def downgrade() -> None:
    op.drop_table("adapter")
