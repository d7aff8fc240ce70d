"""Limits of kinds that have no column of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("limit_setting", sa.Column("others", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("limit_setting", "others")
