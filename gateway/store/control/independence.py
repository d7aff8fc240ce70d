"""Whether a person is a second one, or may have been invented by the first.

Who manages people can make a person, change their roles, or make a token in their name. So for a decision of two people
each counts only if what they act by is older than a stated time, or another role vouched for them since it was made.
What the host's shell or the identity provider made counts at once: neither is in the hands of who manages people by the
admin API.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlmodel import Session, col, select

from gateway.database.tables.control import AccessTokenRow, PersonRow

DEFAULT_WAIT = timedelta(hours=72)
BY_TOKEN, BY_MACHINE = "key:", "machine:"
SHELL = "cli"
"""The actor of commands without a login: a person with a shell on the installation's folder."""


@dataclass(frozen=True, slots=True)
class Standing:
    """`since`: from when on all that the person acts by was there; None where nothing of it was made through the admin
    API. `vouched_at`: when another role vouched for them."""

    since: datetime | None
    vouched_at: datetime | None = None

    def counts(self, at: datetime, wait: timedelta) -> bool:
        if self.since is None or self.since + wait <= at:
            return True
        return self.vouched_at is not None and self.vouched_at > self.since


def standing_of(session: Session, person: str, actor: str) -> Standing:
    """Of `person` (their id), who acts as `actor`: ``key:`` and a token's id, or a machine or shell."""
    row = session.get(PersonRow, person)
    if row is None or row.subject is not None:  # the shell, a machine or a person of the identity provider
        return Standing(None)
    made = [] if _is_outside(row.made_by) else [row.roles_since or row.created_at]
    if (token := _token(session, actor)) is not None and (since := _token_since(session, token)) is not None:
        made.append(since)
    return Standing(max(made, default=None), row.vouched_at)


def makers_of(session: Session, person: PersonRow) -> set[str]:
    """The ids of people who made `person`, gave them their roles, or made one of their tokens in use."""
    tokens = session.exec(
        select(AccessTokenRow).where(AccessTokenRow.person == person.id, col(AccessTokenRow.revoked_at).is_(None))
    )
    made_by = [person.made_by, *(token.made_by for token in tokens)]
    return {maker for actor in made_by if (maker := _person_behind(session, actor)) not in (None, person.id)}


def _token_since(session: Session, token: AccessTokenRow) -> datetime | None:
    """One that its person made themselves is as old as the one that they made it with."""
    for each in _line(session, token):
        if _is_outside(each.made_by):
            return None
        token = each
    return token.created_at


def _line(session: Session, token: AccessTokenRow) -> Iterator[AccessTokenRow]:
    """`token`, and of those of the same person that it was made with, each."""
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
    """Whether it was made neither through the admin API nor before it was noted by whom."""
    return made_by is not None and not made_by.startswith((BY_TOKEN, BY_MACHINE))
