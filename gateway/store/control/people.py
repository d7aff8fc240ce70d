"""What administrators do to people: who there is, in which roles, with which access tokens."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import get_args

from sqlmodel import col, select

from audit.events.base import SYSTEM_TENANT
from gateway.database.errors import Invalid, InvalidValue, NotFound, NotReady
from gateway.database.tables.control import AccessTokenRow, PersonRow
from gateway.identity.keys import ApiKey, KeyKind, generate_id, generate_key
from gateway.records.control import AccessTokenRecord, PersonRecord, Role
from gateway.store import lookup
from gateway.store.change import Administration, Change, checked_label, checked_text
from gateway.store.control.independence import SHELL, makers_of, standing_of
from gateway.store.lookup import person_record, token_record

MAX_TOKEN_LIFE = timedelta(days=366)
BOOTSTRAP_LIFE = timedelta(days=1)


class PeopleControl(Administration):
    def create_person(self, tenant: str | None, display_name: str, roles: Sequence[Role]) -> PersonRecord:
        """`tenant` None: of the installation's own staff. Raises Invalid, NotFound for an unknown tenant."""
        with self._change() as change:
            if tenant is not None:
                lookup.living_tenant(change.session, tenant)
            return self._insert_person(change, tenant, display_name, roles)

    def set_roles(self, tenant: str | None, person: str, roles: Sequence[Role]) -> PersonRecord:
        """Replace all roles. Raises Invalid, also where groups give them, NotFound, also for one of another tenant."""
        checked = _roles(tenant, roles)
        with self._change() as change:
            row = own_person(lookup.living_person(change.session, tenant, person))
            before = person_record(row)
            if before.roles == tuple(checked):
                return before
            row.roles, row.epoch = checked, change.epoch
            row.made_by, row.roles_since = self._actor, change.at
            self._keep_an_operator(change, before)
            after = person_record(row)
            change.report("person.changed", log_of(tenant), person, before, after)
        return after

    def revoke_person(self, tenant: str | None, person: str) -> PersonRecord:
        """All its tokens stop working. Revoking twice changes nothing. Raises NotFound."""
        with self._change() as change:
            row = lookup.person(change.session, tenant, person)
            before = person_record(row)
            record = self._revoke(change, row, person_record, "person.revoked", log_of(tenant), person)
            self._keep_an_operator(change, before)
        return record

    def create_token(
        self, tenant: str | None, person: str, *, expires_at: datetime, label: str = ""
    ) -> tuple[AccessTokenRecord, ApiKey]:
        """The record, and the token itself: its only appearance ever. Raises Invalid, NotFound."""
        with self._change() as change:
            own_person(lookup.living_person(change.session, tenant, person))
            return self._insert_token(change, tenant, person, expires_at, label)

    def revoke_token(self, tenant: str | None, person: str, token: str) -> AccessTokenRecord:
        """Works no longer from the next call on. Revoking twice changes nothing. Raises NotFound."""
        with self._change() as change:
            row = lookup.token(change.session, tenant, person, token)
            return self._revoke(change, row, token_record, "token.revoked", log_of(tenant), token)

    def create_bootstrap_token(self) -> tuple[AccessTokenRecord, ApiKey]:
        """A token that makes the first operator, once; earlier ones stop working. Raises Invalid if one exists."""
        with self._change() as change:
            if _operators(change):
                raise Invalid("there is an operator already; let that person create others")
            unused = select(AccessTokenRow).where(
                AccessTokenRow.cell == self._cell,
                col(AccessTokenRow.person).is_(None),
                col(AccessTokenRow.revoked_at).is_(None),
            )
            for row in change.session.exec(unused).all():
                self._revoke(change, row, token_record, "token.revoked", SYSTEM_TENANT, row.id)
            return self._insert_token(change, None, None, change.at + BOOTSTRAP_LIFE, "bootstrap")

    def bootstrap(
        self, token: str, display_name: str, *, expires_at: datetime
    ) -> tuple[PersonRecord, AccessTokenRecord, ApiKey]:
        """Spend the bootstrap token `token` (its id) on the first operator, with an access token of its own.

        Of several at once, one gets through. Raises NotFound for a token that is spent, Invalid.
        """
        with self._change() as change:
            row = change.session.get(AccessTokenRow, token)
            if row is None or row.person is not None or row.revoked_at is not None or row.expires_at <= change.at:
                raise NotFound(
                    "the bootstrap token was used, replaced, or has expired"
                    "; make another with `domicile person bootstrap`"
                )
            self._revoke(change, row, token_record, "token.revoked", SYSTEM_TENANT, token)
            person = self._insert_person(change, None, display_name, ["operator"], made_by=SHELL)
            record, secret = self._insert_token(change, None, person.id, expires_at, "bootstrap", made_by=SHELL)
        return person, record, secret

    def vouch_for_person(self, tenant: str | None, person: str, *, voucher: str) -> PersonRecord:
        """Say that `person` is a second one, with the roles and tokens that they have now.

        `voucher`: the id of a person, or the shell. It must not have created the person or a token of theirs, have a
        role that none of those has, and count as a second person itself. Raises NotReady with the reason, NotFound,
        Invalid for a person of the identity provider.
        """
        with self._change() as change:
            row = own_person(lookup.living_person(change.session, tenant, person))
            if voucher != SHELL:
                self._check_voucher(change, row, voucher)
            before = person_record(row)
            row.vouched_by, row.vouched_at, row.epoch = voucher, change.at, change.epoch
            after = person_record(row)
            change.report("person.vouched", log_of(tenant), person, before, after, detail={"voucher": voucher})
        return after

    def _check_voucher(self, change: Change, row: PersonRow, voucher: str) -> None:
        """Raises NotReady."""
        makers = makers_of(change.session, row)
        if voucher == row.id or voucher in makers:
            raise NotReady("you are this person, or made them or a token of theirs; let another role vouch for them")
        known = change.session.get(PersonRow, voucher)
        roles = set() if known is None else set(known.roles)
        theirs = {role for maker in makers if (each := change.session.get(PersonRow, maker)) for role in each.roles}
        if known is not None and makers and not roles - theirs:
            raise NotReady(
                "who made this person has all of your roles; let somebody vouch for them who has another role"
            )
        if not standing_of(change.session, voucher, self._actor).counts(change.at, self._approval_wait):
            hours = self._approval_wait.total_seconds() / 3600
            raise NotReady(f"you are too new to vouch for somebody; wait {hours:g} hours, or let another role do it")

    def _insert_person(
        self,
        change: Change,
        tenant: str | None,
        display_name: str,
        roles: Sequence[Role],
        subject: str | None = None,
        made_by: str | None = None,
    ) -> PersonRecord:
        row = PersonRow(
            id=generate_id(),
            tenant=tenant,
            display_name=checked_text(display_name, "display name"),
            roles=_roles(tenant, roles),
            subject=subject,
            made_by=made_by or self._actor,
            **change.stamp,
        )
        change.insert(row, f"person {row.id}")
        record = person_record(row)
        change.report("person.created", log_of(tenant), row.id, None, record)
        return record

    def _insert_token(
        self,
        change: Change,
        tenant: str | None,
        person: str | None,
        expires_at: datetime,
        label: str,
        action: str = "token.created",
        kind: KeyKind = "admin",
        authenticated_at: datetime | None = None,
        made_by: str | None = None,
    ) -> tuple[AccessTokenRecord, ApiKey]:
        if expires_at.tzinfo is None or not change.at < expires_at <= change.at + MAX_TOKEN_LIFE:
            raise InvalidValue(
                f"the expiry of a token is out of range; give an instant with a zone within {MAX_TOKEN_LIFE.days} days"
            )
        key = generate_key(kind=kind)
        row = AccessTokenRow(
            id=key.id,
            person=person,
            label=checked_label(label),
            digest=self._hasher.digest(key),
            pepper=self._hasher.generation,
            last_four=key.token[-4:],
            expires_at=expires_at,
            authenticated_at=authenticated_at,
            made_by=made_by or self._actor,
            **change.stamp,
        )
        change.insert(row, f"token {key.id}")
        record = token_record(row)
        change.report(action, log_of(tenant), key.id, None, record, detail={"person": person} if person else {})
        return record, key

    def _keep_an_operator(self, change: Change, before: PersonRecord) -> None:
        """The last operator cannot be removed: no one could create another."""
        change.session.flush()
        if "operator" in before.roles and before.revoked_at is None and not _operators(change):
            raise Invalid("this is the last operator; make another first")


def own_person(row: PersonRow) -> PersonRow:
    """`row`, if its roles and tokens are managed here. Raises Invalid for a person of the identity provider."""
    if row.subject is not None:
        raise Invalid(f"person {row.id!r} comes through the identity provider; change the groups there")
    return row


def _operators(change: Change) -> int:
    staff = select(PersonRow).where(
        PersonRow.cell == change.cell, col(PersonRow.tenant).is_(None), col(PersonRow.revoked_at).is_(None)
    )
    return sum("operator" in row.roles for row in change.session.exec(staff))


def _roles(tenant: str | None, roles: Sequence[Role]) -> list[str]:
    allowed = [role for role in get_args(Role) if tenant is None or role != "operator"]
    unknown = [role for role in roles if role not in allowed]
    if unknown or not roles:
        raise InvalidValue(
            f"roles are one or more of {', '.join(allowed)}; got {', '.join(map(repr, unknown)) or 'none'}"
        )
    return [role for role in allowed if role in roles]


def log_of(tenant: str | None) -> str:
    """The tenant in whose record the change of a person is written."""
    return SYSTEM_TENANT if tenant is None else tenant
