"""Parts that requests and answers share."""

import re
from collections.abc import Mapping
from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.store.records import Record
from regions.identity import NAME

After = Annotated[str | None, Query(max_length=64, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=200)]


Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$", min_length=2, max_length=31)]
"""Of a tenant or project: one grammar for all (`regions.identity`), in which nothing looks like something else."""


GRAMMAR: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(("tenant", "project", "deployment"), NAME),
    **dict.fromkeys(("key", "person", "token"), re.compile("[0-9A-Za-z]{8}")),
    "proposal": re.compile("[0-9]{1,9}"),
    **dict.fromkeys(("backend", "region"), NAME),
}
"""Of what stands in a path, by its parameter."""


class Body(BaseModel):
    """What a request says; unknown fields are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def tagged(response: Response, record: Record) -> None:
    """Say which state the answer shows; sent back as If-Match, only that state is changed (RFC 9110 §8.8.3)."""
    response.headers["etag"] = f'"{record.digest()}"'
