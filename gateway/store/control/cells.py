"""What administrators do about other cells: know them, let tenants be served there, take over what they say."""

from hashlib import sha256
from typing import Any

from sqlmodel import select

from audit.errors import NoteError
from audit.events.base import SYSTEM_TENANT
from audit.tree.note import VerifierKey
from gateway.database.errors import Invalid, NotFound
from gateway.database.tables.cells import BundleRow, PeerRow, TenantCellRow, TenantHomeRow
from gateway.database.tables.control import ApiKeyRow, PolicyVersionRow, ProjectRow, Row, TenantRow
from gateway.database.tables.usage import LimitSettingRow
from gateway.records.bundle import Bundle
from gateway.records.bundle_request import key_name
from gateway.store import lookup
from gateway.store.cells import PeerRecord, TenantCellRecord, peer_record, tenant_cell_record
from gateway.store.change import Administration, Change, checked_name
from gateway.store.lookup import tenant_record


class CellControl(Administration):
    def register_peer(self, peer: str, verifier_key: str) -> PeerRecord:
        """A cell that may ask for bundles, by the verifier key of its record; again with another key it is replaced.

        Raises Invalid.
        """
        try:
            key = VerifierKey.parse(verifier_key)
        except NoteError as error:
            raise Invalid(f"the verifier key cannot be read: {error}; give it as name+key id+base64") from error
        if checked_name(peer, "cell") == self._cell:
            raise Invalid("a cell is not its own peer; name another cell")
        if key.name != key_name(peer):
            raise Invalid(f"the key is of {key.name!r}, not of {key_name(peer)!r}; give the key of that cell")
        with self._change() as change:
            row = change.session.get(PeerRow, peer)
            before = peer_record(row) if row else None
            if row is None:
                row = PeerRow(id=peer, verifier_key=str(key), **change.stamp)
                change.session.add(row)
            row.verifier_key, row.revoked_at, row.epoch = str(key), None, change.epoch
            record = peer_record(row)
            change.report("cell.registered", SYSTEM_TENANT, peer, before, record)
        return record

    def allow_cell(self, tenant: str, peer: str) -> TenantCellRecord:
        """The tenant is served in `peer` too: its configuration goes there. Raises NotFound, Invalid."""
        with self._change() as change:
            lookup.living_tenant(change.session, tenant)
            if (known := change.session.get(PeerRow, peer)) is None or known.revoked_at is not None:
                raise NotFound(f"there is no cell {peer!r}; register it first (domicile cell create)")
            row = change.session.get(TenantCellRow, (tenant, peer))
            before = tenant_cell_record(row) if row else None
            if row is None:
                row = TenantCellRow(tenant=tenant, peer=peer, **change.stamp)
                change.session.add(row)
            row.revoked_at, row.epoch = None, change.epoch
            record = tenant_cell_record(row)
            change.report("cell.allowed", tenant, peer, before, record)
        return record

    def forbid_cell(self, tenant: str, peer: str) -> TenantCellRecord:
        """Its keys stop working there with the next bundle. Raises NotFound."""
        with self._change() as change:
            row = change.session.get(TenantCellRow, (tenant, peer))
            if row is None:
                raise NotFound(f"tenant {tenant!r} was never allowed in cell {peer!r}; name a tenant that it may serve")
            before = tenant_cell_record(row)
            if row.revoked_at is not None:
                return before
            row.revoked_at, row.epoch = change.at, change.epoch
            record = tenant_cell_record(row)
            change.report("cell.forbidden", tenant, peer, before, record)
        return record

    def apply_bundle(self, bundle: Bundle) -> list[str]:
        """Take over the content of `bundle`, all of it or nothing; returns the tenants with a change.

        Its signature was checked (`gateway.records.bundle.open_bundle`). Raises Invalid for an older one than was
        applied, for a tenant that is at home here or elsewhere, and for a policy that cannot be in force here: then
        what was in force stays.
        """
        with self._change() as change:
            last = change.session.get(BundleRow, bundle.home)
            if last is not None and bundle.epoch < last.epoch:
                raise Invalid(
                    f"cell {bundle.home!r} has sent a newer bundle already: epoch {last.epoch}, not {bundle.epoch}"
                    "; wait for its next one"
                )
            if last is not None and last.sha256 == bundle.sha256:
                return []
            changed = _BundleImport(change, bundle.home).all_of(bundle)
            self._check_policies(change, bundle, changed)
            if last is None:
                last = BundleRow(home=bundle.home, epoch=0, sha256="", applied_at=change.at)
                change.session.add(last)
            last.epoch, last.sha256, last.applied_at = bundle.epoch, bundle.sha256, change.at
            change.session.flush()
            detail = {"bundle": bundle.sha256, "home_epoch": str(bundle.epoch)}
            for tenant in sorted(changed):
                record = tenant_record(lookup.tenant(change.session, tenant))
                change.report("bundle.applied", tenant, bundle.home, None, record, detail=detail)
        return sorted(changed)

    def _check_policies(self, change: Change, bundle: Bundle, changed: set[str]) -> None:
        """What is in force must compile here, under this cell's catalogue and its operator's policy (fail closed)."""
        operator = lookup.active_policy(change.session, lookup.OPERATOR, lookup.TENANT_SCOPE)
        own = {each.tenant: each.document for each in bundle.policies if each.project == lookup.TENANT_SCOPE}
        for each in bundle.policies:
            if each.tenant in changed and each.tenant in own:
                project = each.document if each.project != lookup.TENANT_SCOPE else None
                try:
                    self._check(each.tenant, own[each.tenant], project, operator.document if operator else None)
                except Exception as error:  # of any kind: a policy that does not compile must not become active
                    raise Invalid(
                        f"the policy of {each.tenant!r} cannot be in force here: {error}"
                        "; correct the policy in its home cell"
                    ) from error


