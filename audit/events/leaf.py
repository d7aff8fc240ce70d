"""A leaf: the canonical bytes of one event and its stamp, which the tree hashes.

The fields of the event and of the stamp are members of one JSON object; fields that are absent are left out.
"""

from dataclasses import dataclass
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from audit.errors import CanonicalError, EventRejected
from audit.events.base import Event
from audit.events.canonical import canonicalize, parse_canonical
from audit.events.event import AnyEvent
from audit.events.stamp import STAMP_FIELDS, Stamp

MAX_LEAF_SIZE = 16 * 1024
"""Bytes. A quarter of what C2SP tlog-tiles allows an entry, so that bundles of 256 stay small."""

EVENT_CLASSES: tuple[type[Event], ...] = get_args(get_args(AnyEvent)[0])

_KNOWN = frozenset(EVENT_CLASSES)
_EVENT: TypeAdapter[Event] = TypeAdapter(AnyEvent)


@dataclass(frozen=True, slots=True)
class Leaf:
    stamp: Stamp
    event: Event


def encode_leaf(event: Event, stamp: dict[str, int | str]) -> bytes:
    """The bytes to hash and keep.

    Raises EventRejected if they are too many or have no canonical form, or if the class of the event is not of
    this format, since it could not be read back.
    """
    if type(event) not in _KNOWN:
        raise EventRejected(f"{type(event).__name__} is not an event of this format; record one of audit/events")
    try:
        payload = canonicalize(stamp | event.model_dump(exclude_none=True))
    except CanonicalError as error:
        raise EventRejected(f"the event {event.type} has {error}") from error
    if len(payload) > MAX_LEAF_SIZE:
        raise EventRejected(
            f"the event {event.type} takes {len(payload)} bytes, more than {MAX_LEAF_SIZE}; shorten its longest field"
        )
    return payload


def decode_leaf(payload: bytes) -> Leaf:
    """Read a leaf back, strictly: canonical form, known type, known fields, every value in its range.

    Raises CanonicalError or EventRejected; the message names fields, never values.
    """
    if len(payload) > MAX_LEAF_SIZE:
        raise EventRejected(f"it takes {len(payload)} bytes, more than {MAX_LEAF_SIZE}; run `domicile audit verify`")
    fields: Any = parse_canonical(payload)
    if not isinstance(fields, dict):
        raise EventRejected("it is not an object; run `domicile audit verify`")
    stamp = {name: fields.pop(name) for name in STAMP_FIELDS if name in fields}
    try:
        return Leaf(Stamp.model_validate(stamp), _EVENT.validate_python(fields))
    except ValidationError as error:
        faults = {".".join(map(str, fault["loc"])) or "type": fault["type"] for fault in error.errors()}
        named = ", ".join(f"{field} ({fault})" for field, fault in list(faults.items())[:3])
        raise EventRejected(
            f"it breaks the schema at {named}; run `domicile audit verify`, or read it with the version that wrote it"
        ) from error
