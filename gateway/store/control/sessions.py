"""People who come in through the identity provider: their roles follow its groups, their tokens are short sessions.
Also the sessions of people who come to the console with a one-time token."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlmodel import select

from gateway.database.errors import NotFound
from gateway.database.tables.control import AccessTokenRow, PersonRow, TenantRow
from gateway.identity.keys import ApiKey
from gateway.records.control import AccessTokenRecord, PersonRecord, Role
from gateway.store import lookup
from gateway.store.change import Change
from gateway.store.control.people import PeopleControl, log_of, own_person
from gateway.store.lookup import person_record, token_record

SIGN_IN = "console sign-in"
SIGN_IN_LIFE = timedelta(minutes=10)


class SessionControl(PeopleControl):
    def apply_groups(
        self, subject: str, display_name: str, grants: Mapping[str | None, Sequence[Role]]
    ) -> list[PersonRecord]:
        """Give the person known as `subject` exactly the roles in `grants`, by tenant; returns who may now log in.

        Roles that are no longer granted are taken away, the last operator's too: the shell can let another one in.
        Where the tenant does not exist or was revoked, or the person was, nothing is granted.
        """
        with self._change() as change:
            return self._apply_groups(change, subject, display_name, grants)

    def open_session(
        self, tenant: str | None, person: str, *, life: timedelta, authenticated_at: datetime | None = None
    ) -> tuple[AccessTokenRecord, ApiKey]:
        """A token that ends after `life`; as long as it lives, it is the person, who last showed who they are at
        `authenticated_at`, if that is known. Raises Invalid, NotFound."""
        with self._change() as change:
            lookup.living_person(change.session, tenant, person)
            return self._insert_token(
                change,
                tenant,
                person,
                change.at + life,
                "login",
                action="session.opened",
                authenticated_at=authenticated_at,
            )

    def create_sign_in(self, tenant: str | None, person: str) -> tuple[AccessTokenRecord, ApiKey]:
        """A token (``dom_once_...``) that begins one session of the console within SIGN_IN_LIFE, and opens nothing
        else. Raises Invalid, also for a person of the identity provider, NotFound."""
        with self._change() as change:
            own_person(lookup.living_person(change.session, tenant, person))
            return self._insert_token(change, tenant, person, change.at + SIGN_IN_LIFE, SIGN_IN, kind="once")

    def sign_in(self, token: str, *, life: timedelta) -> tuple[PersonRecord, AccessTokenRecord, ApiKey]:
        """Spend the one-time token with the id `token`, whose secret was checked, on a session that ends after `life`.

        Of several at once, one gets through. Raises NotFound for one that is spent or expired, Invalid.
        """
        with self._change() as change:
            row = change.session.get(AccessTokenRow, token)
            person = None if row is None or row.person is None else change.session.get(PersonRow, row.person)
            if (
                row is None
                or person is None
                or row.label != SIGN_IN
                or row.revoked_at is not None
                or row.expires_at <= change.at
            ):
                raise NotFound(
                    "the sign-in token was used or has expired"
                    "; make another with `domicile person create-token --console`"
                )
            lookup.living_person(change.session, person.tenant, person.id)
            self._revoke(change, row, token_record, "token.revoked", log_of(person.tenant), token)
            life_ends = change.at + life
            record, key = self._insert_token(
                change,
                person.tenant,
                person.id,
                life_ends,
                "login",
                action="session.opened",
                authenticated_at=change.at,
                made_by=row.made_by,
            )
            return person_record(person), record, key

    def close_session(self, tenant: str | None, person: str, token: str) -> AccessTokenRecord:
        """Closing twice changes nothing. Raises NotFound."""
        with self._change() as change:
            row = lookup.token(change.session, tenant, person, token)
            return self._revoke(change, row, token_record, "session.closed", log_of(tenant), token)

    def end_session(self, token: str) -> None:
        """End the session with the id `token`, of any person. No effect on other kinds of token, or if it is gone."""
        with self._change() as change:
            row = change.session.get(AccessTokenRow, token)
            person = None if row is None or row.person is None else change.session.get(PersonRow, row.person)
            if row is not None and person is not None and row.label == "login" and row.revoked_at is None:
                self._revoke(change, row, token_record, "session.closed", log_of(person.tenant), token)

    def _apply_groups(
        self, change: Change, subject: str, display_name: str, grants: Mapping[str | None, Sequence[Role]]
    ) -> list[PersonRecord]:
        rows = {row.tenant: row for row in change.session.exec(select(PersonRow).where(PersonRow.subject == subject))}
        for tenant in rows.keys() - grants.keys():
            self._set_roles(change, rows[tenant], rows[tenant].display_name, ())
        return [
            person
            for tenant, roles in sorted(grants.items(), key=lambda each: each[0] or "")
            if _is_living(change, tenant)
            and (person := self._grant(change, rows.get(tenant), tenant, subject, display_name, roles)) is not None
        ]

    def _grant(
        self,
        change: Change,
        row: PersonRow | None,
        tenant: str | None,
        subject: str,
        display_name: str,
        roles: Sequence[Role],
    ) -> PersonRecord | None:
        if row is None:
            return self._insert_person(change, tenant, display_name, roles, subject=subject)
        return None if row.revoked_at is not None else self._set_roles(change, row, display_name, roles)

    @staticmethod
    def _set_roles(change: Change, row: PersonRow, display_name: str, roles: Sequence[Role]) -> PersonRecord:
        before = person_record(row)
        if before.roles != tuple(roles) or before.display_name != display_name:
            row.roles, row.display_name, row.epoch = list(roles), display_name, change.epoch
            change.report("person.changed", log_of(row.tenant), row.id, before, person_record(row))
        return person_record(row)


def _is_living(change: Change, tenant: str | None) -> bool:
    row = None if tenant is None else change.session.get(TenantRow, tenant)
    return tenant is None or (row is not None and row.cell == change.cell and row.revoked_at is None)
