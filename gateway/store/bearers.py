"""Whose access token it is: looked up for each call of the admin API, so that a revocation holds at once."""

from dataclasses import dataclass
from datetime import datetime

from gateway.database.database import Database
from gateway.database.tables.control import AccessTokenRow, PersonRow, TenantRow
from gateway.identity.keys import ApiKey, KeyExpired, KeyHasher, KeyRevoked, KeyUnknown
from gateway.records.control import PersonRecord
from gateway.store.lookup import person_record

_NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class Bearer:
    """`person` is None for a bootstrap token."""

    token: str
    person: PersonRecord | None


def find_bearer(database: Database, cell: str, hasher: KeyHasher, key: ApiKey, now: datetime) -> Bearer:
    """Raises KeyUnknown, KeyRevoked (the token, its person or their tenant was), KeyExpired, DatabaseUnavailable."""
    with database.read() as session:
        row = session.get(AccessTokenRow, key.id)
        if row is None or row.cell != cell:
            hasher.matches(key, _NO_DIGEST)  # as long as for one that exists
            raise KeyUnknown("the access token is not known; log in, or send a token as it was created")
        if not hasher.matches(key, row.digest, row.pepper):
            raise KeyUnknown("the access token is not known; log in, or send a token as it was created")
        person = session.get(PersonRow, row.person) if row.person is not None else None
        tenant = session.get(TenantRow, person.tenant) if person is not None and person.tenant is not None else None
        if any(each is not None and each.revoked_at is not None for each in (row, person, tenant)):
            raise KeyRevoked("the access token was revoked; create a new one with `domicile person create-token`")
        if row.expires_at <= now:
            raise KeyExpired(
                f"the access token expired on {row.expires_at:%Y-%m-%d %H:%M} UTC"
                "; create a new one with `domicile person create-token`"
            )
        bearer = Bearer(row.id, None if person is None else person_record(person))
        outdated = row.pepper < hasher.generation
    if outdated:
        with database.write() as session:
            if (again := session.get(AccessTokenRow, key.id)) is not None:
                again.digest, again.pepper = hasher.digest(key), hasher.generation
    return bearer
