"""Other cells: peers, tenants allowed there, tenants taken over, and the bundles they came in."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "cell_peer",
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("id", sa.String(31), nullable=False),
        sa.Column("verifier_key", sa.String(), nullable=False),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_cell_peer"),
    )
    op.create_index("ix_cell_peer_epoch", "cell_peer", ["epoch"])
    op.create_table(
        "tenant_cell",
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("peer", sa.String(31), nullable=False),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_tenant_cell_tenant"),
        sa.ForeignKeyConstraint(["peer"], ["cell_peer.id"], name="fk_tenant_cell_peer"),
        sa.PrimaryKeyConstraint("tenant", "peer", name="pk_tenant_cell"),
    )
    op.create_index("ix_tenant_cell_epoch", "tenant_cell", ["epoch"])
    op.create_table(
        "tenant_home",
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("home", sa.String(31), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_tenant_home_tenant"),
        sa.PrimaryKeyConstraint("tenant", name="pk_tenant_home"),
    )
    op.create_table(
        "bundle",
        sa.Column("home", sa.String(31), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("applied_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("home", name="pk_bundle"),
    )


def downgrade() -> None:
    for table in ("bundle", "tenant_home", "tenant_cell", "cell_peer"):
        op.drop_table(table)
