"""Files and batches, their prices, and which call of the ledger is which line of a batch."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def _content() -> list[Any]:
    return [sa.Column("data_key", sa.String(36), nullable=False), sa.Column("sealed", sa.LargeBinary(), nullable=False)]


def _owner() -> list[Any]:
    return [sa.Column(name, sa.String(31), nullable=False) for name in ("cell", "tenant", "project")]


def upgrade() -> None:
    op.create_table(
        "stored_file",
        sa.Column("id", sa.String(40), primary_key=True),
        *_owner(),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("batch", sa.String(40), nullable=True),
        sa.Column("part", sa.String(8), nullable=True),
        *_content(),
    )
    op.create_index("ix_stored_file_project", "stored_file", ["tenant", "project", "created_at", "id"])
    op.create_index("ix_stored_file_expires_at", "stored_file", ["expires_at"])
    op.create_table(
        "file_part",
        sa.Column("file", sa.String(40), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        *_content(),
    )
    op.create_table(
        "batch",
        sa.Column("id", sa.String(40), primary_key=True),
        *_owner(),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("endpoint", sa.String(128), nullable=False),
        sa.Column("input_file", sa.String(40), nullable=False),
        sa.Column("output_file", sa.String(40), nullable=True),
        sa.Column("error_file", sa.String(40), nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("total", "completed", "failed")),
        *(sa.Column(name, sa.Double(), nullable=False) for name in ("created_at", "expires_at")),
        *(
            sa.Column(name, sa.Double(), nullable=True)
            for name in ("in_progress_at", "cancelling_at", "finalizing_at", "ended_at")
        ),
        sa.Column("kept_until", sa.Double(), nullable=False),
        *_content(),
    )
    op.create_index("ix_batch_project", "batch", ["tenant", "project", "created_at", "id"])
    op.create_index("ix_batch_status", "batch", ["status"])
    op.create_table(
        "batch_result",
        sa.Column("batch", sa.String(40), primary_key=True),
        sa.Column("line", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("part", sa.String(8), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        *_content(),
    )
    op.add_column("price", sa.Column("batch_discount", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("ledger", sa.Column("batch", sa.String(40), nullable=True))
    op.add_column("ledger", sa.Column("line", sa.Integer(), nullable=True))
    op.create_index("ix_ledger_batch_line", "ledger", ["batch", "line"])


def downgrade() -> None:
    op.drop_index("ix_ledger_batch_line", "ledger")
    op.drop_column("ledger", "line")
    op.drop_column("ledger", "batch")
    op.drop_column("price", "batch_discount")
    for table in ("batch_result", "batch", "file_part", "stored_file"):
        op.drop_table(table)
