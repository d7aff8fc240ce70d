"""When a session's person last showed who they are."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("access_token", sa.Column("authenticated_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("access_token", "authenticated_at")
