"""What an evidence pack needs from the gateway: parties, activities, policies, backends, operators, safeguards."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path

from audit.errors import AuditError
from audit.events.stamp import rfc3339
from audit.incidents.pack_inputs import (
    Activity,
    Backend,
    Evidence,
    Operator,
    Party,
    Policy,
    Safeguard,
    Store,
    Subprocessor,
)
from gateway.configuration.settings import Secrets, Settings
from gateway.configuration.sinks import RECORD, RECORD_SETTING, sinks_of
from gateway.database.errors import NotFound, StoreError
from gateway.evidence_pack.registers import NAME as REGISTERS
from gateway.evidence_pack.registers import Registers, TenantDetails
from gateway.evidence_pack.safeguards import Keys, certified_identity, measures
from gateway.installation.installation import Installation, InstallationError, configured, is_part_of_one
from gateway.policies.history import rulings, scope_of
from gateway.policies.terms import deciding, terms_of
from gateway.records.control import BackendRecord, PolicyVersionRecord, ProjectRecord
from gateway.store.reports.fleet_inventory import launched
from gateway.store.reports.inventory import Inventory
from policy.decision.residency import country_rule
from policy.facts import Sink
from policy.facts import Subprocessor as ListedSubprocessor
from policy.purpose import SPECIAL_CATEGORIES
from regions.catalogue.catalogue import Catalogue
from regions.catalogue.rows import UNREAD, Region, Row
from regions.catalogue.rows import Operator as ListedOperator
from regions.errors import CatalogueError


def gather(data: Path, tenant: str) -> Evidence:
    """From the control database, the catalogue and `registers.json`; empty where `data` holds no installation or does
    not know the tenant.

    Raises AuditError if they cannot be read.
    """
    if not is_part_of_one(data):
        return Evidence()
    try:
        installation = Installation.open(data)
    except InstallationError as error:
        raise AuditError(str(error)) from error
    registers = Registers.load(data)
    try:
        catalogue, database = installation.catalogue(), installation.database()
        try:
            return evidence(
                installation.inventory(database),
                catalogue,
                tenant,
                registers=registers,
                launched=launched(database, tenant),
                keys=_keys(installation.secrets),
                settings=configured(),
            )
        finally:
            database.close()
    except NotFound:
        return Evidence()
    except (StoreError, CatalogueError) as error:
        raise AuditError(
            f"the registers cannot be read: {error}; let this process read the control database"
        ) from error


def evidence(
    inventory: Inventory,
    catalogue: Catalogue,
    tenant: str,
    *,
    registers: Registers,
    launched: Mapping[str, str],
    keys: Keys,
    settings: Settings,
    today: date | None = None,
) -> Evidence:
    """`launched`: deployment by backend id. Raises StoreError for a tenant that does not exist."""
    _check_names(registers, inventory, tenant)
    day = today or datetime.now(UTC).date()
    registered = inventory.backends(tenant)
    above, own = inventory.policies(None), inventory.policies(tenant)
    made = rulings(above, own)
    eea = country_rule("EEA", catalogue.country_sets())
    inside = tuple(sorted(country for country in eea.full if eea.objection(country, day, ()) is None))
    stores = tuple(_stores(settings, inside))
    terms = terms_of(made, (*above, *own), catalogue.country_sets())
    told = registers.of(tenant)
    activities = tuple(_activities(inventory.projects(tenant), told, (*above, *own)))
    backends = tuple(_backends(registered, launched, catalogue, day))
    used = {backend.operator for backend in backends}
    operators = [one for one in catalogue.operators if one.id in used]
    return Evidence(
        as_of=day.isoformat(),
        eea=inside,
        catalogue_version=catalogue.version,
        controller=_controller(told.controller, inventory.tenant(tenant).display_name),
        processor=registers.processor,
        contract=told.contract,
        activities=activities,
        operators=tuple(_operator(one) for one in operators),
        subprocessors=tuple(_subprocessors(catalogue, operators)),
        safeguards=tuple(_safeguards(operators)),
        backends=backends,
        policies=tuple(_policy(one) for one in (*above, *own)),
        rulings=made,
        terms=terms,
        measures=measures(registered, launched, activities, {one.policy_hash: one for one in terms}, keys, stores),
        stores=stores,
        address_days=settings.audit.address_days,
    )


def _keys(secrets: Secrets) -> Keys:
    in_vault = secrets.provider == "vault"
    return Keys(secrets.provider, "vault" if in_vault and secrets.vault.signing_key is not None else "file")


def _stores(settings: Settings, eea: Collection[str]) -> Iterator[Store]:
    """The record is listed also where its country need not be said."""
    found = {one.name: one for one in sinks_of(settings)}
    found.setdefault(RECORD, Sink(name=RECORD, country=None, setting=RECORD_SETTING))
    for one in found.values():
        inside = None if one.country is None else one.country in eea
        yield Store(name=one.name, country=one.country or "", setting=one.setting, in_eea=inside)


def _check_names(registers: Registers, inventory: Inventory, tenant: str) -> None:
    """A misspelt name would leave its fields empty without a word. Raises AuditError."""
    for what, named, known in (
        ("tenant", set(registers.tenants), {one.id for one in inventory.tenants()}),
        ("project", set(registers.of(tenant).activities), {one.id for one in inventory.projects(tenant)}),
    ):
        if unknown := sorted(named - known):
            raise AuditError(
                f"{REGISTERS} names {what} {', '.join(unknown)}, which does not exist; "
                f"there are {', '.join(sorted(known)) or 'none'}"
            )


def _controller(told: Party, display_name: str) -> Party:
    return told if told.name else told.model_copy(update={"name": display_name})


def _activities(
    projects: list[ProjectRecord], told: TenantDetails, versions: tuple[PolicyVersionRecord, ...]
) -> Iterator[Activity]:
    decided = deciding(projects, versions)
    for project in projects:
        details = told.activities.get(project.id)
        yield Activity(
            id=project.id,
            purpose=project.purpose,
            legal_basis=project.legal_basis,
            data_classes=project.data_classes,
            special_categories=tuple(one for one in project.data_classes if one in SPECIAL_CATEGORIES),
            subject_categories=details.subject_categories if details else (),
            risk_class=project.risk_class,
            ai_system_id=project.ai_system_id or "",
            policy_hash=decided.get(project.id, ""),
            source=details.source if details else "",
        )


def _operator(one: ListedOperator) -> Operator:
    return Operator(
        id=one.id,
        entity=one.entity,
        head_office=one.head_office or "",
        ultimate_parent=one.ultimate_parent or "",
        parent_country=one.parent_country or "",
        lei=one.lei or "",
        source=one.source,
        **_validity(one),
    )


def _subprocessors(catalogue: Catalogue, operators: Iterable[ListedOperator]) -> Iterator[Subprocessor]:
    """Those of the operators' own rows and of every version of their registers, as `policy` judges them."""
    known, listed_elsewhere = set(), {register.id for register in catalogue.registers}
    for one in operators:
        for below in one.subprocessors:
            if below == UNREAD and one.id in listed_elsewhere:
                continue
            yield _subprocessor(one.id, below, _validity(one), source=one.source)
        known.add(one.id)
    for register in catalogue.registers:
        if register.id not in known:
            continue
        dates = {"announced": _day(register.announced), "objection_until": _day(register.objection_until)}
        for below in register.subprocessors:
            listed = _validity(register) | dates | {"register_version": register.version}
            yield _subprocessor(register.id, below, listed, source=register.source)


