"""Sums of the ledger by day, of what it holds, and a mark on rows that are in them; and where on record incidents are.

Gateways of the version before go on writing rows beside the new ones: those lack the mark, by which the new ones find
and add them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

PLACE = (
    ("tenant", 63),
    ("day", 10),
    ("project", 256),
    ("key_id", 256),
    ("model", 256),
    ("region", 256),
    ("backend", 256),
)
FIGURES = {
    "requests": "count(*)",
    "completed": "sum(CASE WHEN outcome = 'completed' THEN 1 ELSE 0 END)",
    "aborted": "sum(CASE WHEN outcome = 'aborted' THEN 1 ELSE 0 END)",
    "refused": "sum(CASE WHEN outcome = 'refused' THEN 1 ELSE 0 END)",
    "estimated": "sum(CASE WHEN estimated THEN 1 ELSE 0 END)",
    "unpriced": "sum(CASE WHEN nano_eur IS NULL THEN 1 ELSE 0 END)",
    "tokens_in": "sum(tokens_in)",
    "tokens_cached": "sum(tokens_cached)",
    "tokens_out": "sum(tokens_out)",
    "backend_ms": "sum(backend_ms)",
    "nano_eur": "coalesce(sum(nano_eur), 0)",
    "priced_tokens": "sum(CASE WHEN nano_eur IS NULL THEN 0 ELSE tokens_in + tokens_out END)",
    "measured": "count(energy_mj)",
    "energy_mj": "coalesce(sum(energy_mj), 0)",
    "measured_tokens": "sum(CASE WHEN energy_mj IS NULL THEN 0 ELSE tokens_in + tokens_out END)",
}
REST = "day IS NOT NULL AND summed IS NULL"


def upgrade() -> None:
    op.create_table(
        "daily_sum",
        *(sa.Column(name, sa.String(length), primary_key=True) for name, length in PLACE),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in FIGURES),
        sa.Column("keep_days", sa.Integer(), nullable=False),
    )
    op.add_column("ledger", sa.Column("summed", sa.Boolean(), nullable=True))  # locks the table until the commit
    place = ", ".join(name for name, _ in PLACE)
    op.execute(
        f"INSERT INTO daily_sum ({place}, {', '.join(FIGURES)}, keep_days)"  # noqa: S608  # names from above
        f" SELECT {place}, {', '.join(FIGURES.values())}, max(coalesce(keep_days, 365))"
        f" FROM ledger WHERE day IS NOT NULL GROUP BY {place}"
    )
    op.execute("UPDATE ledger SET summed = true WHERE day IS NOT NULL")
    op.create_index("ix_ledger_rest", "ledger", ["day"], postgresql_where=sa.text(REST), sqlite_where=sa.text(REST))
    op.create_table(
        "incident_cursor",
        sa.Column("log", sa.String(16), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.Column("leaf_hash", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "incident_place",
        sa.Column("log", sa.String(16), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("seq", sa.BigInteger(), primary_key=True, autoincrement=False),
    )


def downgrade() -> None:
    op.drop_table("incident_place")
    op.drop_table("incident_cursor")
    op.drop_index("ix_ledger_rest", "ledger")
    op.drop_column("ledger", "summed")
    op.drop_table("daily_sum")
