"""People and groups as an identity provider provisions them by SCIM, as they cross from the store."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gateway.records.control import Role


@dataclass(frozen=True, slots=True)
class ProvisionedUser:
    """`name`: SCIM's ``userName``. `groups`: (id, name) of those that the user is in."""

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
    """`members`: (id, name) of users."""

    id: str
    name: str
    external_id: str | None
    created_at: datetime
    changed_at: datetime
    version: int
    members: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class UserFields:
    """What a client may set of a user. `active`: None leaves it as it is; a new user is active then."""

    name: str
    external_id: str | None
    display_name: str
    active: bool | None


@dataclass(frozen=True, slots=True)
class GroupFields:
    """What a client may set of a group; `members` are ids of users."""

    name: str
    external_id: str | None
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Mapped:
    """How provisioned people become persons here. `subject_of`: the digest by which a person is known, None for one who
    cannot log in; `grants_of`: roles by tenant (None: as staff) of groups."""

    subject_of: Callable[[UserFields], str | None]
    grants_of: Callable[[frozenset[str]], Mapping[str | None, tuple[Role, ...]]]
