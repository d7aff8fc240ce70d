"""Navigation menu. Each entry has the permission that its page requires, so that no entry leads to a refusal."""

from dataclasses import dataclass
from typing import Final

from gateway.identity.roles import INSTALLATION, OF_OPERATOR, Actor, Permission, check


@dataclass(frozen=True, slots=True)
class Entry:
    """`key`: of its text and icon. `path`: relative to the tenant's pages or to the console. `needs`: permission, None
    for none."""

    key: str
    path: str
    needs: Permission | None


OF_TENANT: Final = (
    ("operate", (
        Entry("overview", "", None),
        Entry("curves", "curves", "tenant.read"),
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
        Entry("changes", "changes", "record.read"),
        Entry("record", "record", "record.read"),
        Entry("packs", "packs", "record.read"),
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
    Entry("operator_policies", "operator/policies", "operator-policy.read"),
    Entry("all_changes", "operator/changes", "staff.read"),
    Entry("weak", "weak", "staff.read"),
)


def may(actor: Actor, permission: Permission, tenant: str | None) -> bool:
    """Return whether the admin API would permit this to `actor`. `tenant` None: for the whole installation, whose
    policies are the operator's."""
    permission = OF_OPERATOR.get(permission, permission) if tenant is None else permission
    return check(actor, permission, None if permission in INSTALLATION else tenant).allowed


def entries_of(actor: Actor, tenant: str) -> list[tuple[str, list[Entry]]]:
    """Return the groups of tenant pages that `actor` may open."""
    groups = [
        (name, [each for each in entries if each.needs is None or may(actor, each.needs, tenant)])
        for name, entries in OF_TENANT
    ]
    return [(name, entries) for name, entries in groups if entries]


def entries_above(actor: Actor) -> list[Entry]:
    """Return the installation's pages that `actor` may open."""
    return [each for each in OF_INSTALLATION if each.needs is None or may(actor, each.needs, None)]
