"""Who may do what: the role table, and the check that explains itself. Pure; docs/roles.md is the same table for
readers.

Roles are a person's, within one tenant. The installation's own staff have theirs in every tenant.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from gateway.records.control import Role

Permission = Literal[
    "tenants.list",
    "tenants.manage",
    "staff.read",
    "staff.manage",
    "tenant.read",
    "projects.manage",
    "keys.read",
    "keys.manage",
    "policies.read",
    "policies.submit",
    "policies.approve",
    "policies.activate",
    "operator-policy.read",
    "operator-policy.submit",
    "operator-policy.approve",
    "operator-policy.activate",
    "backends.read",
    "backends.manage",
    "deployments.manage",
    "people.read",
    "people.manage",
    "limits.manage",
    "prices.read",
    "prices.manage",
    "usage.read",
    "usage.read-all",
    "oversight.act",
    "marks.detect",
    "answers.find",
    "record.read",
    "content.read",
    "rights.act",
]
"""``tenants.*``, ``staff.*``, ``operator-policy.*``, ``prices.*``, ``backends.manage`` (it decides where prompts go)
and ``usage.read-all`` concern the installation; all others one tenant, its projects with ``tenant.read``."""

_ALL: frozenset[Permission] = frozenset(get_args(Permission))
OF_OPERATOR: dict[Permission, Permission] = {
    "policies.read": "operator-policy.read",
    "policies.submit": "operator-policy.submit",
    "policies.approve": "operator-policy.approve",
    "policies.activate": "operator-policy.activate",
}
"""What it takes to do with the operator's policy what each of them allows with a tenant's."""
OPERATOR_POLICY = frozenset[Permission](OF_OPERATOR.values())
INSTALLATION = OPERATOR_POLICY | frozenset[Permission](
    {
        "tenants.list",
        "tenants.manage",
        "staff.read",
        "staff.manage",
        "backends.manage",
        "prices.read",
        "prices.manage",
        "usage.read-all",
    }
)
_READ = frozenset[Permission]({"tenant.read", "keys.read", "policies.read", "backends.read", "people.read"})

ROLE_TABLE: dict[Role, frozenset[Permission]] = {
    "operator": _ALL - {"content.read"},
    "tenant-admin": _ALL - INSTALLATION,
    "developer": frozenset(
        {"tenant.read", "usage.read", "keys.read", "keys.manage", "policies.read", "policies.submit", "backends.read"}
    ),
    "dpo": _READ
    | OPERATOR_POLICY
    | frozenset[Permission]({"tenants.list", "policies.submit", "policies.approve", "policies.activate"})
    | {"oversight.act", "marks.detect", "answers.find", "record.read", "content.read", "rights.act"},
    "auditor": _READ
    | {
        "record.read",
        "tenants.list",
        "staff.read",
        "operator-policy.read",
        "prices.read",
        "usage.read",
        "usage.read-all",
    },
    "billing": frozenset({"tenants.list", "tenant.read", "prices.read", "usage.read", "usage.read-all"}),
}


@dataclass(frozen=True, slots=True)
class Actor:
    """A person or a machine at work. `tenant` None: of the staff. `token`: id of what they showed; a machine's own."""

    person: str
    tenant: str | None
    roles: tuple[Role, ...]
    token: str
    kind: Literal["key", "machine"] = "key"

    @property
    def name(self) -> str:
        """As the record names who acted: a person appears by the token alone."""
        return f"{self.kind}:{self.token}"

    def sees(self, tenant: str) -> bool:
        """Whether `tenant` exists at all for this person."""
        return self.tenant is None or self.tenant == tenant


@dataclass(frozen=True, slots=True)
class Verdict:
    """`because` names the role that allows it, or those that would."""

    allowed: bool
    because: str


def check(actor: Actor, permission: Permission, tenant: str | None) -> Verdict:
    """Whether `actor` may do this in `tenant`; `tenant` None: in the installation as a whole."""
    if (tenant is None) != (permission in INSTALLATION):
        return Verdict(False, f"{permission} is not asked {'of the installation' if tenant is None else 'in a tenant'}")
    if actor.tenant is not None and actor.tenant != tenant:
        where = "the installation" if tenant is None else f"tenant {tenant}"
        return Verdict(False, f"roles in tenant {actor.tenant} do not reach {where}")
    for role in actor.roles:
        if permission in ROLE_TABLE[role]:
            return Verdict(True, f"{role} may {permission}")
    able = ", ".join(role for role, permissions in ROLE_TABLE.items() if permission in permissions)
    return Verdict(False, f"{permission} takes one of the roles {able}; you are {', '.join(actor.roles)}")
