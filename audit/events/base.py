"""What all events share: the shape of their values, their place in the life of a call, their common fields."""

from enum import Enum
from typing import Annotated, ClassVar, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from audit.events.canonical import MAX_INTEGER
from audit.events.ocsf import APPLICATION_LIFECYCLE, FAILURE, INFORMATIONAL, MEDIUM, OTHER, SUCCESS

SYSTEM_TENANT = "_system"
"""The tree of events that belong to no tenant."""
ANCHOR_TENANT = "_anchor"
"""The tree that vouches for the checkpoints of all others."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Blob = Annotated[str, StringConstraints(min_length=1, max_length=12_000)]
"""Evidence as it was sent. A leaf has 16 KiB."""
CODE_PATTERN = r"^[a-z][a-z0-9_.-]{0,63}$"
Code = Annotated[str, StringConstraints(pattern=CODE_PATTERN)]
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
    """The part of an event in the life of a request."""

    NONE = "none"  # belongs to no request
    OPENS = "opens"  # the intent, written ahead of the call
    WITHIN = "within"  # needs its intent to be open
    CLOSES = "closes"  # the one outcome of an intent


class RecordRetention(Enum):
    """How long records of a type are kept (`audit.privacy.schedule`)."""

    CALL = "call"  # as the policy of the call says
    SECURITY = "security"
    GOVERNANCE = "governance"  # policies, models, incidents, oversight, requests of persons
    PROOF = "proof"  # for good: what proves deletions and keys


class Ocsf(NamedTuple):
    """The class and activity of OCSF that a type is, and how it ended (`audit.events.ocsf`)."""

    class_uid: int = APPLICATION_LIFECYCLE
    activity_id: int = OTHER
    status_id: int = SUCCESS
    severity_id: int = INFORMATIONAL

    @property
    def failed(self) -> "Ocsf":
        return self._replace(status_id=FAILURE, severity_id=MEDIUM)


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Event(Strict):
    """An event type: its fields, and what every reader of records needs to know of it.

    `step`: its place in the life of a call. `is_access`: it is listed in ``admin_access.csv`` of evidence packs.
    """

    step: ClassVar[Step] = Step.NONE
    is_access: ClassVar[bool] = False
    kept: ClassVar[RecordRetention] = RecordRetention.SECURITY
    ocsf: ClassVar[Ocsf] = Ocsf()

    type: str
    tenant: TenantId
    request_id: Text | None = None
    commits: dict[Code, Sha256] | None = None

    @classmethod
    def types(cls) -> tuple[str, ...]:
        """The values that `type` may have."""
        return get_args(cls.model_fields["type"].annotation)

    @classmethod
    def kept_as(cls, kind: str) -> RecordRetention:
        """Retention of one of its types."""
        return cls.kept

    @classmethod
    def ocsf_of(cls, kind: str) -> Ocsf:
        """Class in OCSF of one of its types."""
        return cls.ocsf
