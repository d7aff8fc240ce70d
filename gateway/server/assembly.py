"""Puts a gateway together from its settings: opens what it needs, in order, and closes it in the reverse order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from audit.keys.signer import Signer
from audit.log.audit_log import AuditLog, AuditSettings
from audit.log.sequencer import Limits as AuditLimits
from audit.private.joint_store import open_sided
from audit.storage.identity import identity_of
from audit.storage.watched import Watches
from gateway.admin.app import PREFIX as ADMIN_PREFIX
from gateway.admin.app import build_admin
from gateway.admin.calls.access import Desk, OnRefused
from gateway.cells.serve import PREFIX as CELLS_PREFIX
from gateway.cells.serve import build_cells
from gateway.configuration.settings import Oidc, Settings
from gateway.configuration.sinks import sinks_of, spans_leave
from gateway.content.inspection import Inspection
from gateway.content.person_names import NameFinder
from gateway.database.database import Database
from gateway.database.errors import Invalid
from gateway.database.ownership import owner_of
from gateway.directory.directory import Address, Directory
from gateway.directory.inventory import Inventory
from gateway.directory.oversight import Stops
from gateway.errors import BackendUnavailable
from gateway.identity.machines import Machines
from gateway.installation.admin_record import recorded_from_threads
from gateway.installation.feasibility import Feasibility
from gateway.installation.installation import Installation
from gateway.installation.weaknesses import Weakness, observe, weaknesses
from gateway.limits.limiter import Limiter, LimitStore
from gateway.limits.memory import MemoryLimitStore
from gateway.limits.postgres import PostgresLimitStore
from gateway.policies.activation import activate_scheduled
from gateway.policies.study import PolicyRoom
from gateway.records.prices import configured
from gateway.request.authentication import Authenticator
from gateway.request.enforcement import Judge
from gateway.request.evaluation import Evaluation
from gateway.request.parking import Parking
from gateway.request.pipeline import Pipeline
from gateway.request.recorder import Recorder
from gateway.request.reservation import Meter
from gateway.request.routes import Routes
from gateway.request.telemetry import Telemetry, exporting_tracer
from gateway.server.app import GatewayApp, build_app
from gateway.server.database_watches import look_for_ever, untroubled, watches_of
from gateway.server.engine_lifecycle import EngineRest
from gateway.server.fleet import fleet_at_work
from gateway.server.health import Check, Health
from gateway.server.heap import keep_trimmed, malloc_trim
from gateway.server.ledger import Ledger, log_name
from gateway.server.maintenance import Chores
from gateway.server.probe import BackendProbe
from gateway.store.control.control import Control
from gateway.store.reports.usage_report import spent
from gateway.upstream.client import Upstream
from gateway.upstream.credentials import TenantCredentials, certificate_end
from gateway.version import build
from regions.errors import CatalogueError
from regions.fleet.demand import Book
from regions.fleet.fleet import Backend, Fleet
from regions.fleet.health import Prober

if TYPE_CHECKING:
    from gateway.identity.provider import IdentityProvider

RENEWAL_CHECK_S = 600


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway ready to be served."""

    app: GatewayApp
    directory: Directory
    log: AuditLog
    telemetry: Telemetry
    has_operator: Callable[[], bool]
    weaknesses: tuple[Weakness, ...]
    watches: Watches
    inspection: Inspection


