"""Keys that rotate, their pepper's generation and last use; people and their access tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    with op.batch_alter_table("api_key") as table:
        table.add_column(sa.Column("pepper", sa.Integer(), nullable=False, server_default="1"))
        table.add_column(sa.Column("replaced_by", sa.String(8), nullable=True))
        table.add_column(sa.Column("last_used_at", INSTANT, nullable=True))
    _create(
        "person",
        sa.Column("id", sa.String(8), nullable=False),
        sa.Column("tenant", sa.String(31), nullable=True),
        sa.Column("display_name", sa.String(), nullable=False),
        sa.Column("roles", sa.JSON(), nullable=False),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_person"),
        sa.ForeignKeyConstraint(["tenant"], ["tenant.id"], name="fk_person_tenant"),
    )
    _create(
        "access_token",
        sa.Column("id", sa.String(8), nullable=False),
        sa.Column("person", sa.String(8), nullable=True),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("pepper", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("last_four", sa.String(4), nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("revoked_at", INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_access_token"),
        sa.ForeignKeyConstraint(["person"], ["person.id"], name="fk_access_token_person"),
    )


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
    op.drop_table("access_token")
    op.drop_table("person")
    with op.batch_alter_table("api_key") as table:
        for column in ("last_used_at", "replaced_by", "pepper"):
            table.drop_column(column)
