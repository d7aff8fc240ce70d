"""Where on record requests of persons are, beside incidents: the tables of places take both."""

from alembic import op

revision = "0039"
down_revision = "0035"
branch_labels = None
depends_on = None

NAMES = {"incident_cursor": "case_cursor", "incident_place": "case_place"}


def upgrade() -> None:
    for before, after in NAMES.items():
        op.rename_table(before, after)


def downgrade() -> None:
    for before, after in NAMES.items():
        op.rename_table(after, before)
