"""Names that projects give to models, and the web origins that may call for a project."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "model_name",
        sa.Column("tenant", sa.String(31), primary_key=True),
        sa.Column("project", sa.String(31), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("defaults", sa.JSON(), nullable=False),
        sa.Column("other_vectors", sa.Boolean(), nullable=False),
        sa.Column("deprecated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sunset_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("replacement", sa.String(128), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant", "project"], ["project.tenant", "project.id"], name="fk_model_name_tenant_project"
        ),
    )
    op.create_index("ix_model_name_epoch", "model_name", ["epoch"])
    op.add_column("project", sa.Column("origins", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("project", "origins")
    op.drop_table("model_name")
