"""Rows of files and batches. Their content is sealed under data keys of the value store (`audit.private.content_keys`),
each named by its id beside the ciphertext, so this database alone does not disclose it.

They are no configuration: they have no epoch, and are deleted when their time is over.
"""

from sqlalchemy import BigInteger, Double, Index, LargeBinary
from sqlmodel import Field

from gateway.database.tables.control import Row


class StoredFileRow(Row, table=True):
    """A file of a project. `state`: uploading, ready, or deleted while its parts are still there. `size`: its bytes.
    `lines`: those that are not blank. `batch` and `part`: of a result, the batch and which of its results. `sealed`:
    its name."""

    __tablename__ = "stored_file"
    __table_args__ = (
        Index("ix_stored_file_project", "tenant", "project", "created_at", "id"),
        Index("ix_stored_file_expires_at", "expires_at"),
    )

    id: str = Field(primary_key=True, max_length=40)
    cell: str = Field(max_length=31)
    tenant: str = Field(max_length=31)
    project: str = Field(max_length=31)
    purpose: str = Field(max_length=16)
    state: str = Field(max_length=16)
    size: int = Field(sa_type=BigInteger)
    lines: int
    created_at: float = Field(sa_type=Double)
    expires_at: float = Field(sa_type=Double)
    batch: str | None = Field(None, max_length=40)
    part: str | None = Field(None, max_length=8)
    data_key: str = Field(max_length=36)
    sealed: bytes = Field(sa_type=LargeBinary)


class FilePartRow(Row, table=True):
    """Consecutive lines of an uploaded file, byte for byte, from line `first` (1 is the first of the file) on; `lines`
    of them are not blank."""

    __tablename__ = "file_part"

    file: str = Field(primary_key=True, max_length=40)
    number: int = Field(primary_key=True)
    first: int
    lines: int
    data_key: str = Field(max_length=36)
    sealed: bytes = Field(sa_type=LargeBinary)


class BatchRow(Row, table=True):
    """A batch. Times in seconds since 1970. `key_id`: the API key that made it, whose principal each line acts for.
    `sealed`: its metadata and, of one that failed, why."""

    __tablename__ = "batch"
    __table_args__ = (
        Index("ix_batch_project", "tenant", "project", "created_at", "id"),
        Index("ix_batch_status", "status"),
    )

    id: str = Field(primary_key=True, max_length=40)
    cell: str = Field(max_length=31)
    tenant: str = Field(max_length=31)
    project: str = Field(max_length=31)
    key_id: str = Field(max_length=64)
    endpoint: str = Field(max_length=128)
    input_file: str = Field(max_length=40)
    output_file: str | None = Field(None, max_length=40)
    error_file: str | None = Field(None, max_length=40)
    status: str = Field(max_length=16)
    total: int = 0
    completed: int = 0
    failed: int = 0
    created_at: float = Field(sa_type=Double)
    expires_at: float = Field(sa_type=Double)
    in_progress_at: float | None = Field(None, sa_type=Double)
    cancelling_at: float | None = Field(None, sa_type=Double)
    finalizing_at: float | None = Field(None, sa_type=Double)
    ended_at: float | None = Field(None, sa_type=Double)
    kept_until: float = Field(sa_type=Double)
    data_key: str = Field(max_length=36)
    sealed: bytes = Field(sa_type=LargeBinary)


class BatchResultRow(Row, table=True):
    """The one result of a line: of part ``output`` or ``error``. `size`: bytes of it as the file has it."""

    __tablename__ = "batch_result"

    batch: str = Field(primary_key=True, max_length=40)
    line: int = Field(primary_key=True)
    part: str = Field(max_length=8)
    size: int
    data_key: str = Field(max_length=36)
    sealed: bytes = Field(sa_type=LargeBinary)
