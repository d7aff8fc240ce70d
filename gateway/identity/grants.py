"""Maps the groups that an identity provider reports for a person to roles here. Pure."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, get_args

from gateway.configuration.settings import GroupRole
from gateway.records.control import Role

Grants = Mapping[str | None, tuple[Role, ...]]
"""Roles by tenant; None: as staff of the installation."""


def groups_of(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """The groups in `claim`, which may be a path into the claims, as ``realm_access.roles``.

    A list of texts, or one text, which is one group. Any other value gives none.
    """
    found: Any = claims.get(claim)
    if claim not in claims:
        found = claims
        for name in claim.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
    found = [found] if isinstance(found, str) else found
    return frozenset(each for each in found if isinstance(each, str)) if isinstance(found, list) else frozenset()


def grants_of(groups: frozenset[str], mapping: Iterable[GroupRole]) -> Grants:
    """What `mapping` grants to a member of `groups`; roles in the order of the role table."""
    given: dict[str | None, set[Role]] = {}
    for each in mapping:
        if each.group in groups:
            given.setdefault(each.tenant, set()).add(each.role)
    return {tenant: tuple(role for role in get_args(Role) if role in roles) for tenant, roles in given.items()}


def display_name_of(claims: Mapping[str, Any]) -> str:
    """What to call them: the first claim of those that hold names that is one line of at most 200 characters."""
    for claim in ("name", "preferred_username", "nickname"):
        name = claims.get(claim)
        if isinstance(name, str) and name.strip() and len(name) <= 200 and name.isprintable():
            return name
    return "somebody of the identity provider"


def subject_digest(issuer: str, subject: str) -> str:
    """The id of a person of the provider: 64 hex digits. Subjects are unique only within their issuer."""
    return sha256(f"{issuer}\0{subject}".encode()).hexdigest()