class _BundleImport:
    """Brings rows in line with a bundle, and notes the tenants whose rows changed."""

    def __init__(self, change: Change, home: str) -> None:
        self._change = change
        self._session = change.session
        self._home = home
        self._changed: set[str] = set()

    def all_of(self, bundle: Bundle) -> set[str]:
        for tenant in bundle.tenants:
            self._tenant(tenant.id, tenant.model_dump())
        foreign = {tenant.id for tenant in bundle.tenants}
        for kind in (bundle.projects, bundle.keys, bundle.policies, bundle.limits):
            if strange := {each.tenant for each in kind} - foreign:
                raise Invalid(
                    f"the bundle has rows of tenant {min(strange)!r} without listing it; ask its cell for a new one"
                )
        for project in bundle.projects:
            fields = project.model_dump() | {"data_classes": list(project.data_classes)}
            self._put(ProjectRow, (project.tenant, project.id), project.tenant, fields)
        for key in bundle.keys:
            self._key(key.tenant, key.model_dump() | {"digest": bytes.fromhex(key.digest)})
        for policy in bundle.policies:
            self._policy(policy.tenant, policy.model_dump())
        for limits in bundle.limits:
            self._put(LimitSettingRow, (limits.tenant, limits.project, limits.key), limits.tenant, limits.model_dump())
        self._let_go(foreign)
        return self._changed

    def _tenant(self, tenant: str, fields: dict[str, Any]) -> None:
        checked_name(tenant, "tenant")
        home = self._session.get(TenantHomeRow, tenant)
        if home is None and self._session.get(TenantRow, tenant) is not None:
            raise Invalid(
                f"tenant {tenant!r} is at home here: cell {self._home!r} has nothing to say of it; remove it there"
            )
        if home is not None and home.home != self._home:
            raise Invalid(
                f"tenant {tenant!r} is at home in cell {home.home!r}, not in {self._home!r}"
                "; ask that cell for its bundle"
            )
        self._put(TenantRow, tenant, tenant, fields)
        if home is None:
            self._session.flush()
            self._session.add(TenantHomeRow(tenant=tenant, home=self._home))

    def _key(self, tenant: str, fields: dict[str, Any]) -> None:
        known = self._session.get(ApiKeyRow, fields["id"])
        if known is not None and known.tenant != tenant:
            raise Invalid(f"key {fields['id']!r} is another tenant's here; create a new key in its home cell")
        if known is not None and known.pepper > fields["pepper"]:  # rehashed here, by use
            fields = fields | {"digest": known.digest, "pepper": known.pepper}
        self._put(ApiKeyRow, fields["id"], tenant, fields)

    def _policy(self, tenant: str, fields: dict[str, Any]) -> None:
        active = lookup.active_policy(self._session, tenant, fields["project"])
        if active is not None and active.number != fields["number"]:
            active.active, active.epoch = False, self._change.epoch
            self._session.flush()  # before the next is active: there is one at most
        digest = sha256(fields["document"].encode()).hexdigest()
        place = tenant, fields["project"], fields["number"]
        self._put(PolicyVersionRow, place, tenant, fields | {"sha256": digest, "active": True})

    def _let_go(self, named: set[str]) -> None:
        """Who was taken over from there and is not named any more is not served here any more."""
        there = select(TenantHomeRow.tenant).where(TenantHomeRow.home == self._home)
        for tenant in set(self._session.exec(there)) - named:
            row = lookup.tenant(self._session, tenant)
            if row.revoked_at is None:
                row.revoked_at, row.epoch = self._change.at, self._change.epoch
                self._changed.add(tenant)

    def _put(self, kind: type[Row], place: Any, tenant: str, fields: dict[str, Any]) -> None:
        row: Any = self._session.get(kind, place)
        if row is None:
            self._session.add(kind(**fields, **self._change.stamp))
        elif any(getattr(row, name) != value for name, value in fields.items()):
            for name, value in fields.items():
                setattr(row, name, value)
            row.epoch = self._change.epoch
        else:
            return
        self._session.flush()
        self._changed.add(tenant)
