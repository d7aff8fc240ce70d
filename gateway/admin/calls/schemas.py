"""Types and base models of requests and responses."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Annotated, TypeVar

from fastapi import Query, Response
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from gateway.records.control import Record
from regions.identity.identity import NAME

Tagged = TypeVar("Tagged", bound=Record)

_ISO_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DIGITS = re.compile("[0-9]{1,10}")


def _iso(value: object) -> object:
    """Refuse numbers. Pydantic reads them as seconds, or from 2e10 on as milliseconds, since 1970."""
    if isinstance(value, str) and not _ISO_DAY.match(value):
        raise ValueError("this is not a date; send one in ISO 8601, such as 2026-11-29, or a time with its zone")
    if isinstance(value, int | float):
        raise ValueError("this is a number; send a text in ISO 8601")
    return value


def _utc(value: datetime) -> datetime:
    """Convert to UTC. Raises ValueError for a time on the first or last day of the calendar that UTC does not have."""
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("this time does not exist in UTC; send one from 0001-01-01 to 9999-12-31") from None


def _whole(value: object) -> object:
    """Refuse ``1.0`` and ``+1``, which Pydantic accepts."""
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise ValueError("this is not a whole number; send digits only")
    return value


Day = Annotated[date, BeforeValidator(_iso)]
Instant = Annotated[AwareDatetime, BeforeValidator(_iso), AfterValidator(_utc)]
Whole = Annotated[int, BeforeValidator(_whole)]

After = Annotated[str | None, Query(max_length=64, description="`next` of the page before")]
Limit = Annotated[Whole, Query(ge=1, le=200)]


Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$", min_length=2, max_length=31)]
"""Name of a tenant or project (`regions.identity.identity`), without characters that look alike."""


GRAMMAR: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(("tenant", "project", "deployment"), NAME),
    **dict.fromkeys(("key", "person", "token"), re.compile("[0-9A-Za-z]{8}")),
    "proposal": re.compile("[0-9]{1,9}"),
    **dict.fromkeys(("hold", "incident", "matter", "pack"), re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")),
    "batch": re.compile("batch_[0-9a-f]{1,34}"),
    **dict.fromkeys(("record_number", "change_number"), re.compile("[0-9]{1,15}")),
    **dict.fromkeys(("backend", "region"), NAME),
}
"""Patterns of path parameters by name."""


MAX_SEGMENT = 256
"""Maximum number of characters in a segment of a path. Names in `GRAMMAR` are shorter."""


class Body(BaseModel):
    """Base of request bodies; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ResponseBody(BaseModel):
    """Base of response bodies; frozen."""

    model_config = ConfigDict(frozen=True)


def tagged(response: Response, record: Tagged) -> Tagged:
    """Set the ETag of the response to the state of `record`, and return `record`. Sent as If-Match, only this state is
    changed (RFC 9110 §8.8.3)."""
    response.headers["etag"] = f'"{record.digest()}"'
    return record
