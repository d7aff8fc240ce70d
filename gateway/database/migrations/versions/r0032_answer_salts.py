"""Salts of the fingerprints of answers, one a tenant and month."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "answer_salt",
        sa.Column("tenant", sa.String(31), primary_key=True),
        sa.Column("period", sa.String(7), primary_key=True),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_answer_salt_tenant"),
    )


def downgrade() -> None:
    op.drop_table("answer_salt")
