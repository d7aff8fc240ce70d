"""Events of incidents, their reports to authorities, and decisions of people that overrule a system.

AI Act 14, 26(5), 73; GDPR 33, 34, 48; DORA 17 to 19; NIS2 23; Data Act 32.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from audit.events.base import Actor, Code, Count, Country, Event, Ocsf, RecordRetention, Text
from audit.events.ocsf import HIGH
from audit.events.stamp import Timestamp, Uuid7

Bound = Annotated[str, StringConstraints(pattern=r"^\d{4}[0-9T:.Z-]{0,20}$")]
"""One end of a period: RFC 3339 UTC or a prefix of it."""
Codes = Annotated[tuple[Code, ...], Field(strict=False, max_length=16)]
Ids = Annotated[tuple[Uuid7, ...], Field(strict=False, max_length=64)]


class Incident(Event):
    """The life of an incident. `laws` names the sets of clocks that run (`audit.law.deadlines`), `clock` the one that a
    notification met; `since` and `until` bound the records concerned, which `hold_ids` keep from deletion."""

    kept: ClassVar[RecordRetention] = RecordRetention.GOVERNANCE
    ocsf: ClassVar[Ocsf] = Ocsf(severity_id=HIGH)

    type: Literal["incident.opened", "incident.updated", "incident.notified", "incident.closed"]
    incident_id: Uuid7
    actor: Actor
    laws: Codes = ()
    severity: Code | None = None
    ai_system_id: Text | None = None
    detected_at: Timestamp | None = None
    aware_at: Timestamp | None = None
    classified_at: Timestamp | None = None
    since: Bound | None = None
    until: Bound | None = None
    hold_ids: Ids = ()
    clock: Code | None = None
    authority: Text | None = None
    reason: Code | None = None


class AuthorityRequest(Event):
    """An authority asked for data. `legal_basis` is what it cited; `outcome` what was done: refused, redirected ..."""

    kept: ClassVar[RecordRetention] = RecordRetention.GOVERNANCE

    type: Literal["authority_request.received", "authority_request.answered"]
    matter_id: Uuid7
    actor: Actor
    authority: Text
    country: Country
    legal_basis: Text | None = None
    outcome: Code | None = None


class Oversight(Event):
    """A person stopped or resumed an AI system or a project, or overruled what it answered to `request_id`
    (AI Act 14(4)). With an `epoch`, gateways refused its calls from that configuration epoch on, or took them again;
    without one it took place outside them."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.GOVERNANCE

    type: Literal["oversight.stopped", "oversight.resumed", "oversight.overridden"]
    actor: Actor
    ai_system_id: Text | None = None
    project: Text | None = None
    reason: Code
    epoch: Count | None = None

    @model_validator(mode="after")
    def _names_what_it_concerns(self) -> Self:
        if self.ai_system_id is None and self.project is None:
            raise ValueError("oversight is of an AI system or of a project; name one of the two")
        return self
