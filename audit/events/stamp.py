"""Stamps: when and where the log took an event."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

from audit.random_pieces import RandomPieces

_noise = RandomPieces(10)
_FIXED = 0x7 << 76 | 0x2 << 62  # version and variant
_NOT_FIXED = ~(0xF << 76 | 0x3 << 62)

Clock = Callable[[], float]
"""Seconds since the epoch, as `time.time`."""

NODE_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"
UUID7_PATTERN = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"

NodeName = Annotated[str, StringConstraints(pattern=NODE_PATTERN)]
Uuid7 = Annotated[str, StringConstraints(pattern=UUID7_PATTERN)]
Timestamp = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]


class Stamp(BaseModel):
    """`ts` is RFC 3339 in UTC with milliseconds; `boot_id` is new each time a node opens the log."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    v: Literal[1] = 1
    event_id: Uuid7
    ts: Timestamp
    gateway_node: NodeName
    boot_id: Uuid7


STAMP_FIELDS = tuple(Stamp.model_fields)


@dataclass(frozen=True, slots=True)
class Stamper:
    """Gives each event of one boot of one node its stamp, as the plain fields that a leaf starts from."""

    node: str
    boot: str
    clock: Clock

    def fields(self) -> dict[str, int | str]:
        milliseconds = int(self.clock() * 1000)
        return {
            "v": 1,
            "event_id": uuid7(milliseconds),
            "ts": rfc3339(milliseconds),
            "gateway_node": self.node,
            "boot_id": self.boot,
        }


def uuid7(milliseconds: int) -> str:
    """A UUID of version 7 (RFC 9562 §5.7): 48 bits of time, then 74 random ones."""
    value = (milliseconds & (2**48 - 1)) << 80 | int.from_bytes(_noise())
    text = f"{value & _NOT_FIXED | _FIXED:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def rfc3339(milliseconds: int) -> str:
    return f"{_to_the_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=64)  # thousands of events share a second
def _to_the_second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
