"""Users and groups provisioned by the identity provider. A change applies to persons and their sessions at once.

Each operation and its consequences are one transaction: an inactive or deleted user loses every role and session.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from secrets import token_hex
from typing import Any, Literal, TypeVar

from sqlalchemy import exc
from sqlmodel import col, delete, func, select

from gateway.database.database import Database
from gateway.database.errors import Duplicate, InvalidValue, NotFound, Stale
from gateway.database.tables.control import AccessTokenRow, PersonRow
from gateway.database.tables.provisioning import ScimGroupRow, ScimMemberRow, ScimUserRow
from gateway.records.control import PersonRecord
from gateway.records.provisioning import Comparison, GroupFields, Mapped, ProvisionedGroup, ProvisionedUser, UserFields
from gateway.store.change import Change, checked_text
from gateway.store.control.people import log_of
from gateway.store.control.sessions import SessionControl
from gateway.store.lookup import token_record

AnyRow = TypeVar("AnyRow", ScimUserRow, ScimGroupRow)
Attribute = Literal["id", "name", "external_id", "display_name"]
Condition = tuple[Attribute, Comparison, str]
MAX_MEMBERS = 10_000


class Provisioning(SessionControl):
    """Operations on provisioned users and groups.

    Every method raises DatabaseUnavailable and the errors of the audit record. Methods on one resource raise NotFound,
    and Stale if `version` is given and is not the current version.
    """

    def __init__(self, database: Database, mapped: Mapped, **more: Any) -> None:
        super().__init__(database, **more)
        self._mapped = mapped

    # Users

    def create_user(self, fields: UserFields) -> ProvisionedUser:
        """Create a user and return it.

        Raises Duplicate if the name or the identity at the provider is taken, and InvalidValue for a bad attribute.
        """
        with self._change() as change:
            row = ScimUserRow(
                id=token_hex(16), cell=self._cell, created_at=change.at, changed_at=change.at, **self._columns(fields)
            )
            self._add(change, row, "userName")
            self._settle(change, [row])
            return _user(change, row)

    def replace_user(self, user: str, fields: UserFields, version: int | None = None) -> ProvisionedUser:
        """Replace the attributes of a user and return it. Raises as `create_user` does."""
        with self._change() as change:
            row = self._row(change, ScimUserRow, user, version)
            columns = self._columns(fields, row.active)
            if row.subject is not None and row.subject != columns["subject"]:
                self._shut_out(change, row.subject, row.display_name)
            self._set(change, row, columns, "userName")
            self._settle(change, [row])
            return _user(change, row)

    def delete_user(self, user: str, version: int | None = None) -> None:
        with self._change() as change:
            row = self._row(change, ScimUserRow, user, version)
            if row.subject is not None:
                self._shut_out(change, row.subject, row.display_name)
            change.session.execute(delete(ScimMemberRow).where(col(ScimMemberRow.user) == user))
            change.session.delete(row)

    def user(self, user: str) -> ProvisionedUser:
        with self._reading() as change:
            return _user(change, self._row(change, ScimUserRow, user, None))

    def users(self, where: Condition | None, start: int, count: int) -> tuple[int, list[ProvisionedUser]]:
        """Return the number of matching users, and at most `count` of them from `start` on, counted from 1."""
        with self._reading() as change:
            total, rows = self._listed(change, ScimUserRow, where, start, count)
            return total, [_user(change, row) for row in rows]

    # Groups

    def create_group(self, fields: GroupFields) -> ProvisionedGroup:
        """Create a group and return it. Raises Duplicate if the name is taken, InvalidValue for an unknown member."""
        with self._change() as change:
            names = _names(fields.name, fields.external_id)
            row = ScimGroupRow(id=token_hex(16), cell=self._cell, created_at=change.at, changed_at=change.at, **names)
            self._add(change, row, "displayName")
            self._settle(change, self._set_members(change, row.id, fields.members))
            return _group(change, row)

    def replace_group(self, group: str, fields: GroupFields, version: int | None = None) -> ProvisionedGroup:
        """Replace the attributes of a group and return it. Raises as `create_group` does."""
        with self._change() as change:
            row = self._row(change, ScimGroupRow, group, version)
            renamed = row.name != fields.name
            self._set(change, row, _names(fields.name, fields.external_id), "displayName")
            changed = self._set_members(change, group, fields.members)
            self._settle(change, self._members(change, group) if renamed else [], changed)
            return _group(change, row)

    def delete_group(self, group: str, version: int | None = None) -> None:
        with self._change() as change:
            row = self._row(change, ScimGroupRow, group, version)
            changed = self._set_members(change, group, frozenset())
            change.session.delete(row)
            change.session.flush()
            self._settle(change, changed)

    def group(self, group: str) -> ProvisionedGroup:
        with self._reading() as change:
            return _group(change, self._row(change, ScimGroupRow, group, None))

    def groups(self, where: Condition | None, start: int, count: int) -> tuple[int, list[ProvisionedGroup]]:
        with self._reading() as change:
            total, rows = self._listed(change, ScimGroupRow, where, start, count)
            return total, [_group(change, row) for row in rows]

    # Logins

    def admitted(self, subject: str) -> list[PersonRecord] | None:
        """Return the persons that may log in as `subject`, with the roles of their groups, or None if the user is not
        provisioned or not active."""
        with self._change() as change:
            row = change.session.exec(
                select(ScimUserRow).where(ScimUserRow.subject == subject, ScimUserRow.cell == self._cell)
            ).one_or_none()
            if row is None or not row.active:
                self._shut_out(change, subject, None if row is None else row.display_name)
                return None
            return self._apply(change, row)

    @contextmanager
    def _reading(self) -> Iterator[Change]:
        with self._database.read() as session:
            yield Change(session, self._cell, self._actor, self._now(), 0, self._on_event, None)

    # Consequences for persons

    def _settle(self, change: Change, *groups_of_rows: Iterable[ScimUserRow]) -> None:
        change.session.flush()
        for row in {row.id: row for rows in groups_of_rows for row in rows}.values():
            if row.subject is not None and row.active:
                self._apply(change, row)
            elif row.subject is not None:
                self._shut_out(change, row.subject, row.display_name)

    def _apply(self, change: Change, row: ScimUserRow) -> list[PersonRecord]:
        names = frozenset(name for _, name in _groups_of(change, row.id))
        return self._apply_groups(
            change, row.subject or "", row.display_name or row.name[:200], self._mapped.grants_of(names)
        )

    def _shut_out(self, change: Change, subject: str, display_name: str | None) -> None:
        persons = change.session.exec(select(PersonRow).where(PersonRow.subject == subject)).all()
        for person in persons:
            self._apply_groups(change, subject, display_name or person.display_name, {})
            tokens = select(AccessTokenRow).where(
                AccessTokenRow.person == person.id,
                col(AccessTokenRow.revoked_at).is_(None),
                col(AccessTokenRow.expires_at) > change.at,
            )
            for token in change.session.exec(tokens).all():
                self._revoke(change, token, token_record, "session.closed", log_of(person.tenant), token.id)

    # Rows

    def _columns(self, fields: UserFields, present: bool = True) -> dict[str, Any]:
        """`present`: whether the user is active now."""
        if fields.display_name:
            checked_text(fields.display_name, "displayName")
        return {
            **_names(fields.name, fields.external_id),
            "display_name": fields.display_name,
            "active": present if fields.active is None else fields.active,
            "subject": self._mapped.subject_of(fields),
        }

    def _add(self, change: Change, row: AnyRow, what: str) -> None:
        self._check_free(change, row, what)
        change.session.add(row)
        self._flush(change, what)

    def _set(self, change: Change, row: AnyRow, columns: dict[str, Any], what: str) -> None:
        if all(getattr(row, name) == value for name, value in columns.items()):
            return
        for name, value in columns.items():
            setattr(row, name, value)
        row.version, row.changed_at = row.version + 1, change.at
        self._flush(change, what)

    def _check_free(self, change: Change, row: AnyRow, what: str) -> None:
        table = type(row)
        if change.session.exec(select(table).where(table.cell == self._cell, table.name_key == row.name_key)).first():
            raise Duplicate(f"the {what} is taken; choose another, or change the one that there is")

    def _flush(self, change: Change, what: str) -> None:
        try:
            change.session.flush()
        except exc.IntegrityError as error:
            raise Duplicate(
                f"the {what}, or who it is at the identity provider, is taken; change the one that there is"
            ) from error

    def _row(self, change: Change, table: type[AnyRow], key: str, version: int | None) -> AnyRow:
        row = change.session.get(table, key)
        if row is None or row.cell != self._cell:
            raise NotFound("there is no such resource; look it up by its name")
        if version is not None and row.version != version:
            raise Stale("it was changed since you last read it; read it again, and repeat the change")
        return row

    def _listed(
        self, change: Change, table: type[AnyRow], where: Condition | None, start: int, count: int
    ) -> tuple[int, Sequence[AnyRow]]:
        conditions = [table.cell == self._cell]
        if where is not None:
            conditions.append(self._matching(change, table, *where))
        total = change.session.exec(select(func.count()).select_from(table).where(*conditions)).one()
        rows = select(table).where(*conditions).order_by(col(table.created_at), col(table.id))
        return total, change.session.exec(rows.offset(max(start, 1) - 1).limit(count)).all() if count else []

    def _matching(
        self, change: Change, table: type[AnyRow], attribute: Attribute, operator: Comparison, value: str
    ) -> Any:
        """The condition for one attribute, without case where its schema says ``caseExact: false`` (RFC 7643 §2.2).
        Display names have no form for comparison beside them: they are compared here, since SQLite's ``lower`` knows
        ASCII alone. Beginnings are cut out, since its ``LIKE`` ignores case."""
        if attribute != "display_name":
            column = table.name_key if attribute == "name" else getattr(table, attribute)
            wanted = _key(value) if attribute == "name" else value
            return (column if operator == "eq" else func.substr(column, 1, len(wanted))) == wanted
        named = change.session.exec(select(ScimUserRow.id, ScimUserRow.display_name).where(table.cell == self._cell))
        is_meant = str.startswith if operator == "sw" else str.__eq__
        return col(table.id).in_([key for key, name in named if is_meant(_key(name), _key(value))])

    def _set_members(self, change: Change, group: str, wanted: frozenset[str]) -> list[ScimUserRow]:
        """Set the members of a group. Returns the users whose membership changed."""
        if len(wanted) > MAX_MEMBERS:
            raise InvalidValue(f"a group has at most {MAX_MEMBERS} members; map a smaller one to a role")
        before = {row.id: row for row in self._members(change, group)}
        changed = [before[user] for user in before.keys() - wanted]
        for row in changed:
            change.session.delete(change.session.get_one(ScimMemberRow, (group, row.id)))
        for user in sorted(wanted - before.keys()):
            added = change.session.get(ScimUserRow, user)
            if added is None or added.cell != self._cell:
                raise InvalidValue("a member of the group is no user here; create the user first")
            change.session.add(ScimMemberRow(group=group, user=user))
            changed.append(added)
        if changed:
            of = change.session.get_one(ScimGroupRow, group)
            of.version, of.changed_at = of.version + 1, change.at
        change.session.flush()
        return changed

    @staticmethod
    def _members(change: Change, group: str) -> list[ScimUserRow]:
        joined = select(ScimUserRow).join(ScimMemberRow, col(ScimMemberRow.user) == ScimUserRow.id)
        return list(change.session.exec(joined.where(ScimMemberRow.group == group)).all())


def _user(change: Change, row: ScimUserRow) -> ProvisionedUser:
    names = (name for name in ProvisionedUser.__slots__ if name != "groups")
    made = ProvisionedUser(**{name: getattr(row, name) for name in names})
    return replace(made, groups=tuple(_groups_of(change, row.id)))


def _groups_of(change: Change, user: str) -> list[tuple[str, str]]:
    joined = select(ScimGroupRow).join(ScimMemberRow, col(ScimMemberRow.group) == ScimGroupRow.id)
    found = change.session.exec(joined.where(ScimMemberRow.user == user).order_by(col(ScimGroupRow.name))).all()
    return [(row.id, row.name) for row in found]


def _group(change: Change, row: ScimGroupRow) -> ProvisionedGroup:
    names = (name for name in ProvisionedGroup.__slots__ if name != "members")
    members = sorted((user.id, user.name) for user in Provisioning._members(change, row.id))
    return replace(ProvisionedGroup(**{name: getattr(row, name) for name in names}), members=tuple(members))


def _names(name: str, external_id: str | None) -> dict[str, Any]:
    if not name.strip() or len(name) > 256 or not name.isprintable():
        raise InvalidValue("the name is not one line of 1 to 256 printable characters; shorten it")
    if external_id is not None and not (0 < len(external_id) <= 256 and external_id.isprintable()):
        raise InvalidValue("the externalId is not 1 to 256 printable characters; shorten it")
    return {"name": name, "name_key": _key(name), "external_id": external_id}


def _key(name: str) -> str:
    """Return a name in the form used for comparison: ``userName`` is case-insensitive (RFC 7643 §4.1.1)."""
    return name.casefold()[:256]
