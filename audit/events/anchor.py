"""Events about what vouches for the log from outside it, and about its keys: of the log, of tenants, above both."""

from typing import Annotated, ClassVar, Literal

from pydantic import StringConstraints

from audit.events.base import (
    ANCHOR_TENANT,
    SYSTEM_TENANT,
    Actor,
    Code,
    Count,
    Event,
    Ocsf,
    RecordRetention,
    Sha256,
    TenantId,
    Text,
)
from audit.events.ocsf import ACTIVATE, CREATE, DELETE, ENTITY_MANAGEMENT, OTHER, UPDATE
from audit.events.stamp import Timestamp

Vkey = Annotated[str, StringConstraints(pattern=r"^[^+\s]{1,200}\+[0-9a-f]{8}\+[A-Za-z0-9+/]{43,48}={0,2}$")]
"""A verifier key in the form of signed-note."""


_ACTIVITIES = {"created": CREATE, "registered": CREATE, "changed": UPDATE, "rotated": UPDATE, "activated": ACTIVATE}
_ACTIVITIES.update({"revoked": DELETE, "deleted": DELETE})


def ocsf_of_entity(kind: str) -> Ocsf:
    """Class in OCSF of a type ``admin.OBJECT.ACT``, by the act."""
    act = kind.rpartition(".")[2]
    mapped = Ocsf(ENTITY_MANAGEMENT, _ACTIVITIES.get(act, OTHER))
    return mapped.failed if act in ("failed", "approval_refused") else mapped


class CheckpointTimestamped(Event):
    """A time-stamping authority vouches that the anchor's checkpoint of `size` was there at `gen_time` (RFC 3161)."""

    kept: ClassVar[RecordRetention] = RecordRetention.PROOF

    type: Literal["checkpoint.timestamped"] = "checkpoint.timestamped"
    tenant: TenantId = ANCHOR_TENANT
    size: Count
    checkpoint_sha256: Sha256
    tsa: Text
    gen_time: Timestamp
    token_sha256: Sha256


class TimestampFailed(Event):
    """No valid timestamp was received; the log continues without one."""

    kept: ClassVar[RecordRetention] = RecordRetention.PROOF
    ocsf: ClassVar[Ocsf] = Ocsf().failed

    type: Literal["checkpoint.timestamp_failed"] = "checkpoint.timestamp_failed"
    tenant: TenantId = ANCHOR_TENANT
    size: Count
    tsa: Text
    reason: Code


class CheckpointCosigned(Event):
    """The witness `witness` cosigned this tree's checkpoint of `size` (C2SP tlog-cosignature). `cosignature` is key
    id, time and signature in base64, so that the witness's key alone shows it, wherever the note is kept."""

    kept: ClassVar[RecordRetention] = RecordRetention.PROOF

    type: Literal["checkpoint.cosigned"] = "checkpoint.cosigned"
    size: Count
    checkpoint_sha256: Sha256
    witness: Text
    cosignature: Text


class AnchorLinked(Event):
    """The log's own tree vouches for the anchor: it has `size` records, the last of which has the RFC 6962 hash
    `leaf_hash`. Without it, an anchor tree could be removed without a trace."""

    kept: ClassVar[RecordRetention] = RecordRetention.PROOF

    type: Literal["system.anchored"] = "system.anchored"
    tenant: TenantId = SYSTEM_TENANT
    size: Count
    leaf_hash: Sha256


class KeyRotated(Event):
    """From the next checkpoint on `new_key` signs; this record is under one that `old_key` signed. The note whose
    SHA-256 this is says the same under both keys. Keys are those of the log, whatever tree contains this."""

    is_access: ClassVar[bool] = True
    kept: ClassVar[RecordRetention] = RecordRetention.PROOF

    type: Literal["log.key_rotated"] = "log.key_rotated"
    actor: Actor
    old_key: Vkey
    new_key: Vkey
    succession_sha256: Sha256
    reason: Code = "scheduled"


class KeyringChanged(Event):
    """The master key was given a new `version` (rotated), `keys` were wrapped again under it (rewrapped), the versions
    below it were destroyed (retired); or a tenant's own key was replaced by generation `version` (renewed).

    Rotation and retirement are on record before they take effect, the others when they are through.
    """

    type: Literal["admin.keyring.rotated", "admin.keyring.rewrapped", "admin.keyring.retired", "admin.keyring.renewed"]
    tenant: TenantId = SYSTEM_TENANT
    actor: Actor
    provider: Code
    version: Count
    keys: Count = 0

    @classmethod
    def ocsf_of(cls, kind: str) -> Ocsf:
        return ocsf_of_entity(kind)


class KeyGiven(Event):
    """A tenant's key is wrapped from now on by `provider`: a key of the tenant's own, by its name in the configuration,
    or the installation's master again. On record before it takes effect; the renewal that follows replaces the key."""

    type: Literal["admin.keyring.given"] = "admin.keyring.given"
    actor: Actor
    provider: Code

    @classmethod
    def ocsf_of(cls, kind: str) -> Ocsf:
        return ocsf_of_entity(kind)


class KeyAccepted(Event):
    """Another key in the file `key` of the data folder, dots for slashes, was accepted as the installation's; it has
    this `fingerprint`. On record before it takes effect."""

    type: Literal["admin.keyring.accepted"] = "admin.keyring.accepted"
    tenant: TenantId = SYSTEM_TENANT
    actor: Actor
    key: Code
    fingerprint: Text

    @classmethod
    def ocsf_of(cls, kind: str) -> Ocsf:
        return ocsf_of_entity(kind)
