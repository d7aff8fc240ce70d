"""Places of records of changes, so that the list of changes does not read the records of calls."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "change_cursor",
        sa.Column("log", sa.String(16), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.Column("leaf_hash", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "change_place",
        sa.Column("log", sa.String(16), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("seq", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("type", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("change_place")
    op.drop_table("change_cursor")
