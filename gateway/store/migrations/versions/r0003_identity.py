"""People who come in through an identity provider."""

import sqlalchemy as sa
from alembic import op

revision = "0003_identity"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("person") as table:
        table.add_column(sa.Column("subject", sa.String(64), nullable=True))
    op.create_index("uq_person_subject_tenant", "person", ["subject", "tenant"], unique=True)


def downgrade() -> None:
    op.drop_index("uq_person_subject_tenant", "person")
    with op.batch_alter_table("person") as table:
        table.drop_column("subject")
