"""Fingerprints of the keys that all hosts of the cell share (`gateway.installation.key_fingerprints`)."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "key_fingerprint",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("fingerprint", sa.String(32), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("key_fingerprint")
