"""Events about the keys themselves: which version took over, what was moved to it, what is gone for good."""

from typing import Literal

from audit.events.base import SYSTEM_TENANT, Actor, Code, Count, Event, Ocsf, TenantId
from audit.events.ocsf import ACTIVATE, CREATE, DELETE, ENTITY_MANAGEMENT, OTHER, UPDATE

_ACTIVITIES = {"created": CREATE, "registered": CREATE, "changed": UPDATE, "rotated": UPDATE, "activated": ACTIVATE}
_ACTIVITIES.update({"revoked": DELETE, "deleted": DELETE})


def ocsf_of_entity(kind: str) -> Ocsf:
    """Of a type ``admin.OBJECT.ACT``, by the act."""
    act = kind.rpartition(".")[2]
    mapped = Ocsf(ENTITY_MANAGEMENT, _ACTIVITIES.get(act, OTHER))
    return mapped.failed if act == "failed" else mapped


class KeyringChanged(Event):
    """The master key was given a new `version` (rotated), `keys` were wrapped anew under it (rewrapped), the versions
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
