"""What all events share: the shape of their values, their place in the life of a call, their common fields."""

from enum import Enum
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from audit.events.canonical import MAX_INTEGER

SYSTEM_TENANT = "_system"
"""The tree of events that belong to no tenant."""
ANCHOR_TENANT = "_anchor"
"""The tree that vouches for the checkpoints of all others."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Code = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_.-]{0,63}$")]
TenantId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_][a-z0-9_-]{0,62}$")]
Country = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}$")]  # ISO 3166-1 alpha-2
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Actor = Annotated[str, StringConstraints(pattern=r"^(system|cli|(key|machine):[A-Za-z0-9_-]{1,64})$")]
"""Who did it, if no person: a person appears only as a commitment."""
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Milliseconds = Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
"""May be negative."""
HttpStatus = Annotated[int, Field(ge=100, le=599)]
Endpoint = Annotated[str, StringConstraints(pattern=r"^/[a-z0-9/_{}-]{0,127}$")]


class Step(Enum):
    """Where an event stands in the life of a request."""

    NONE = "none"  # stands alone
    OPENS = "opens"  # the intent, written ahead of the call
    WITHIN = "within"  # needs its intent to be open
    CLOSES = "closes"  # the one outcome of an intent


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Event(Strict):
    step: ClassVar[Step] = Step.NONE

    type: str
    tenant: TenantId
    request_id: Text | None = None
    commits: dict[Code, Sha256] | None = None
