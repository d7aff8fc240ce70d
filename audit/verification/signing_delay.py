"""How long records of one tree went without a signature.

A running log signs a tree one second after it grew; when the signer is out of reach it refuses new calls after five
minutes and records the outage (`system.signing_delayed`). So records that stayed unsigned for longer mean that
signatures were removed, or that records were added by a program that holds no key.

Delays are measured within one boot: the records that a crash left unsigned are signed when the log is next opened,
however much later that is. One jump of the clock within an interval is not a delay: a suspended machine makes one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from audit.events.stamp import Stamp, rfc3339

UNSIGNED_S = 360
"""Seconds: the five minutes for which a log works without its signer, and one for clocks."""

CLOSING_MS = 2000
"""A boot records its stop, then signs: who reads in between sees the one without the other."""

_MINUTE = len("2026-03-01T09:30")


def milliseconds(ts: str) -> int:
    """Milliseconds of a record's `ts`, since the epoch."""
    return round(datetime.fromisoformat(ts).timestamp() * 1000)


@dataclass(slots=True)
class _Pending:
    """Records of one boot since the last checkpoint; `jump` is the longest time between two neighbours, in ms."""

    seq: int
    first: str
    last: str
    minute: str
    jump: int = 0

    def take(self, ts: str) -> None:
        if not ts.startswith(self.minute):  # shorter jumps do not matter, and most records share a minute
            self.jump = max(self.jump, milliseconds(ts) - milliseconds(self.last))
            self.minute = ts[:_MINUTE]
        self.last = ts

    def delay(self) -> int:
        """Milliseconds, without the longest jump."""
        return milliseconds(self.last) - milliseconds(self.first) - self.jump


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which the record itself says that one boot could not have trees signed; milliseconds."""

    boot: str
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class Boots:
    """What the log's own tree says about the boots of its nodes: which there were, when each closed the log in order
    (milliseconds), and in which times it had no signer."""

    started: frozenset[str]
    stopped: dict[str, int]
    outages: tuple[Outage, ...]

    def explains(self, boot: str, first: str, last: str) -> bool:
        begin, end = milliseconds(first), milliseconds(last)
        return any(one.boot == boot and one.since <= begin and end <= one.until for one in self.outages)


class SigningDelays:
    """Takes the records of a tree in order, and the places where a checkpoint was signed. `bound_s` in seconds."""

    def __init__(self, bound_s: int = UNSIGNED_S) -> None:
        self._bound = bound_s * 1000
        self._pending: dict[str, _Pending] = {}

    def take(self, seq: int, stamp: Stamp) -> None:
        if (pending := self._pending.get(stamp.boot_id)) is None:
            self._pending[stamp.boot_id] = _Pending(seq, stamp.ts, stamp.ts, stamp.ts[:_MINUTE])
        else:
            pending.take(stamp.ts)

    def signed(self) -> list[tuple[int, str, str, str]]:
        """At a checkpoint. For each boot whose records waited too long: first record, boot, first and last time."""
        late = [
            (one.seq, boot, one.first, one.last) for boot, one in self._pending.items() if one.delay() > self._bound
        ]
        self._pending.clear()
        return late

    def unsigned(self, boots: Boots, now: int) -> Iterator[tuple[int, str]]:
        """At the end of the tree: for each boot with records after the last checkpoint that should have been signed,
        the first of them and why. `now` in milliseconds."""
        for boot, one in self._pending.items():
            waited = now - milliseconds(one.first)
            if boot not in boots.started:
                yield one.seq, f"no record says that boot {boot} opened the log"
            elif boot in boots.stopped:
                if now - boots.stopped[boot] < CLOSING_MS:
                    continue
                at = rfc3339(boots.stopped[boot])
                yield one.seq, f"the boot that wrote them closed the log at {at}, which signs every record"
            elif waited > self._bound:
                yield (
                    one.seq,
                    f"they have gone unsigned for {waited // 1000} s, a log signs within {self._bound // 1000} s",
                )
            elif waited < -self._bound:
                yield one.seq, f"they are dated {one.first}, later than this machine's clock"