@asynccontextmanager
async def open_gateway(settings: Settings) -> AsyncIterator[Gateway]:
    """Raises what keeps it from starting: InstallationError, DatabaseUnavailable, AuditUnavailable, RegionsError."""
    installation = Installation.open(settings.data, settings.secrets, settings.database)
    tracer = None
    if (spans := settings.telemetry).otlp_endpoint:
        tracer = exporting_tracer(spans.otlp_endpoint, spans.sample_ratio, settings.node, spans_leave(settings))
    telemetry = Telemetry(max_tenant_labels=settings.telemetry.max_tenant_labels, tracer=tracer)
    fleet = Fleet()
    inventory, policies = Inventory(fleet, installation.catalogue()), installation.policies()
    credentials = installation.credentials()
    book = Book()
    parking = Parking(inventory, fleet, book, settings.fleet.waiting_per_tenant)
    stops = Stops()
    routes = Routes(fleet, inventory, credentials, settings.requests.max_attempts, book)

    def changed(directory: Directory) -> None:
        inventory.replace(directory.backends(), directory.deployments())
        stops.replace(directory.stops())
        living = {backend.id for backend in fleet}
        credentials.forget(living)
        routes.forget()
        upstream.forget(living)
        parking.look()

    database = installation.database(pool_size=settings.database.pool_size)
    installation.check_of_one_time(database)
    keys, signer = installation.keys, installation.signer()
    provider = _provider(settings.oidc) if settings.oidc.issuer else None
    audit_settings = AuditSettings(limits=AuditLimits(reserve_bytes=settings.audit.reserve_bytes))
    watches = await asyncio.to_thread(watches_of, installation, database)
    try:
        async with (
            await AuditLog.open(
                installation.audit_log,
                signer=signer,
                node=settings.node,
                build=build(),
                settings=audit_settings,
                open_store=watches.guarding(open_sided(installation.side_store, keys, installation.record_url)),
            ) as log,
            NameFinder(settings.names) as names,
            Inspection(settings.inspection) as inspection,
            Upstream(
                settings.requests,
                lambda backend, peer: recorder.connected(backend, peer),
                installation.find_request_signer,
            ) as upstream,
            Directory(
                database,
                cell=installation.cell,
                hasher=installation.hasher(),
                compile_policy=policies.compile,
                on_change=changed,
                prices=configured({model: price.amounts for model, price in settings.prices.items()}),
            ) as directory,
            Ledger(
                database,
                log_name(owner_of(database) or identity_of(installation.owner)),
                installation.open_reader,
                lambda: directory.prices,
                days=settings.audit.ledger_days,
            ) as ledger,
            _machines(provider, settings.oidc) as machines,
            _limit_store(database, ledger, installation.urls.redis) as limit_store,
            Limiter(limit_store) as limiter,
            fleet_at_work(
                settings,
                installation,
                database,
                fleet,
                inventory,
                book,
                recorded_from_threads(log),
                EngineRest(upstream, routes),
            ),
        ):
            _tell_ends(telemetry, credentials, settings.listen.cert_file)
            recorder = Recorder(log, telemetry, settings.audit.address_days)
            authenticator = Authenticator(directory, telemetry, machines)
            judge = Judge(inventory, telemetry, stops=stops, sinks=sinks_of(settings))
            pipeline = Pipeline(
                authenticator=authenticator,
                meter=Meter(
                    limiter, lambda model: directory.prices.at(model, time()), settings.requests.default_max_tokens
                ),
                judge=judge,
                evaluation=Evaluation(authenticator, judge, routes, names, inspection, telemetry),
                inspection=inspection,
                routes=routes,
                parking=parking,
                recorder=recorder,
                upstream=upstream,
                telemetry=telemetry,
                settings=settings.requests,
            )

            is_ready = BackendProbe(upstream, routes, fleet)
            health = Health(
                {"audit": _durable(log), "directory": _fresh(directory), "databases": untroubled(watches)},
                lambda: _backend_checks(fleet, is_ready),
            )
            custody = installation.custody(log, keys, signer, settings.audit.backup_days)
            chores = Chores(custody, installation.audit_log.parent, settings.audit, installation.learn_successions)
            on_event = recorded_from_threads(log)

            def by_itself() -> Control:
                return installation.control(database, actor="system", on_event=on_event)

            def due() -> int:
                return len(by_itself().activate_due())

            background = [
                asyncio.create_task(look_for_ever(watches), name="database watches"),
                asyncio.create_task(Prober(fleet, is_ready).run(), name="prober"),
                asyncio.create_task(_renew(credentials), name="renewal"),
                asyncio.create_task(chores.run(), name="chores"),
                asyncio.create_task(activate_scheduled(due), name="scheduled policies"),
                asyncio.create_task(keep_trimmed(malloc_trim()), name="heap"),
            ]
            if settings.cells.pull:
                background.append(asyncio.create_task(_pull(settings, installation, signer, by_itself), name="bundles"))
            try:
                admin = build_admin(
                    Desk(
                        database,
                        cell=installation.cell,
                        hasher=installation.hasher,
                        check_policy=policies.check,
                        on_event=on_event,
                        provider=provider,
                        check_region=_region_of(installation),
                        check_deployment=Feasibility(installation, settings).check,
                        on_refused=_told_from_threads(recorder, telemetry),
                        policy_room=lambda store: PolicyRoom(
                            store, installation.catalogue(), installation.open_reader, sinks=sinks_of(settings)
                        ),
                        backend_keys=installation.backend_keys,
                    )
                )
                mounts = {ADMIN_PREFIX: admin, CELLS_PREFIX: build_cells(database, installation.cell, signer)}
                app = build_app(pipeline, inventory, health, settings.listen.operators, mounts)
                state = await asyncio.to_thread(observe, settings, installation, database)
                has_operator = installation.inventory(database).has_operator
                found = tuple(weaknesses(settings, state))
                yield Gateway(app, directory, log, telemetry, has_operator, found, watches, inspection)
            finally:
                for task in background:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
                await recorder.close()
    finally:
        watches.close()
        database.close()


