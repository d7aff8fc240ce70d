"""People and groups as an identity provider provisions them by SCIM."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def _common() -> tuple["sa.Column[Any]", ...]:
    """Columns belong to one table."""
    return (
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("name_key", sa.String(256), nullable=False),
        sa.Column("external_id", sa.String(256), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
    )


def upgrade() -> None:
    op.create_table(
        "scim_user",
        *_common(),
        sa.Column("display_name", sa.String(200), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("subject", sa.String(64), nullable=True),
    )
    op.create_table("scim_group", *_common())
    for table in ("scim_user", "scim_group"):
        op.create_index(f"uq_{table}_name", table, ["cell", "name_key"], unique=True)
    op.create_index("uq_scim_user_subject", "scim_user", ["subject"], unique=True)
    op.create_table(
        "scim_member",
        sa.Column("group", sa.String(32), sa.ForeignKey("scim_group.id"), primary_key=True),
        sa.Column("user", sa.String(32), sa.ForeignKey("scim_user.id"), primary_key=True),
    )
    op.create_index("ix_scim_member_user", "scim_member", ["user"])


def downgrade() -> None:
    for table in ("scim_member", "scim_group", "scim_user"):
        op.drop_table(table)
