"""Webhooks: how far the record was read for each, and what is to be sent."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhook_cursor",
        sa.Column("hook", sa.String(31), primary_key=True),
        sa.Column("log", sa.String(16), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "webhook_message",
        sa.Column("hook", sa.String(31), primary_key=True),
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(9), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
    )
    op.create_index("ix_webhook_message_state_due", "webhook_message", ["state", "due_at"])


def downgrade() -> None:
    op.drop_table("webhook_message")
    op.drop_table("webhook_cursor")
