"""Values that an event commits to, on their way from the caller to the value store."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, NamedTuple

from audit.errors import CanonicalError, EventRejected
from audit.events.base import Event
from audit.events.canonical import canonicalize
from audit.events.commitment import FIELDS, Field, commit_canonical, new_salt


@dataclass(frozen=True, slots=True)
class Private:
    """What goes into the value store beside one event.

    `values` are JSON values by field. `subject` is an identifier of the person concerned, which the values are filed
    under and which is committed to itself; without one the event has a key of its own. `expires` is in milliseconds
    since the epoch, None for as long as the log is kept. `apart`: class and expiry of values that have their own.
    """

    values: Mapping[Field, Any]
    subject: str | None = None
    retention_class: str = "content"
    expires: int | None = None
    apart: Mapping[Field, tuple[str, int | None]] = dataclass_field(default_factory=dict)


class Sealed(NamedTuple):
    """One value and its commitment; `plaintext` is the salt and the canonical form of the value."""

    event_id: str
    field: str
    commitment: str
    plaintext: bytes
    subject: str | None
    retention_class: str
    expires: int | None


def seal(event: Event, event_id: str, private: Private) -> tuple[Event, tuple[Sealed, ...]]:
    """`event` with its commitments, and what they commit to. Raises EventRejected for a value that has no JSON form."""
    values: dict[str, Any] = {str(field): value for field, value in private.values.items()}
    if private.subject is not None:
        values["subject"] = private.subject
    sealed: list[Sealed] = []
    apart: Mapping[str, tuple[str, int | None]] = {str(name): own for name, own in private.apart.items()}
    for field, value in values.items():
        if field not in FIELDS:
            raise EventRejected(
                f"{field!r} is no field that a record can commit to"
                "; use one of the fields that docs/audit-format.md lists"
            )
        salt = new_salt()
        try:
            jcs = canonicalize(value)
        except CanonicalError as error:
            raise EventRejected(f"the value for {field} has {error}") from error
        kept = private.subject, *apart.get(field, (private.retention_class, private.expires))
        commitment = commit_canonical(salt, event.tenant, event_id, field, jcs)
        sealed.append(Sealed(event_id, field, commitment, salt + jcs, *kept))
    if not sealed:
        return event, ()
    return event.model_copy(update={"commits": {value.field: value.commitment for value in sealed}}), tuple(sealed)
