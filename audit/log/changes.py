"""Recorded changes: who changed what, newest first, and a single change.

Changes are few among the records of calls; `Newest` says where they are, so that a page does not read those. Records
are not verified here (see `audit.log.walk`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from audit.events.event_types import OCSF_CLASSES
from audit.log.walk import first_at, parsed, size_of
from audit.storage.store import Reader

KINDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "policies": ("admin.policy.",),
        "keys": ("admin.key.",),
        "people": ("admin.person.", "admin.token."),
        "projects": ("admin.tenant.", "admin.project.", "admin.origins.", "admin.model_name.", "admin.adapter."),
        "limits": ("admin.limits.", "admin.price."),
        "fleet": ("admin.backend.", "admin.deployment.", "admin.cell.", "admin.bundle.", "backend.key_", "model."),
        "rights": ("legal_hold.", "erasure.", "dsar.", "authority_request."),
        "oversight": ("oversight.",),
        "incidents": ("incident.",),
        "record": ("log.key_rotated", "admin.keyring."),
        "sessions": ("admin.session.",),
    }
)
"""How the types of each kind begin. Reads are no changes, and neither is what a launcher does to replicas."""
UNASKED: Final = frozenset({"sessions"})
"""Kinds that are listed only where they are asked for."""
OBJECTS: Final = (
    "target", "hold_id", "incident_id", "matter_id", "erasure_id", "dsar_id", "ai_system_id", "project", "backend_id",
    "model",
)  # fmt: skip
"""Fields that name what was changed, the most exact first."""
MORE: Final = ("right", "outcome", "clock", "authority", "scope")
"""Fields that say more of a change, beside its ``detail``."""
MAX_READ: Final = 500
"""Most changes read for one page; if few are of the actor, the next page continues from there."""
MAX_SCANNED: Final = 8192
"""Most records read for one page of those whose changes are not noted yet."""

Newest = Callable[[Reader, str, Collection[str], int, int, int], tuple[int, Sequence[int]]]
"""How many records of a tenant were noted, and the numbers of the newest changes of some types from a record to before
another, at most so many, newest first."""


def none_noted(
    reader: Reader, tenant: str, types: Collection[str], first: int, end: int, limit: int
) -> tuple[int, Sequence[int]]:
    return 0, ()


def kind_of(kind: str) -> str | None:
    """The kind of change of an event type, None for one that is no change."""
    return next((name for name, starts in KINDS.items() if kind.startswith(starts)), None)


TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {kind: name for kind in OCSF_CLASSES if (name := kind_of(kind)) is not None}
)
"""The kind of each event type that is a change."""
_MARKS: Final = tuple(f'"type":"{start}'.encode() for starts in KINDS.values() for start in starts)


def types_of(kind: str | None) -> frozenset[str]:
    """The event types of a kind; None: of all but UNASKED."""
    return frozenset(each for each, name in TYPES.items() if (name not in UNASKED if kind is None else name == kind))


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """`types`: as `types_of` returns them. `actors`: as records name them; None: all. `since`, `until`: RFC 3339 UTC or
    a prefix; `until` is exclusive."""

    types: Collection[str]
    actors: Collection[str] | None = None
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """A change in short form. `actor`: as recorded; empty where the gateway did it. `what`: name of the object. `more`:
    what else is said of it, as short texts."""

    seq: int
    ts: str
    type: str
    kind: str
    actor: str
    what: str
    project: str | None
    reason: str | None
    more: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChangePage:
    """A page of changes. `before`: the next page has changes before this record; None for the last page. `first`,
    `end`: range of records read."""

    changes: tuple[ChangeLine, ...]
    before: int | None
    first: int
    end: int


def change_types(reader: Reader, tenant: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield number and type of each change from record `start` to before `end`."""
    for leaf in reader.leaves(tenant, start, end):
        if any(mark in leaf.payload for mark in _MARKS) and (kind := parsed(leaf.payload).get("type")) in TYPES:
            yield leaf.seq, str(kind)


def changes(
    reader: Reader,
    tenant: str,
    wanted: ChangeFilter,
    newest: Newest = none_noted,
    *,
    before: int | None = None,
    limit: int = 50,
) -> ChangePage:
    """Return the newest matching changes before record `before`. Raises StoreError, and what `newest` raises."""
    size = size_of(reader, tenant)
    stop = size if before is None else min(size, before)
    if wanted.until is not None:
        stop = min(stop, first_at(reader, tenant, wanted.until, size))
    begin = 0 if wanted.since is None else first_at(reader, tenant, wanted.since, size)
    seqs, at = _newest(reader, tenant, wanted.types, newest, begin, stop)
    found: list[ChangeLine] = []
    for number, seq in enumerate(seqs):
        line = _line(seq, _recorded(reader, tenant, seq))
        if line is not None and (wanted.actors is None or line.actor in wanted.actors):
            found.append(line)
            if len(found) == limit:
                rest = number + 1 < len(seqs) or at > begin
                return ChangePage(tuple(found), seq if rest else None, seq, stop)
    return ChangePage(tuple(found), at if at > begin else None, max(at, begin), stop)


def _newest(
    reader: Reader, tenant: str, types: Collection[str], newest: Newest, begin: int, stop: int
) -> tuple[list[int], int]:
    """Numbers of changes from `begin` to before `stop`, newest first; and the record down to which all are in it."""
    noted, known = newest(reader, tenant, types, begin, stop, MAX_READ)
    floor = max(begin, min(noted, stop), stop - MAX_SCANNED)
    seqs = [seq for seq, kind in change_types(reader, tenant, floor, stop) if kind in types][::-1]
    if floor > max(begin, noted):
        return seqs, floor
    return [*seqs, *known], known[-1] if len(known) == MAX_READ else begin


def change(reader: Reader, tenant: str, seq: int) -> tuple[ChangeLine, dict[str, Any]] | None:
    """Return the change with this number and its record as hashed; None if the record is of none or has expired."""
    event = _recorded(reader, tenant, seq) if seq < size_of(reader, tenant) else {}
    line = _line(seq, event)
    return None if line is None else (line, event)


def _recorded(reader: Reader, tenant: str, seq: int) -> dict[str, Any]:
    leaf = next(iter(reader.leaves(tenant, seq, seq + 1)), None)
    return {} if leaf is None else parsed(leaf.payload)


def _line(seq: int, event: Mapping[str, Any]) -> ChangeLine | None:
    kind = TYPES.get(str(event.get("type")))
    if kind is None:
        return None
    detail = event.get("detail")
    more = {str(name): str(value) for name, value in detail.items()} if isinstance(detail, dict) else {}
    more |= {name: str(event[name]) for name in MORE if event.get(name)}
    return ChangeLine(
        seq=seq,
        ts=event["ts"],
        type=event["type"],
        kind=kind,
        actor=event.get("actor") or "",
        what=str(next((event[name] for name in OBJECTS if event.get(name)), "")),
        project=event.get("project"),
        reason=event.get("reason"),
        more=more,
    )
