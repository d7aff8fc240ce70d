"""People who come in through an identity provider; answers kept for calls that are repeated."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("person") as table:
        table.add_column(sa.Column("subject", sa.String(64), nullable=True))
    op.create_index("uq_person_subject_tenant", "person", ["subject", "tenant"], unique=True)
    op.create_table(
        "idempotent_answer",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("cell", sa.String(31), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_idempotent_answer"),
    )
    op.create_index("ix_idempotent_answer_created_at", "idempotent_answer", ["created_at"])


def downgrade() -> None:
    op.drop_table("idempotent_answer")
    op.drop_index("uq_person_subject_tenant", "person")
    with op.batch_alter_table("person") as table:
        table.drop_column("subject")
