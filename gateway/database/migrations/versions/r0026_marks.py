"""Keys by which answers are watermarked, and what was marked by them."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "mark_key",
        sa.Column("tenant", sa.String(31), primary_key=True),
        sa.Column("period", sa.String(7), primary_key=True),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_mark_key_tenant"),
    )
    op.create_table(
        "mark_use",
        sa.Column("tenant", sa.String(31), primary_key=True),
        sa.Column("period", sa.String(7), primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("scheme", sa.String(32), primary_key=True),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_mark_use_tenant"),
    )


def downgrade() -> None:
    op.drop_table("mark_use")
    op.drop_table("mark_key")
