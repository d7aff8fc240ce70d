"""The console's menu: each entry with the permission that its page asks for, so that none leads to a refusal."""

from dataclasses import dataclass
from typing import Final

from gateway.identity.roles import INSTALLATION, Actor, Permission, check


@dataclass(frozen=True, slots=True)
class Entry:
    """`key`: of its text and its icon. `path`: below the tenant's, or below the console's. `needs` None: anybody."""

    key: str
    path: str
    needs: Permission | None


OF_TENANT: Final = (
    ("operate", (
        Entry("overview", "", None),
        Entry("calls", "calls", "record.read"),
        Entry("places", "places", "policies.read"),
        Entry("deployments", "deployments", "backends.read"),
        Entry("usage", "usage", "usage.read"),
        Entry("playground", "playground", "keys.manage"),
    )),
    ("govern", (
        Entry("policies", "policies", "policies.read"),
        Entry("oversight", "oversight", "tenant.read"),
        Entry("rights", "rights", "rights.act"),
        Entry("incidents", "incidents", "record.read"),
        Entry("record", "record", "record.read"),
    )),
    ("manage", (
        Entry("projects", "projects", "tenant.read"),
        Entry("keys", "keys", "keys.read"),
        Entry("people", "people", "people.read"),
        Entry("limits", "limits", "tenant.read"),
    )),
)  # fmt: skip
OF_INSTALLATION: Final = (
    Entry("tenants", "tenants", "tenants.list"),
    Entry("staff", "staff", "staff.read"),
    Entry("all_usage", "usage", "usage.read-all"),
)


def may(actor: Actor, permission: Permission, tenant: str | None) -> bool:
    """Whether the admin API would let `actor` do this, `tenant` None: in the installation as a whole."""
    return check(actor, permission, None if permission in INSTALLATION else tenant).allowed


def entries_of(actor: Actor, tenant: str) -> list[tuple[str, list[Entry]]]:
    """Groups of entries of a tenant's pages, those that `actor` may open."""
    groups = [
        (name, [each for each in entries if each.needs is None or may(actor, each.needs, tenant)])
        for name, entries in OF_TENANT
    ]
    return [(name, entries) for name, entries in groups if entries]


def entries_above(actor: Actor) -> list[Entry]:
    """Entries of the installation's pages, those that `actor` may open."""
    return [each for each in OF_INSTALLATION if each.needs is None or may(actor, each.needs, None)]
