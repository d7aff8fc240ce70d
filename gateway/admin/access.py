"""Who calls the admin API and whether they may: a dependency that every route names its permission to."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Header, Request

from gateway.admin.problems import Forbidden
from gateway.identity.keys import KeyHasher, KeyUnknown, parse_key
from gateway.identity.roles import INSTALLATION, Actor, Permission, check
from gateway.policy_room import PolicyRoom
from gateway.store.bearers import find_bearer
from gateway.store.control import CheckPolicy, Control, OnEvent
from gateway.store.database import Database
from gateway.store.errors import NotFound
from gateway.store.inventory import Inventory
from gateway.store.pages import Pages

BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class Desk:
    """What the admin API works with. `hasher` gives the one of now: the pepper may have been rotated meanwhile."""

    database: Database
    cell: str
    hasher: Callable[[], KeyHasher]
    check_policy: CheckPolicy
    on_event: OnEvent
    policy_room: Callable[[Inventory], PolicyRoom] | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def inventory(self) -> Inventory:
        return Inventory(self.database)

    @property
    def pages(self) -> Pages:
        return Pages(self.database)

    def control(self, actor: str, expected: str | None = None) -> Control:
        return Control(
            self.database,
            cell=self.cell,
            hasher=self.hasher(),
            actor=actor,
            check_policy=self.check_policy,
            on_event=self.on_event,
            now=self.now,
            expected=expected,
        )

    def actor(self, authorization: str) -> Actor:
        """Raises a KeyRefused; a bootstrap token is nobody here."""
        key = parse_key(_token(authorization), "admin")
        bearer = find_bearer(self.database, self.cell, self.hasher(), key, self.now())
        if bearer.person is None:
            raise KeyUnknown("a bootstrap token is good for /bootstrap only")
        return Actor(bearer.person.id, bearer.person.tenant, bearer.person.roles, bearer.token)

    def bootstrap_token(self, authorization: str) -> str:
        """Its id. Raises a KeyRefused."""
        key = parse_key(_token(authorization), "admin")
        bearer = find_bearer(self.database, self.cell, self.hasher(), key, self.now())
        if bearer.person is not None:
            raise KeyUnknown("this takes the bootstrap token")
        return bearer.token


def desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


def person_calling(request: Request) -> Actor:
    return desk_of(request).actor(request.headers.get("authorization", ""))


@dataclass(frozen=True)
class Need:
    """As a dependency: the actor, if they may. Another tenant is 404, whether it exists or not; 403 says why."""

    permission: Permission

    def __call__(self, request: Request) -> Actor:
        actor = person_calling(request)
        tenant = request.path_params.get("tenant")
        if tenant is not None and not actor.sees(tenant):
            raise NotFound(f"there is no tenant {tenant!r}")
        verdict = check(actor, self.permission, None if self.permission in INSTALLATION else tenant)
        if not verdict.allowed:
            raise Forbidden(verdict.because)
        return actor


def if_match(if_match: Annotated[str | None, Header(description="ETag of what is to be changed")] = None) -> str | None:
    """The digest in the header; None where any state will do (RFC 9110 §13.1.1). A weak tag matches nothing."""
    return None if if_match is None or if_match.strip() == "*" else if_match.strip().removeprefix('"').removesuffix('"')


DeskOf = Annotated[Desk, Depends(desk_of)]
IfMatch = Annotated[str | None, Depends(if_match)]


def _token(authorization: str) -> str:
    return authorization[len(BEARER) :].strip() if authorization[: len(BEARER)].lower() == BEARER else ""