def _provider(settings: Oidc) -> "IdentityProvider":
    from gateway.identity.provider import IdentityProvider  # with its HTTP client, only where there is a provider

    return IdentityProvider(settings)


@asynccontextmanager
async def _machines(provider: "IdentityProvider | None", settings: Oidc) -> AsyncIterator[Machines | None]:
    if provider is None or not settings.projects:
        yield None
        return
    async with Machines(provider, settings.projects, settings.groups_claim, skew_s=settings.clock_skew_s) as machines:
        yield machines


async def _pull(settings: Settings, installation: Installation, signer: Signer, control: Callable[[], Control]) -> None:
    from gateway.cells.puller import Puller  # with its HTTP client, only where another cell is asked

    await Puller(installation.cell, settings.cells.pull, signer, control, settings.cells.every_s).run()


def _region_of(installation: Installation) -> Callable[[str], None]:
    def check(region: str) -> None:
        try:
            installation.catalogue().region(region, datetime.now(UTC).date())
        except CatalogueError as error:
            raise Invalid(str(error)) from error

    return check


@asynccontextmanager
async def _limit_store(database: Database, ledger: Ledger, url: str | None) -> AsyncIterator[LimitStore]:
    """Where limits hold across gateways: in the Redis at `url`, else in the database if that is
    PostgreSQL. Else of this process alone, whose budgets go on from what the ledger says was spent."""
    store: LimitStore
    if url is not None:
        from gateway.limits.redis import RedisLimitStore  # of the extra domicile[redis]

        store = RedisLimitStore(url)
    elif database.is_shared:
        store = PostgresLimitStore(database)
    else:
        await ledger.catch_up()
        store = MemoryLimitStore(spent=await asyncio.to_thread(spent, database, datetime.now(UTC).date()))
    try:
        yield store
    finally:
        await store.close()


def _told_from_threads(recorder: Recorder, telemetry: Telemetry) -> OnRefused:
    """Counts callers of the admin API who could not be authenticated, from threads beside the running loop."""
    loop = asyncio.get_running_loop()

    def refused(reason: str, address: Address | None = None, /) -> None:
        telemetry.auth_failures.labels(reason).inc()
        loop.call_soon_threadsafe(recorder.auth_failed, reason, address)

    return refused


def _durable(log: AuditLog) -> Check:
    async def check() -> None:
        await log.probe()

    return check


def _fresh(directory: Directory) -> Check:
    async def check() -> None:
        directory.check_fresh()

    return check


def _backend_checks(fleet: Fleet, is_ready: Callable[[Backend], Awaitable[bool]]) -> Mapping[str, Check]:
    def check_of(backend: Backend) -> Check:
        async def check() -> None:
            if not await is_ready(backend):
                raise BackendUnavailable("its engine did not answer")

        return check

    return {backend.id: check_of(backend) for backend in fleet}


async def _renew(credentials: TenantCredentials) -> None:
    while True:
        await asyncio.sleep(RENEWAL_CHECK_S)
        await asyncio.to_thread(credentials.renew)


def _tell_ends(telemetry: Telemetry, credentials: TenantCredentials, served: Path | None) -> None:
    """When the certificates end that this gateway shows to backends and to clients (`served`), read at each scrape."""

    def seconds(end: datetime | None) -> float:
        return nan if end is None else end.timestamp()

    ends = telemetry.certificate_ends
    ends.labels("backends").set_function(lambda: seconds(credentials.first_end()))
    if served is not None:
        ends.labels("listener").set_function(lambda: seconds(certificate_end(served)))
