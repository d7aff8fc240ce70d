"""Calls and loads of backends added up over minutes, for the console's curves."""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "call_curve",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("step_s", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("begin", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("took", sa.Integer(), primary_key=True, autoincrement=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("completed", "denied", "refused", "aborted", "tokens_out", "first_tokens", "first_token_ms")
        ),
    )
    op.create_index("ix_call_curve_step_s_begin", "call_curve", ["step_s", "begin"])
    op.create_table(
        "backend_curve",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("step_s", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("begin", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("backend", sa.String(256), primary_key=True),
        sa.Column("looks", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=False) for name in ("running", "waiting", "kv_use")),
        *(sa.Column(name, sa.Double(), nullable=False) for name in ("tokens_per_s", "watts")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("rated", "powered")),
    )
    op.create_index("ix_backend_curve_step_s_begin", "backend_curve", ["step_s", "begin"])


def downgrade() -> None:
    op.drop_table("backend_curve")
    op.drop_table("call_curve")
