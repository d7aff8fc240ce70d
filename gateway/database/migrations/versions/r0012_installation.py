"""Which installation the database belongs to: one row, written when first opened (`gateway.database.ownership`)."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), primary_key=True),  # always 1
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("log", sa.String(200), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("installation")
