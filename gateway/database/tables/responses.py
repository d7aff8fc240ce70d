"""Rows of responses that are kept to be asked for again, or wait to be answered. Their content is sealed under data
keys of the value store, as that of files is (`gateway.database.tables.batches`)."""

from sqlalchemy import Double, Index, LargeBinary
from sqlmodel import Field

from gateway.database.tables.control import Row


class StoredResponseRow(Row, table=True):
    """A response of a project. `previous`: the response that it goes on with. `status`: OpenAI's, or ``deleted`` while
    its key may still be there. `key_id`: the API key that asked, whose principal a call in the background acts for.
    `asked`: sealed, what was asked; `answered`: sealed, the response, once there is one. Times in
    seconds since 1970."""

    __tablename__ = "stored_response"
    __table_args__ = (
        Index("ix_stored_response_expires_at", "expires_at"),
        Index("ix_stored_response_status", "status"),
    )

    id: str = Field(primary_key=True, max_length=40)
    cell: str = Field(max_length=31)
    tenant: str = Field(max_length=31)
    project: str = Field(max_length=31)
    key_id: str = Field(max_length=64)
    background: bool
    status: str = Field(max_length=16)
    previous: str | None = Field(None, max_length=40)
    created_at: float = Field(sa_type=Double)
    expires_at: float = Field(sa_type=Double)
    data_key: str = Field(max_length=36)
    asked: bytes = Field(sa_type=LargeBinary)
    answered: bytes | None = Field(None, sa_type=LargeBinary)
