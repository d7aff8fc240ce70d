"""Independence of the two people of a dual-control decision.

A person with permission to manage people can create a person, change their roles, or create a token in their name. For
a dual-control decision a person therefore counts only if their account, roles and token are older than a configured
time, or if someone with another role has vouched for them since. Accounts from the host's shell or the identity
provider count at once, because the admin API cannot create them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlmodel import Session, col, select

from gateway.database.tables.control import AccessTokenRow, PersonRow

DEFAULT_WAIT = timedelta(hours=72)
BY_TOKEN, BY_MACHINE = "key:", "machine:"
SHELL = "cli"
"""Actor of commands without a login: a person with shell access to the installation's folder."""


@dataclass(frozen=True, slots=True)
class Standing:
    """`since`: creation time of the newest of the person's account, roles and token; None if none of them was created
    through the admin API. `vouched_at`: when someone with another role vouched for the person."""

    since: datetime | None
    vouched_at: datetime | None = None

    def counts(self, at: datetime, wait: timedelta) -> bool:
        if self.since is None or self.since + wait <= at:
            return True
        return self.vouched_at is not None and self.vouched_at > self.since


def standing_of(session: Session, person: str, actor: str) -> Standing:
    """Return the standing of a person. person: id. actor: ``key:`` and the id of a token, or a machine or shell."""
    row = session.get(PersonRow, person)
    if row is None or row.subject is not None:  # the shell, a machine or a person of the identity provider
        return Standing(None)
    made = [] if _is_outside(row.made_by) else [row.roles_since or row.created_at]
    if (token := _token(session, actor)) is not None and (since := _token_since(session, token)) is not None:
        made.append(since)
    return Standing(max(made, default=None), row.vouched_at)


def makers_of(session: Session, person: PersonRow) -> set[str]:
    """Return the ids of people who created `person`, assigned their roles, or created one of their valid tokens."""
    tokens = session.exec(
        select(AccessTokenRow).where(AccessTokenRow.person == person.id, col(AccessTokenRow.revoked_at).is_(None))
    )
    made_by = [person.made_by, *(token.made_by for token in tokens)]
    return {maker for actor in made_by if (maker := _person_behind(session, actor)) not in (None, person.id)}


def _token_since(session: Session, token: AccessTokenRow) -> datetime | None:
    """Return when the token counts as created. A token that its person created is as old as the token used for it."""
    for each in _line(session, token):
        if _is_outside(each.made_by):
            return None
        token = each
    return token.created_at


def _line(session: Session, token: AccessTokenRow) -> Iterator[AccessTokenRow]:
    """Yield `token`, then the token that it was created with, and so on while they belong to the same person."""
    seen: set[str] = set()
    current: AccessTokenRow | None = token
    while current is not None and current.person == token.person and current.id not in seen:
        seen.add(current.id)
        yield current
        current = _token(session, current.made_by)


def _token(session: Session, actor: str | None) -> AccessTokenRow | None:
    if actor is None or not actor.startswith(BY_TOKEN):
        return None
    return session.get(AccessTokenRow, actor.removeprefix(BY_TOKEN))


def _person_behind(session: Session, actor: str | None) -> str | None:
    token = _token(session, actor)
    return None if token is None else token.person


def _is_outside(made_by: str | None) -> bool:
    """Whether the creator is known and did not use the admin API. Older rows have no creator."""
    return made_by is not None and not made_by.startswith((BY_TOKEN, BY_MACHINE))
