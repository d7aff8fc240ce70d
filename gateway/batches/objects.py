"""Files and batches as OpenAI's API shows them, and what a client sends to make them."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gateway.apis.endpoints import BATCHED
from gateway.errors import InvalidRequest, invalid_body
from gateway.records.batches import ACTIVE, BatchRecord, FileRecord

PURPOSE = "batch"
RESULT_PURPOSE = "batch_output"
WINDOW = "24h"
WINDOW_S = 24 * 3600.0
MAX_PAIRS = 16
MAX_LISTED = 10_000
FILE_ORDER = {"asc": False, "desc": True}

Key = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Value = Annotated[str, StringConstraints(max_length=512)]


class OutputExpiry(BaseModel):
    """How long result files are kept at most, from their creation on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000)


class NewBatch(BaseModel):
    """The body of ``POST /v1/batches``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input_file_id: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    endpoint: str
    completion_window: Literal["24h"]
    metadata: dict[Key, Value] | None = Field(None, max_length=MAX_PAIRS)
    output_expires_after: OutputExpiry | None = None


def new_batch(raw: bytes) -> NewBatch:
    """Raises InvalidRequest naming the field."""
    try:
        new = NewBatch.model_validate_json(raw)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        place = faults[0]["loc"]
        refused = invalid_body(faults)
        if place and refused.param is None and faults[0]["type"] != "json_invalid":  # a field of this route alone
            field = str(place[0]) if place[0] in NewBatch.model_fields else None
            refused = InvalidRequest(f"{field or 'body'}: {_said(faults[0])}", param=field, code="invalid_type")
        raise refused from None
    endpoints = [endpoint.path for endpoint in BATCHED]
    if new.endpoint not in endpoints:
        raise InvalidRequest(
            f"endpoint is not one that batches have; use one of: {', '.join(endpoints)}",
            param="endpoint",
            code="invalid_value",
        )
    return new


def _said(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "extra_forbidden":
        return "the body has a field that is not one of this route; leave it out"
    if fault["type"] == "missing":
        return "it is missing; send it"
    if fault["type"] == "literal_error":
        return f"it must be {fault['ctx']['expected']}; send that"
    return f"{fault['msg']}; correct it"


def file_object(file: FileRecord, name: str) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at),
        "expires_at": int(file.expires_at),
        "filename": name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(batch: BatchRecord, said: Mapping[str, Any]) -> dict[str, Any]:
    """`said`: what was sealed, its metadata and errors."""
    ended = {"completed": None, "failed": None, "expired": None, "cancelled": None}
    if batch.status not in ACTIVE:
        ended[batch.status] = _at(batch.ended_at)  # type: ignore[assignment]
    errors = said.get("errors")
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": batch.input_file,
        "completion_window": WINDOW,
        "status": batch.status,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": int(batch.created_at),
        "in_progress_at": _at(batch.in_progress_at),
        "expires_at": int(batch.expires_at),
        "finalizing_at": _at(batch.finalizing_at),
        "completed_at": ended["completed"],
        "failed_at": ended["failed"],
        "expired_at": ended["expired"],
        "cancelling_at": _at(batch.cancelling_at),
        "cancelled_at": ended["cancelled"],
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": said.get("metadata"),
    }


def listed(objects: Sequence[dict[str, Any]], more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": more,
    }


def is_file_id(said: str) -> bool:
    """Whether a file can be called so; anything else is no text for a database."""
    return _FILE_ID.fullmatch(said) is not None


def is_batch_id(said: str) -> bool:
    return _BATCH_ID.fullmatch(said) is not None


_FILE_ID, _BATCH_ID = re.compile(r"file-[0-9a-f]{1,34}"), re.compile(r"batch_[0-9a-f]{1,34}")


def limit_of(query: Mapping[str, str], default: int, most: int) -> int:
    """Raises InvalidRequest."""
    said = query.get("limit")
    if said is None:
        return default
    if not (said.isascii() and said.isdigit() and 1 <= int(said[:9]) <= most):
        raise InvalidRequest(
            f"limit must be a number from 1 to {most}; correct it", param="limit", code="invalid_value"
        )
    return int(said)


def purpose_of(query: Mapping[str, str]) -> str | None:
    """Raises InvalidRequest."""
    said = query.get("purpose")
    if said not in (None, PURPOSE, RESULT_PURPOSE):
        raise InvalidRequest(
            f"purpose must be {PURPOSE} or {RESULT_PURPOSE}; correct it", param="purpose", code="invalid_value"
        )
    return said


def newest_first(query: Mapping[str, str]) -> bool:
    """Raises InvalidRequest."""
    said = query.get("order", "desc")
    if said not in FILE_ORDER:
        raise InvalidRequest("order must be asc or desc; correct it", param="order", code="invalid_value")
    return FILE_ORDER[said]


def _at(instant: float | None) -> int | None:
    return None if instant is None else int(instant)
