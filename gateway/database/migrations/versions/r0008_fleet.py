"""The fleet: deployments, their replicas and the time these are up, what gateways have to do, and leases."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "deployment",
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("id", sa.String(31), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("weights", sa.String(), nullable=False),
        sa.Column("regions", sa.JSON(), nullable=False),
        sa.Column("gpu", sa.String(32), nullable=False),
        sa.Column("min_replicas", sa.Integer(), nullable=False),
        sa.Column("max_replicas", sa.Integer(), nullable=False),
        sa.Column("idle_s", sa.Integer(), nullable=False),
        sa.Column("ttft_ms", sa.Integer(), nullable=False),
        sa.Column("calls_each", sa.Integer(), nullable=False),
        sa.Column("asleep_s", sa.Integer(), nullable=False),
        sa.Column("wait_s", sa.Integer(), nullable=False),
        sa.Column("micro_eur_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("deleted_at", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_deployment_tenant"),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_deployment"),
    )
    op.create_index("ix_deployment_epoch", "deployment", ["epoch"])
    op.create_table(
        "replica",
        sa.Column("id", sa.String(31), nullable=False),
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("deployment", sa.String(31), nullable=False),
        sa.Column("region", sa.String(31), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("holder", sa.String(128), nullable=False),
        sa.Column("gpu", sa.String(32), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("micro_eur_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("metered_until", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("reason", sa.String(64), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_replica"),
    )
    op.create_index("ix_replica_cell_ended_at", "replica", ["cell", "ended_at"])
    op.create_table(
        "uptime",
        sa.Column("replica", sa.String(31), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("deployment", sa.String(31), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("region", sa.String(31), nullable=False),
        sa.Column("gpu", sa.String(32), nullable=False),
        sa.Column("micro_eur_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("up_ms", sa.BigInteger(), nullable=False),
        sa.Column("busy_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("replica", "day", name="pk_uptime"),
    )
    op.create_index("ix_uptime_day_tenant", "uptime", ["day", "tenant"])
    op.create_table(
        "demand",
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("in_flight", sa.Integer(), nullable=False),
        sa.Column("parked", sa.Integer(), nullable=False),
        sa.Column("ttft_ms", sa.Double(), nullable=True),
        sa.Column("regions", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "model", "node", name="pk_demand"),
    )
    op.create_table(
        "lease",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("holder", sa.String(128), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_lease"),
    )


def downgrade() -> None:
    for table in ("lease", "demand", "uptime", "replica", "deployment"):
        op.drop_table(table)
