"""What an evidence pack needs from the gateway's registers: activities, policies, backends and who controls them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from audit.errors import AuditError
from audit.evidence import Activity, Backend, Evidence, Operator, Party, Policy, Subprocessor
from audit.stamp import rfc3339
from gateway.installation import Installation, InstallationError
from gateway.policy_history import rulings, scope_of
from gateway.store.errors import NotFound, StoreError
from gateway.store.inventory import Inventory
from regions.catalogue import Catalogue, Region
from regions.errors import CatalogueError

MEASURES = (
    "mutual TLS to backends whose certificate names tenant, region and backend",
    "one backend process per tenant; its cache is wiped on release",
    "redaction of prompts and answers by policy before they leave the gateway",
    "private values encrypted under keys per person and tenant; erasure destroys the keys",
    "tamper-evident record, written before any data is sent",
)


def gather(data: Path, tenant: str) -> Evidence:
    """From the control database and the catalogue; empty where `data` holds no installation or knows no such tenant.

    Raises AuditError if they cannot be read.
    """
    try:
        installation = Installation.open(data)
    except InstallationError:
        return Evidence()
    try:
        catalogue, database = installation.catalogue(), installation.database()
        try:
            return evidence(installation.inventory(database), catalogue, tenant)
        finally:
            database.close()
    except NotFound:
        return Evidence()
    except (StoreError, CatalogueError) as error:
        raise AuditError(f"the registers cannot be read: {error}") from error


def evidence(inventory: Inventory, catalogue: Catalogue, tenant: str) -> Evidence:
    """Raises StoreError for a tenant that is not there."""
    backends = tuple(_backends(inventory, catalogue, tenant))
    used = {backend.operator for backend in backends}
    above, own = inventory.policies(None), inventory.policies(tenant)
    operators = [one for one in catalogue.operators if one.id in used]
    return Evidence(
        catalogue_version=catalogue.version,
        controller=Party(name=inventory.tenant(tenant).display_name),
        activities=tuple(
            Activity(
                id=project.id,
                purpose=project.purpose,
                legal_basis=project.legal_basis,
                data_classes=project.data_classes,
                risk_class=project.risk_class,
                ai_system_id=project.ai_system_id or "",
            )
            for project in inventory.projects(tenant)
        ),
        operators=tuple(
            Operator(
                id=one.id,
                entity=one.entity,
                head_office=one.head_office,
                ultimate_parent=one.ultimate_parent,
                parent_country=one.parent_country,
                valid_from=one.valid_from.isoformat(),
                valid_to=one.valid_to.isoformat() if one.valid_to else "",
                source=one.source,
            )
            for one in operators
        ),
        subprocessors=tuple(
            Subprocessor(
                operator=one.id,
                name=below.name,
                country=below.country or "",
                valid_from=one.valid_from.isoformat(),
                valid_to=one.valid_to.isoformat() if one.valid_to else "",
            )
            for one in operators
            for below in one.subprocessors
        ),
        backends=backends,
        policies=tuple(
            Policy(
                scope=scope_of(one),
                number=one.number,
                sha256=one.sha256,
                text=one.document,
                activated_by=one.activated_by,
                activated_at=rfc3339(round(one.created_at.timestamp() * 1000)),
                active=one.active,
            )
            for one in (*above, *own)
        ),
        rulings=rulings(above, own),
        measures=MEASURES,
    )


def _backends(inventory: Inventory, catalogue: Catalogue, tenant: str) -> Iterator[Backend]:
    for one in inventory.backends(tenant):
        region = _region(catalogue, one.region, one.created_at)
        yield Backend(
            id=one.id,
            region=one.region,
            region_name=region.name if region else "",
            compute_country=region.compute_country if region else "",
            storage_country=region.storage_country if region else "",
            operator=region.operator if region else "",
            models=one.models,
            identity=one.uri,
            registered_at=_moment(one.created_at),
            revoked_at=_moment(one.revoked_at) if one.revoked_at else "",
        )


def _region(catalogue: Catalogue, region: str, at: datetime) -> Region | None:
    """As the catalogue had it when the backend was registered; a place that it no longer knows stays empty."""
    try:
        return catalogue.region(region, at.date())
    except CatalogueError:
        return None


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