def _subprocessor(operator: str, one: ListedSubprocessor, dates: Mapping[str, str], *, source: str) -> Subprocessor:
    return Subprocessor(
        operator=operator, name=one.name, country=one.country or "", does=one.does or "", source=source, **dates
    )


def _safeguards(operators: Iterable[ListedOperator]) -> Iterator[Safeguard]:
    for one in operators:
        for attested in one.attested_transfer:
            yield Safeguard(
                operator=one.entity,
                country=attested.country,
                basis=attested.basis,
                reference=attested.reference,
                valid_from=_day(attested.valid_from),
                valid_to=_day(attested.valid_to),
            )


def _policy(one: PolicyVersionRecord) -> Policy:
    return Policy(
        scope=scope_of(one),
        number=one.number,
        sha256=one.sha256,
        text=one.document,
        activated_by=one.activated_by,
        activated_at=rfc3339(round(one.created_at.timestamp() * 1000)),
        active=one.active,
    )


def _backends(
    records: Iterable[BackendRecord], launched: Mapping[str, str], catalogue: Catalogue, today: date
) -> Iterator[Backend]:
    """Each in its place as the catalogue has it now, or had it when the backend was revoked."""
    for one in records:
        region = _region(catalogue, one.region, one.revoked_at.date() if one.revoked_at else today)
        yield Backend(
            id=one.id,
            region=one.region,
            region_name=region.name if region else "",
            compute_country=(region.compute_country or "") if region else "",
            storage_country=(region.storage_country or "") if region else "",
            operator=region.operator if region else "",
            models=one.models,
            kind=one.kind,
            single_tenant=one.single_tenant or "",
            identity=certified_identity(one),
            launched_by=launched.get(one.id, ""),
            registered_at=_moment(one.created_at),
            revoked_at=_moment(one.revoked_at) if one.revoked_at else "",
        )


def _region(catalogue: Catalogue, region: str, day: date) -> Region | None:
    """As the catalogue has it on that day; None where it does not know the place."""
    try:
        return catalogue.region(region, day)
    except CatalogueError:
        return None


def _validity(row: Row) -> dict[str, str]:
    return {"valid_from": _day(row.valid_from), "valid_to": _day(row.valid_to)}


def _day(day: date | None) -> str:
    return day.isoformat() if day else ""


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
