"""Immutable records of users and groups provisioned by an identity provider through SCIM."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway.records.control import Role

Comparison = Literal["eq", "sw"]
"""Equal, or starts with."""


@dataclass(frozen=True, slots=True)
class ProvisionedUser:
    """A provisioned user. `name`: SCIM's ``userName``. `groups`: (id, name) of the user's groups."""

    id: str
    name: str
    external_id: str | None
    display_name: str
    active: bool
    created_at: datetime
    changed_at: datetime
    version: int
    groups: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProvisionedGroup:
    """A provisioned group. `members`: (id, name) of its users."""

    id: str
    name: str
    external_id: str | None
    created_at: datetime
    changed_at: datetime
    version: int
    members: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UserFields:
    """Attributes of a user that a client may set. `active`: None leaves it unchanged; a new user is active then."""

    name: str
    external_id: str | None
    display_name: str
    active: bool | None


@dataclass(frozen=True, slots=True)
class GroupFields:
    """Attributes of a group that a client may set. `members`: ids of users."""

    name: str
    external_id: str | None
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Mapped:
    """Mapping of provisioned users to persons. `subject_of`: the digest that identifies a person, None for a user who
    cannot log in. `grants_of`: roles by tenant (None: operator's staff) that groups grant."""

    subject_of: Callable[[UserFields], str | None]
    grants_of: Callable[[frozenset[str]], Mapping[str | None, tuple[Role, ...]]]
