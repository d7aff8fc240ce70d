"""Policies that wait for a second person, the operator's own policy, and backends that are not our engine."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    with op.batch_alter_table("policy_version") as table:  # the operator's own belongs to no tenant
        table.drop_constraint("fk_policy_version_tenant", type_="foreignkey")
    with op.batch_alter_table("backend") as table:
        table.add_column(sa.Column("kind", sa.String(16), nullable=False, server_default="domicile"))
        table.add_column(sa.Column("single_tenant", sa.String(16), nullable=True))
        table.add_column(sa.Column("trust", sa.JSON(), nullable=True))
    op.create_table(
        "policy_proposal",
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("project", sa.String(31), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("document", sa.String(), nullable=False),
        sa.Column("submitted_by", sa.String(), nullable=False),
        sa.Column("approved_by", sa.String(), nullable=True),
        sa.Column("approved_at", INSTANT, nullable=True),
        sa.Column("activates_at", INSTANT, nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("withdrawn_at", INSTANT, nullable=True),
        sa.Column("withdrawn_because", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "project", "number", name="pk_policy_proposal"),
    )
    op.create_index("ix_policy_proposal_epoch", "policy_proposal", ["epoch"])


def downgrade() -> None:
    op.drop_table("policy_proposal")
    op.execute("DELETE FROM policy_version WHERE tenant = ''")
    with op.batch_alter_table("policy_version") as table:
        table.create_foreign_key("fk_policy_version_tenant", "tenant", ["tenant"], ["id"])
    with op.batch_alter_table("backend") as table:
        for column in ("trust", "single_tenant", "kind"):
            table.drop_column(column)
