"""Second persons: who made people and tokens, since when roles are as they are, and who vouched for a person."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("person", "access_token"):
        op.add_column(table, sa.Column("made_by", sa.String(), nullable=True))
    op.add_column("person", sa.Column("roles_since", sa.DateTime(timezone=True), nullable=True))
    op.add_column("person", sa.Column("vouched_by", sa.String(8), nullable=True))
    op.add_column("person", sa.Column("vouched_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("policy_proposal", sa.Column("submitted_with", sa.String(), nullable=True))


def downgrade() -> None:
    op.drop_column("policy_proposal", "submitted_with")
    for column in ("vouched_at", "vouched_by", "roles_since", "made_by"):
        op.drop_column("person", column)
    op.drop_column("access_token", "made_by")
