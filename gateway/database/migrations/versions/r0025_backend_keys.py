"""Public keys that managed services have shown."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "backend_key",
        sa.Column("backend", sa.String(31), primary_key=True),
        sa.Column("key_sha256", sa.String(64), primary_key=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["backend"], ["backend.id"], name="fk_backend_key_backend"),
    )


def downgrade() -> None:
    op.drop_table("backend_key")
