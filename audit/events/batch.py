"""Events about files and batches: content that a project hands over for later, and what becomes of it."""

from typing import ClassVar, Literal

from audit.events.base import Actor, Code, Count, Endpoint, Event, Ocsf, RecordRetention, Text
from audit.events.ocsf import API_ACTIVITY, CREATE, DELETE, READ


class FileEvent(Event):
    """A file was kept, read by its project, or deleted: on the project's word, or by its time (`reason`). Its content
    is sealed; `bytes` and `lines` are of what it says."""

    is_access: ClassVar[bool] = True

    type: Literal["file.stored", "file.read", "file.deleted"]
    project: Text
    actor: Actor
    file_id: Text
    purpose: Code
    bytes: Count
    lines: Count
    reason: Code | None = None

    @classmethod
    def ocsf_of(cls, kind: str) -> Ocsf:
        activity = {"file.stored": CREATE, "file.read": READ, "file.deleted": DELETE}[kind]
        return Ocsf(API_ACTIVITY, activity)


class BatchEvent(Event):
    """A batch was created, cancelled, or came to its end. Each of its lines is a call of its own on record, with
    `batch_id` and `batch_line`; `total`, `completed` and `failed` count them."""

    kept: ClassVar[RecordRetention] = RecordRetention.SECURITY
    ocsf: ClassVar[Ocsf] = Ocsf(API_ACTIVITY, CREATE)

    type: Literal["batch.created", "batch.cancelled", "batch.ended"]
    project: Text
    actor: Actor
    batch_id: Text
    endpoint: Endpoint
    input_file_id: Text
    status: Code
    total: Count = 0
    completed: Count = 0
    failed: Count = 0
