"""Persons behind the names that records give to who acted, which are those of tokens."""

from collections.abc import Collection

from sqlmodel import col, select

from gateway.database.database import Database
from gateway.database.tables.control import AccessTokenRow, PersonRow
from gateway.records.control import PersonRecord
from gateway.store.lookup import person_record

PREFIX = "key:"
AT_ONCE = 500
"""Tokens in one statement."""


def persons_behind(database: Database, actors: Collection[str]) -> dict[str, PersonRecord]:
    """The persons by name of an actor, of those that there are. Raises DatabaseUnavailable."""
    tokens = sorted(each.removeprefix(PREFIX) for each in set(actors) if each.startswith(PREFIX))
    found: dict[str, PersonRecord] = {}
    with database.read() as session:
        for start in range(0, len(tokens), AT_ONCE):
            query = select(AccessTokenRow.id, PersonRow).join(PersonRow, col(AccessTokenRow.person) == PersonRow.id)
            some = query.where(col(AccessTokenRow.id).in_(tokens[start : start + AT_ONCE]))
            found |= {PREFIX + token: person_record(person) for token, person in session.exec(some)}
    return found


def persons_called(database: Database, names: Collection[str]) -> dict[str, PersonRecord]:
    """As `persons_behind`, and the persons of whom a name is the id. Raises DatabaseUnavailable."""
    found = persons_behind(database, names)
    ids = sorted(each for each in set(names) if not each.startswith(PREFIX))
    with database.read() as session:
        for start in range(0, len(ids), AT_ONCE):
            query = select(PersonRow).where(col(PersonRow.id).in_(ids[start : start + AT_ONCE]))
            found |= {person.id: person_record(person) for person in session.exec(query)}
    return found


def actors_of(database: Database, person: str) -> list[str]:
    """The names under which records know a person; none for one that there is not. Raises DatabaseUnavailable."""
    with database.read() as session:
        tokens = session.exec(select(AccessTokenRow.id).where(AccessTokenRow.person == person))
        return [PREFIX + token for token in tokens]
