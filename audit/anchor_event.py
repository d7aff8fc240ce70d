"""Events about what vouches for the log from outside it, and about the succession of its keys."""

from typing import Annotated, Literal

from pydantic import StringConstraints

from audit.event_base import ANCHOR_TENANT, Actor, Code, Count, Event, Sha256, TenantId, Text
from audit.stamp import Timestamp

Vkey = Annotated[str, StringConstraints(pattern=r"^[^+\s]{1,200}\+[0-9a-f]{8}\+[A-Za-z0-9+/]{43,48}={0,2}$")]
"""A verifier key in the form of signed-note."""


class CheckpointTimestamped(Event):
    """A time-stamping authority vouches that the anchor's checkpoint of `size` was there at `gen_time` (RFC 3161)."""

    type: Literal["checkpoint.timestamped"] = "checkpoint.timestamped"
    tenant: TenantId = ANCHOR_TENANT
    size: Count
    checkpoint_sha256: Sha256
    tsa: Text
    gen_time: Timestamp
    token_sha256: Sha256


class TimestampFailed(Event):
    """No timestamp was had, or one that does not hold; the log goes on without."""

    type: Literal["checkpoint.timestamp_failed"] = "checkpoint.timestamp_failed"
    tenant: TenantId = ANCHOR_TENANT
    size: Count
    tsa: Text
    reason: Code


class KeyRotated(Event):
    """From the next checkpoint on `new_key` signs; this record is under one that `old_key` signed. The note whose
    SHA-256 this is says the same under both keys. Keys are those of the log, whatever tree this stands in."""

    type: Literal["log.key_rotated"] = "log.key_rotated"
    actor: Actor
    old_key: Vkey
    new_key: Vkey
    succession_sha256: Sha256
    reason: Code = "scheduled"
