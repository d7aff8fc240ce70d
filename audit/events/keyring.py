"""Events about the keys themselves: which version took over, what was moved to it, what is gone for good."""

from typing import Literal

from audit.events.base import SYSTEM_TENANT, Actor, Code, Count, Event, TenantId


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
