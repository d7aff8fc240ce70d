"""Tenants, projects, keys, policy versions, backends, and the epoch that rises with each change of them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "config_epoch",
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("value", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("cell", name="pk_config_epoch"),
    )
    _create(
        "tenant",
        sa.Column("id", sa.String(31), nullable=False),
        sa.Column("display_name", sa.String(), nullable=False),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tenant"),
    )
    _create(
        "project",
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("id", sa.String(31), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("legal_basis", sa.String(), nullable=False),
        sa.Column("data_classes", sa.JSON(), nullable=False),
        sa.Column("risk_class", sa.String(), nullable=False),
        sa.Column("ai_system_id", sa.String(), nullable=True),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_project"),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_project_tenant"),
    )
    _create(
        "api_key",
        sa.Column("id", sa.String(8), nullable=False),
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("project", sa.String(31), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("last_four", sa.String(4), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("expires_at", INSTANT, nullable=True),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_key"),
        sa.ForeignKeyConstraint(
            ["tenant", "project"], ["project.tenant", "project.id"], name="fk_api_key_tenant_project"
        ),
    )
    _create(
        "policy_version",
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("project", sa.String(31), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("document", sa.String(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("activated_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "project", "number", name="pk_policy_version"),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_policy_version_tenant"),
    )
    op.create_index(
        "uq_policy_version_active",
        "policy_version",
        ["tenant", "project"],
        unique=True,
        sqlite_where=sa.text("active"),
        postgresql_where=sa.text("active"),
    )
    _create(
        "backend",
        sa.Column("id", sa.String(31), nullable=False),
        sa.Column("tenant", sa.String(31), nullable=False),
        sa.Column("region", sa.String(31), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("uri", sa.String(), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_backend"),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_backend_tenant"),
    )


def _create(table: str, *parts: sa.schema.SchemaItem) -> None:
    """A table with the columns that all but the epoch have, and the index a reload reads by."""
    op.create_table(
        table,
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        *parts,
    )
    op.create_index(f"ix_{table}_epoch", table, ["epoch"])


def downgrade() -> None:
    for table in ("backend", "policy_version", "api_key", "project", "tenant", "config_epoch"):
        op.drop_table(table)
