"""Webhooks: how far the record was read for each, and what is to be sent."""

from sqlalchemy import BigInteger, Double, Index, Text
from sqlmodel import Field

from gateway.database.tables.control import Row


class WebhookCursorRow(Row, table=True):
    """The next leaf of each tree of a log for one webhook. Tenant '': that it was begun."""

    __tablename__ = "webhook_cursor"

    hook: str = Field(primary_key=True, max_length=31)
    log: str = Field(primary_key=True, max_length=16)
    tenant: str = Field(primary_key=True, max_length=63)
    next_seq: int = Field(sa_type=BigInteger)


class WebhookMessageRow(Row, table=True):
    """A message, waiting, delivered or given_up. Times in Unix seconds. Kept for a while afterwards, so that it is not
    made a second time."""

    __tablename__ = "webhook_message"
    __table_args__ = (Index("ix_webhook_message_state_due", "state", "due_at"),)

    hook: str = Field(primary_key=True, max_length=31)
    id: str = Field(primary_key=True, max_length=200)
    body: str = Field(sa_type=Text)
    state: str = Field(max_length=9)
    attempts: int
    made_at: float = Field(sa_type=Double)
    due_at: float = Field(sa_type=Double)
