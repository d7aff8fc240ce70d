"""Parts that requests and answers share."""

from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict

from gateway.store.records import Record

After = Annotated[str | None, Query(max_length=64, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=200)]


class Body(BaseModel):
    """What a request says; unknown fields are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def tagged(response: Response, record: Record) -> None:
    """Say which state the answer shows; sent back as If-Match, only that state is changed (RFC 9110 §8.8.3)."""
    response.headers["etag"] = f'"{record.digest()}"'
