"""What is read of other cells: records of peers and allowances, and the bundle that a peer is to get."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict
from sqlmodel import Session, col, select

from gateway.database.database import Database
from gateway.database.epoch import read_epoch
from gateway.database.errors import NotFound
from gateway.database.tables.cells import BundleRow, PeerRow, TenantCellRow, TenantHomeRow
from gateway.database.tables.control import ApiKeyRow, PolicyVersionRow, ProjectRow, TenantRow
from gateway.database.tables.usage import LimitSettingRow
from gateway.records.bundle import Bundle, BundledKey, BundledLimits, BundledPolicy, BundledProject, BundledTenant
from gateway.records.control import Record


class PeerRecord(Record):
    """Another cell. `verifier_key`: of its record."""

    id: str
    verifier_key: str
    created_at: datetime
    revoked_at: datetime | None


class TenantCellRecord(Record):
    """That `tenant` is served in cell `peer` too."""

    tenant: str
    peer: str
    created_at: datetime
    revoked_at: datetime | None


class AppliedBundleRecord(BaseModel):
    """What was last taken over from cell `home`: its epoch, and when. `tenants`: whose."""

    model_config = ConfigDict(frozen=True)

    home: str
    epoch: int
    sha256: str
    applied_at: datetime
    tenants: tuple[str, ...]


def peer_record(row: PeerRow) -> PeerRecord:
    return PeerRecord.model_validate(row.model_dump(include=set(PeerRecord.model_fields)))


def tenant_cell_record(row: TenantCellRow) -> TenantCellRecord:
    return TenantCellRecord.model_validate(row.model_dump(include=set(TenantCellRecord.model_fields)))


def peers(database: Database) -> list[PeerRecord]:
    with database.read() as session:
        return [peer_record(row) for row in session.exec(select(PeerRow).order_by(PeerRow.id))]


def peer(database: Database, name: str) -> PeerRecord:
    """Raises NotFound, also where it was revoked."""
    with database.read() as session:
        row = session.get(PeerRow, name)
        if row is None or row.revoked_at is not None:
            raise NotFound(f"there is no cell {name!r}; `domicile cell list` shows those there are")
        return peer_record(row)


def allowances(database: Database) -> list[TenantCellRecord]:
    with database.read() as session:
        found = session.exec(select(TenantCellRow).order_by(TenantCellRow.tenant, TenantCellRow.peer))
        return [tenant_cell_record(row) for row in found]


def applied_bundles(database: Database) -> list[AppliedBundleRecord]:
    with database.read() as session:
        homes: dict[str, list[str]] = {}
        for row in session.exec(select(TenantHomeRow).order_by(TenantHomeRow.tenant)):
            homes.setdefault(row.home, []).append(row.tenant)
        return [
            AppliedBundleRecord(**row.model_dump(), tenants=tuple(homes.get(row.home, ())))
            for row in session.exec(select(BundleRow).order_by(BundleRow.home))
        ]


def bundle_for(database: Database, cell: str, name: str) -> Bundle:
    """What cell `name` is to know, as of now. Tenants that are no longer allowed there are left out."""
    with database.read() as session:
        epoch = read_epoch(session, cell)
        allowed = select(TenantCellRow.tenant).where(
            TenantCellRow.peer == name, col(TenantCellRow.revoked_at).is_(None), TenantCellRow.cell == cell
        )
        return _read(session, cell, name, epoch, sorted(session.exec(allowed)))


def _read(session: Session, cell: str, name: str, epoch: int, tenants: list[str]) -> Bundle:
    active = col(PolicyVersionRow.active).is_(True)
    return Bundle(
        home=cell,
        peer=name,
        epoch=epoch,
        tenants=tuple(
            BundledTenant.model_validate(row.model_dump(include=set(BundledTenant.model_fields)))
            for row in session.exec(select(TenantRow).where(col(TenantRow.id).in_(tenants)).order_by(TenantRow.id))
        ),
        projects=tuple(
            BundledProject.model_validate(row.model_dump(include=set(BundledProject.model_fields)))
            for row in session.exec(
                select(ProjectRow).where(col(ProjectRow.tenant).in_(tenants)).order_by(ProjectRow.tenant, ProjectRow.id)
            )
        ),
        keys=tuple(
            BundledKey.model_validate(
                row.model_dump(include=set(BundledKey.model_fields)) | {"digest": row.digest.hex()}
            )
            for row in session.exec(select(ApiKeyRow).where(col(ApiKeyRow.tenant).in_(tenants)).order_by(ApiKeyRow.id))
        ),
        policies=tuple(
            BundledPolicy.model_validate(row.model_dump(include=set(BundledPolicy.model_fields)))
            for row in session.exec(
                select(PolicyVersionRow)
                .where(col(PolicyVersionRow.tenant).in_(tenants), active)
                .order_by(PolicyVersionRow.tenant, PolicyVersionRow.project)
            )
        ),
        limits=tuple(
            BundledLimits.model_validate(row.model_dump(include=set(BundledLimits.model_fields)))
            for row in session.exec(
                select(LimitSettingRow)
                .where(col(LimitSettingRow.tenant).in_(tenants))
                .order_by(LimitSettingRow.tenant, LimitSettingRow.project, LimitSettingRow.key)
            )
        ),
    )
