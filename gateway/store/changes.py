"""What changed since an epoch: the directory's way to read the store.

Rows are never deleted, so every change is a row with a later epoch. Keys and projects are read as plain columns: at the
start of a large cell there are a hundred thousand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy
from sqlmodel import Session, col, select

from gateway.database.epoch import read_epoch
from gateway.database.tables.control import ApiKeyRow, BackendRow, PolicyVersionRow, ProjectRow, TenantRow
from gateway.database.tables.fleet import DeploymentRow
from gateway.database.tables.usage import LimitSettingRow, PriceRow
from gateway.limits.limiter import Limits
from gateway.records.control import UNBOUNDED, BackendRecord, ProjectRecord, Scopes
from gateway.records.fleet import deployment_of
from gateway.records.prices import Price
from gateway.records.usage import limits_of, price_of
from gateway.store.adapters import AdaptersByProject, read_adapters
from gateway.store.lookup import backend_record
from gateway.store.model_names import NamesByProject, read_model_names
from gateway.store.oversight import Place, StopRecord, read_stops
from regions.fleet.deployment import Deployment


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """What a gateway needs to know of a key. `digest`: its hash, 32 bytes, keyed by generation `pepper`."""

    digest: bytes
    pepper: int
    tenant: str
    project: str
    scopes: Scopes
    expires_at: datetime | None
    revoked: bool


@dataclass(frozen=True, slots=True)
class PolicyText:
    sha256: str
    document: str


@dataclass(frozen=True, slots=True)
class Changes:
    """`tenants`: revoked or not. Projects and policies by (tenant, project), '' for a tenant's own policy; limits by
    (tenant, project, key), prices by (model, number); deployments by (tenant, name), None for one that was deleted."""

    epoch: int
    tenants: Mapping[str, bool]
    projects: Mapping[tuple[str, str], ProjectRecord]
    keys: Mapping[str, KeyEntry]
    policies: Mapping[tuple[str, str], PolicyText]
    backends: Mapping[str, BackendRecord]
    limits: Mapping[tuple[str, str, str], Limits]
    prices: Mapping[tuple[str, int], Price]
    stops: Mapping[Place, StopRecord]
    deployments: Mapping[tuple[str, str], Deployment | None]
    model_names: NamesByProject
    adapters: AdaptersByProject


def read_changes(session: Session, cell: str, since: int) -> Changes:
    """Everything of `cell` that changed after epoch `since`; from 0, everything there is.

    The epoch is read first: a change that lands in between is then read now and again next time, never missed.
    """
    epoch = read_epoch(session, cell)
    tenants = session.exec(
        select(TenantRow.id, TenantRow.revoked_at).where(TenantRow.cell == cell, TenantRow.epoch > since)
    )
    backends = session.exec(select(BackendRow).where(BackendRow.cell == cell, BackendRow.epoch > since))
    policies = session.exec(
        select(
            PolicyVersionRow.tenant, PolicyVersionRow.project, PolicyVersionRow.sha256, PolicyVersionRow.document
        ).where(PolicyVersionRow.cell == cell, PolicyVersionRow.epoch > since, col(PolicyVersionRow.active).is_(True))
    )
    limits = session.exec(select(LimitSettingRow).where(LimitSettingRow.cell == cell, LimitSettingRow.epoch > since))
    deployments = session.exec(select(DeploymentRow).where(DeploymentRow.cell == cell, DeploymentRow.epoch > since))
    prices = session.exec(select(PriceRow).where(PriceRow.cell == cell, PriceRow.epoch > since))
    return Changes(
        epoch=epoch,
        tenants={tenant: revoked_at is not None for tenant, revoked_at in tenants},
        projects=_projects(session, cell, since),
        keys=_keys(session, cell, since),
        policies={(tenant, scope): PolicyText(digest, document) for tenant, scope, digest, document in policies},
        backends={row.id: backend_record(row) for row in backends},
        limits={(row.tenant, row.project, row.key): limits_of(row) for row in limits},
        prices={(row.model, row.number): price_of(row) for row in prices},
        stops=read_stops(session, cell, since),
        deployments={
            (row.tenant, row.id): deployment_of(row) if row.deleted_at is None else None for row in deployments
        },
        model_names=read_model_names(session, cell, since),
        adapters=read_adapters(session, cell, since),
    )


def _projects(session: Session, cell: str, since: int) -> dict[tuple[str, str], ProjectRecord]:
    project: Any = ProjectRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
    columns = [project.c[name] for name in ProjectRecord.model_fields]
    rows = session.connection().execute(
        sqlalchemy.select(*columns).where(project.c.cell == cell, project.c.epoch > since)
    )
    return {(row["tenant"], row["id"]): ProjectRecord.model_validate(dict(row)) for row in rows.mappings()}


def _keys(session: Session, cell: str, since: int) -> dict[str, KeyEntry]:
    key: Any = ApiKeyRow.__table__.c  # type: ignore[attr-defined]
    scopes_json = sqlalchemy.cast(key.scopes, sqlalchemy.Text)  # most keys share a few: each text is parsed once
    columns = (key.id, key.digest, key.pepper, key.tenant, key.project, scopes_json, key.expires_at, key.revoked_at)
    rows = session.connection().execute(sqlalchemy.select(*columns).where(key.cell == cell, key.epoch > since))
    scopes = {"{}": UNBOUNDED}

    def parsed(text: str) -> Scopes:
        if text not in scopes:
            scopes[text] = Scopes.model_validate_json(text)
        return scopes[text]

    return {
        key_id: KeyEntry(
            digest,
            pepper,
            tenant,
            project,
            parsed(text),
            expires_at,
            revoked_at is not None,
        )
        for key_id, digest, pepper, tenant, project, text, expires_at, revoked_at in rows
    }
