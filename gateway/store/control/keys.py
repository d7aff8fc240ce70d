"""What administrators do to API keys."""

from datetime import datetime, timedelta

from gateway.database.errors import Invalid, InvalidValue
from gateway.database.tables.control import ApiKeyRow
from gateway.identity.keys import ApiKey, generate_key
from gateway.records.control import UNBOUNDED, KeyRecord, Scopes
from gateway.store import lookup
from gateway.store.change import Administration, Change, checked_label
from gateway.store.control.limits import copy_limits
from gateway.store.lookup import key_record

MAX_GRACE = timedelta(days=90)


class KeyControl(Administration):
    def create_key(
        self,
        tenant: str,
        project: str,
        *,
        label: str = "",
        scopes: Scopes = UNBOUNDED,
        expires_at: datetime | None = None,
    ) -> tuple[KeyRecord, ApiKey]:
        """The record, and the key itself: its only appearance ever. Raises Invalid, NotFound."""
        self._check_future(expires_at)
        with self._change() as change:
            lookup.living_project(change.session, tenant, project)
            row, key = self._insert_key(change, tenant, project, label, scopes.model_dump(mode="json"), expires_at)
            record = key_record(row)
            change.report("key.created", tenant, key.id, None, record, project=project)
        return record, key

    def rotate_key(
        self, tenant: str, key_id: str, *, grace: timedelta, expires_at: datetime | None = None
    ) -> tuple[KeyRecord, ApiKey]:
        """A successor with the same label and scopes; both work until `grace` is over, then only the new one.

        Without `expires_at` the new key lives as long as the old one was meant to. Rotating a key twice is refused, so
        that a repeated call never leaves a key that no one knows. Raises Invalid, NotFound.
        """
        if not timedelta(0) <= grace <= MAX_GRACE:
            raise InvalidValue(f"the grace period is out of range; give 0 to {MAX_GRACE.days} days")
        self._check_future(expires_at)
        with self._change() as change:
            old = lookup.key(change.session, tenant, key_id)
            lookup.living_project(change.session, tenant, old.project)
            if old.replaced_by is not None:
                raise Invalid(f"key {key_id!r} was rotated already, to {old.replaced_by!r}; rotate that one")
            if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= change.at):
                raise Invalid(f"key {key_id!r} works no longer; create a new one")
            if expires_at is None and old.expires_at is not None:
                expires_at = change.at + (old.expires_at - old.created_at)
            before = key_record(old)
            row, key = self._insert_key(change, tenant, old.project, old.label, old.scopes, expires_at)
            copy_limits(change, tenant, old.project, key_id, row.id)
            ends = change.at + grace
            old.replaced_by, old.epoch = row.id, change.epoch
            old.expires_at = ends if old.expires_at is None else min(old.expires_at, ends)
            record = key_record(row)
            change.report("key.created", tenant, key.id, None, record, project=old.project, detail={"replaces": key_id})
            change.report("key.rotated", tenant, key_id, before, key_record(old), project=old.project)
        return record, key

    def revoke_key(self, tenant: str, key_id: str) -> KeyRecord:
        """Every gateway refuses it within a second. Revoking twice changes nothing. Raises NotFound."""
        with self._change() as change:
            row = lookup.key(change.session, tenant, key_id)
            return self._revoke(change, row, key_record, "key.revoked", tenant, key_id, project=row.project)

    def _insert_key(
        self,
        change: Change,
        tenant: str,
        project: str,
        label: str,
        scopes: dict[str, list[str]],
        expires_at: datetime | None,
    ) -> tuple[ApiKeyRow, ApiKey]:
        key = generate_key()
        row = ApiKeyRow(
            id=key.id,
            tenant=tenant,
            project=project,
            label=checked_label(label),
            digest=self._hasher.digest(key),
            pepper=self._hasher.generation,
            last_four=key.token[-4:],
            scopes={name: bound for name, bound in scopes.items() if bound is not None},
            expires_at=expires_at,
            **change.stamp,
        )
        change.insert(row, f"key {key.id}")
        return row, key

    def _check_future(self, expires_at: datetime | None) -> None:
        if expires_at is not None and (expires_at.tzinfo is None or expires_at <= self._now()):
            raise InvalidValue("the expiry of a key is in the past or has no zone; give a later instant with a zone")
