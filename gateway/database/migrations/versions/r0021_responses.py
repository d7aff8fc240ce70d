"""Responses that are kept to be asked for again, or are waiting to be answered."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_response",
        sa.Column("id", sa.String(40), primary_key=True),
        *(sa.Column(name, sa.String(31), nullable=False) for name in ("cell", "tenant", "project")),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("previous", sa.String(40), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("data_key", sa.String(36), nullable=False),
        sa.Column("asked", sa.LargeBinary(), nullable=False),
        sa.Column("answered", sa.LargeBinary(), nullable=True),
    )
    op.create_index("ix_stored_response_expires_at", "stored_response", ["expires_at"])
    op.create_index("ix_stored_response_status", "stored_response", ["status"])


def downgrade() -> None:
    op.drop_table("stored_response")
