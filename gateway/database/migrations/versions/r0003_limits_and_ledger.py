"""Limits of tenants, projects and keys, what is counted against them, prices, and the ledger of usage."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _create(
        "limit_setting",
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("project", sa.String(31), nullable=False),
        sa.Column("key", sa.String(8), nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("concurrent_requests", sa.BigInteger(), nullable=True),
        sa.Column("micro_eur_per_day", sa.BigInteger(), nullable=True),
        sa.Column("micro_eur_per_month", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "project", "key", name="pk_limit_setting"),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_limit_setting_tenant"),
    )
    _create(
        "price",
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("valid_from", INSTANT, nullable=False),
        sa.Column("input", sa.BigInteger(), nullable=False),
        sa.Column("output", sa.BigInteger(), nullable=False),
        sa.Column("cached", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cell", "model", "number", name="pk_price"),
    )
    op.create_table(
        "limit_bucket",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("level", sa.Double(), nullable=False),
        sa.Column("held", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_limit_bucket"),
    )
    op.create_table(
        "limit_hold",
        sa.Column("reservation", sa.String(16), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=False),
        sa.Column("amounts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("reservation", name="pk_limit_hold"),
    )
    op.create_index("ix_limit_hold_deadline", "limit_hold", ["deadline"])
    op.create_table(
        "ledger_cursor",
        sa.Column("log", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("log", "tenant", name="pk_ledger_cursor"),
    )
    op.create_table(
        "ledger",
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("request_id", sa.String(256), nullable=False),
        sa.Column("project", sa.String(256), nullable=False),
        sa.Column("key_id", sa.String(256), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("region", sa.String(256), nullable=False),
        sa.Column("backend", sa.String(256), nullable=False),
        sa.Column("accepted_at", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=True),
        sa.Column("day", sa.String(10), nullable=True),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_cached", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("backend_ms", sa.BigInteger(), nullable=False),
        sa.Column("price", sa.Integer(), nullable=True),
        sa.Column("nano_eur", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "request_id", name="pk_ledger"),
    )
    op.create_index("ix_ledger_day_tenant", "ledger", ["day", "tenant"])


def _create(table: str, *parts: sa.schema.SchemaItem) -> None:
    op.create_table(
        table,
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        *parts,
    )
    op.create_index(f"ix_{table}_epoch", table, ["epoch"])


def downgrade() -> None:
    for table in ("ledger", "ledger_cursor", "limit_hold", "limit_bucket", "price", "limit_setting"):
        op.drop_table(table)
