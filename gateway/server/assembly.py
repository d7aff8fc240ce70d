"""Puts a gateway together from its settings: opens what it needs, in order, and closes it in the reverse order.

It opens in stages, each on top of those before it: `_Base`, `_Parts`, the background tasks, the application. Each stage
registers its closing on the stack of `open_gateway`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from math import nan
from pathlib import Path
from secrets import token_hex
from time import time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from starlette.routing import Route
from starlette.types import ASGIApp

from audit.errors import AuditUnavailable
from audit.files.secret_file import LoosePermissions, read_secret
from audit.incidents.known_cases import known_incidents, known_requests
from audit.incidents.pack_inputs import evidence_of
from audit.keys.owner_keys import KeyRing
from audit.keys.signer import Signer
from audit.log.audit_log import AuditLog, AuditSettings
from audit.log.sequencer import QueueLimits
from audit.pack.shelf import PackShelf
from audit.privacy.kept_content import reader_of
from audit.private.audit_context import AuditContext
from audit.private.log_and_value_store import open_log_and_values
from audit.storage.attested_files import files_beside
from audit.storage.installation_identity import identity_of
from audit.storage.watched import Watches
from audit.witness.anchor_attestations import attestations
from backend.wire import CHALLENGE_PATH, MARKS_PATH
from gateway.admin.app import PREFIX as ADMIN_PREFIX
from gateway.admin.app import build_admin
from gateway.admin.calls.access import AdminContext, OnRefused
from gateway.batches.assembly import OpenBatches, open_batches
from gateway.cells.app import PREFIX as CELLS_PREFIX
from gateway.cells.app import build_cells
from gateway.comparisons.recomputation import CHALLENGE_TIMEOUT_S, Recomputation
from gateway.comparisons.recomputation import Fleet as ChallengeFleet
from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import Oidc, Settings
from gateway.configuration.sinks import sinks_of, spans_leave
from gateway.console.app import PREFIX as CONSOLE_PREFIX
from gateway.console.app import build_console
from gateway.console.preparation import Preparation
from gateway.content.inspection import Inspection
from gateway.content.person_names import NameFinder
from gateway.database.database import Database
from gateway.database.errors import Invalid
from gateway.database.leases import Lease
from gateway.database.ownership import owner_of
from gateway.directory.attestor import Attestor
from gateway.directory.backend_keys import BackendKeys
from gateway.directory.backend_registry import BackendRegistry
from gateway.directory.catalogue_follower import CatalogueFollower
from gateway.directory.directory import Address, Directory
from gateway.directory.oversight import Stops
from gateway.directory.references import references_of
from gateway.directory.shown import Shown
from gateway.directory.web_origins import WebOrigins
from gateway.errors import BackendUnavailable
from gateway.identity.grants import grants_of, subject_digest
from gateway.identity.machines import Machines
from gateway.installation.admin_record import recorded_from_threads
from gateway.installation.doctor import ConfigurationWarning, configuration_warnings, observe
from gateway.installation.feasibility import Feasibility
from gateway.installation.installation import Installation, InstallationError
from gateway.limits.limiter import Limiter, LimitStore
from gateway.limits.memory_store import MemoryLimitStore
from gateway.limits.postgres_store import PostgresLimitStore
from gateway.marks.answer_search import AnswerFinder
from gateway.marks.asking import Detection
from gateway.offers.model_cards import Cards
from gateway.offers.offer import Offers
from gateway.offers.routes import ModelRoutes
from gateway.openai.asgi_client import caller_address
from gateway.policies.activation import activate_scheduled
from gateway.policies.compiled import PolicyCompiler
from gateway.policies.study import PolicyStudy
from gateway.records.control import AdminEvent
from gateway.records.prices import Price, configured
from gateway.records.provisioning import Mapped, UserFields
from gateway.request.answer.delivery import Delivery
from gateway.request.answer.manifests import AnswerManifests
from gateway.request.answer.marking import Marker
from gateway.request.answer.tenant_keys import TenantKeys
from gateway.request.authentication import Authenticator
from gateway.request.enforcement import PolicyEnforcement
from gateway.request.evaluation import Evaluation
from gateway.request.outcome import CallOutcome
from gateway.request.parking import Parking
from gateway.request.pipeline import Pipeline
from gateway.request.recorder import Recorder
from gateway.request.reservation import CallLimiter
from gateway.request.routes import Routes
from gateway.request.telemetry import Telemetry, exporting_tracer
from gateway.responses.assembly import OpenResponses, open_responses
from gateway.responses.background import WaitingResponses
from gateway.responses.responses import Responses
from gateway.responses.routes import ResponseRoutes
from gateway.scim.app import PREFIX as SCIM_PREFIX
from gateway.scim.app import build_scim
from gateway.server.app import ROUTES, Exposition, build_app
from gateway.server.database_watches import databases_healthy, watch_databases, watches_of
from gateway.server.engine_lifecycle import EngineLifecycle
from gateway.server.fleet import running_fleet
from gateway.server.health import Check, Health
from gateway.server.heap import keep_trimmed, malloc_trim
from gateway.server.ledger import Ledger, log_name
from gateway.server.logs.access_log import log_access
from gateway.server.maintenance import Maintenance
from gateway.server.monitoring.backend_curves import BackendCurves
from gateway.server.monitoring.backend_metrics import BackendMetrics
from gateway.server.monitoring.budgets import Budgets
from gateway.server.monitoring.cell_metrics import CellMetrics
from gateway.server.monitoring.open_deadlines import OpenDeadlines
from gateway.server.place_follower import PlaceFollower
from gateway.server.probe import BackendProbe
from gateway.server.proxies.forwarded import TrustedProxies
from gateway.server.reload import LiveSettings
from gateway.store.change import OnEvent
from gateway.store.control.control import Control
from gateway.store.control.provisioning import Provisioning
from gateway.store.log_followers.case_places import CasePlaces
from gateway.store.log_followers.change_places import ChangePlaces
from gateway.store.log_followers.webhooks import WebhookMessages
from gateway.store.marks import AnswerSalts, MarkKeys
from gateway.store.reports.inventory import Inventory
from gateway.store.reports.usage_report import spent
from gateway.store.text_tests import TextTests
from gateway.upstream.adapters import BackendAdapters
from gateway.upstream.client import Connected, Upstream
from gateway.upstream.credentials import TenantCredentials, certificate_end
from gateway.upstream.http1 import Peer
from gateway.version import build
from gateway.webhooks.signature import SecretError
from gateway.webhooks.worker import LEASE as WEBHOOKS_LEASE
from gateway.webhooks.worker import LEASE_S, Receiver, Webhooks
from gateway.workers.membership import Membership
from policy.facts import BackendFacts
from regions.catalogue.catalogue import Catalogue
from regions.errors import CatalogueError
from regions.fleet.demand import DemandTracker
from regions.fleet.fleet import Backend, Fleet
from regions.fleet.health import Prober

if TYPE_CHECKING:
    from gateway.identity.provider import IdentityProvider
    from gateway.identity.workloads import Workloads

RENEWAL_CHECK_S = 600


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway ready to be served."""

    app: ASGIApp
    directory: Directory
    log: AuditLog
    telemetry: Telemetry
    has_operator: Callable[[], bool]
    configuration_warnings: tuple[ConfigurationWarning, ...]
    watches: Watches
    inspection: Inspection
    health: Health
    bounds: Bounds
    settings: LiveSettings
    batches: OpenBatches
    responses: OpenResponses


@asynccontextmanager
async def open_gateway(settings: Settings, member: Membership | None = None) -> AsyncIterator[Gateway]:
    """`member`: where this is one of several workers. Raises what keeps it from starting: InstallationError,
    DatabaseUnavailable, AuditUnavailable, RegionsError."""
    async with AsyncExitStack() as stack:
        base = await _open_base(stack, settings)
        parts = await _open_parts(stack, base, member)
        installation, memory = base.installation, base.memory
        _export_certificate_ends(base.telemetry, memory.credentials, settings.listen.cert_file)
        on_event = _counting(recorded_from_threads(parts.log), base.telemetry)
        context = installation.context(parts.log, base.keys, base.signer, settings.audit.backup_days)
        enforcement = PolicyEnforcement(memory.registry, base.telemetry, stops=memory.stops, sinks=sinks_of(settings))
        responses = open_responses(
            settings, installation, base.database, parts.directory, context, enforcement, memory.bounds
        )
        pipeline = _pipeline(base, parts, enforcement, responses.responses)
        is_ready = BackendProbe(parts.upstream, memory.routes, memory.fleet, memory.cards, memory.show, parts.attestor)
        health = _health(base, parts, is_ready)
        batches = _batches(base, parts, context, pipeline, responses.responses)
        responses.wakes.append(batches.worker.wake)
        places, changes = CasePlaces(base.database, _log_name(base)), ChangePlaces(base.database, _log_name(base))
        packs = _packs(base, context)
        admin_context = _admin_context(base, parts, on_event, context, packs, places, changes)
        admin = build_admin(admin_context)
        recurring = (
            batches.worker.run, batches.retention.run, responses.retention.run, _webhooks(base, parts).run,
            *_followed(base, places, changes), BackendCurves(base.database, memory.fleet).run, Preparation(admin).run,
            memory.follow_catalogue,
        )  # fmt: skip
        _start_background(stack, base, parts, Prober(memory.fleet, is_ready), on_event, context, recurring)
        stack.push_async_callback(packs.close)
        mounts = _mounts(base, admin_context, admin) | {
            CONSOLE_PREFIX: build_console(admin_context, admin, lambda: app)
        }
        operations = _Operations(settings.listen.operators)
        exposition = _own(base.telemetry) if member is None else member.metrics
        response_routes = ResponseRoutes(pipeline.authenticator, responses.responses).routes()
        app: ASGIApp = build_app(
            pipeline,
            memory.registry,
            health,
            lambda: operations.allowed_from,
            exposition,
            _cell_metrics(base, parts, places, admin_context),
            mounts,
            [*_model_routes(pipeline, memory), *batches.routes, *response_routes],
            memory.origins,
        )
        if settings.listen.trusted_proxies:
            app = TrustedProxies(app, settings.listen.trusted_proxies, settings.listen.proxy_header)
        yield await _gateway(app, base, parts, health, operations, batches, responses)


def _followed(
    base: "_Base", places: CasePlaces, changes: ChangePlaces
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    open_reader = base.installation.open_reader
    return [
        PlaceFollower(places, open_reader, "incidents and requests").run,
        PlaceFollower(changes, open_reader, "changes").run,
    ]


def _warnings(settings: Settings, installation: Installation, database: Database) -> tuple[ConfigurationWarning, ...]:
    return tuple(configuration_warnings(settings, observe(settings, installation, database)))


@dataclass(slots=True)
class _Operations:
    """From where metrics and the details of readiness may be read now."""

    allowed_from: Sequence[IPv4Network | IPv6Network]


def _own(telemetry: Telemetry) -> Exposition:
    async def exposition() -> bytes:
        return telemetry.exposition()

    return exposition


def _prices_of(settings: Settings) -> list[Price]:
    prices = settings.prices
    discounts = {model: price.batch_discount for model, price in prices.items()}
    return configured({model: price.amounts for model, price in prices.items()}, discounts)


def _live_settings(settings: Settings, bounds: Bounds, directory: Directory, operations: _Operations) -> LiveSettings:
    """The settings that a reload can change, each with what puts it in force."""

    def allow_operators(new: Settings) -> None:
        operations.allowed_from = new.listen.operators

    def bound_requests(new: Settings) -> None:
        bounds.now = new.requests

    return LiveSettings(
        settings,
        {
            "requests": bound_requests,
            "prices": lambda new: directory.set_prices(_prices_of(new)),
            "listen.operations_from": allow_operators,
        },
    )


MARKS_TIMEOUT_S = 60.0
MIN_SCIM_TOKEN = 32


@dataclass(frozen=True, slots=True)
class _Memory:
    """What a gateway holds in memory to decide and route by; the directory renews it."""

    fleet: Fleet
    catalogue: CatalogueFollower
    registry: BackendRegistry
    policies: PolicyCompiler
    credentials: TenantCredentials
    tracker: DemandTracker
    parking: Parking
    stops: Stops
    routes: Routes
    bounds: Bounds
    origins: WebOrigins
    cards: Cards

    @classmethod
    def empty(cls, settings: Settings, installation: Installation) -> Self:
        """As it is before the directory is read. Raises InstallationError, RegionsError."""
        fleet = Fleet()
        catalogue, policies = CatalogueFollower(installation.own_catalogue), installation.policies()
        registry = BackendRegistry(fleet, catalogue.catalogue)
        credentials = installation.credentials()
        tracker, bounds = DemandTracker(), Bounds(settings.requests)
        return cls(
            fleet=fleet,
            catalogue=catalogue,
            registry=registry,
            policies=policies,
            credentials=credentials,
            tracker=tracker,
            parking=Parking(registry, fleet, tracker, settings.fleet.waiting_per_tenant),
            stops=Stops(),
            routes=Routes(fleet, registry, credentials, bounds, tracker, settings.batches.beside_interactive),
            bounds=bounds,
            origins=WebOrigins(),
            cards=Cards(),
        )

    def show(self, backend: Backend, shown: Shown | None) -> None:
        """Takes what a backend shows of itself; calls may wait for it."""
        if self.registry.show(backend, shown):
            self.parking.look()

    async def follow_catalogue(self) -> None:
        """Run until cancelled."""

        def take_over(changed: Catalogue) -> None:
            self.registry.use(changed)
            self.parking.look()

        await self.catalogue.run(take_over)

    def renew(self, directory: Directory, upstream: Upstream) -> None:
        """Takes over what `directory` has read, and lets go of what was held for backends that are gone."""
        self.registry.replace(directory.backends(), directory.deployments(), directory.adapters())
        self.stops.replace(directory.stops())
        self.origins.known = directory.origins()
        living = {backend.id for backend in self.fleet}
        self.credentials.forget(living)
        self.routes.forget()
        self.cards.forget(living)
        upstream.forget(living)
        self.parking.look()


@dataclass(frozen=True, slots=True)
class _Base:
    """The first stage: the installation, its keys and its control database, with the watches on its databases."""

    settings: Settings
    installation: Installation
    telemetry: Telemetry
    memory: _Memory
    database: Database
    keys: KeyRing
    signer: Signer
    provider: "IdentityProvider | None"
    workloads: "Workloads | None"
    watches: Watches


async def _open_base(stack: AsyncExitStack, settings: Settings) -> _Base:
    """Closes database and watches by `stack`. Raises InstallationError, DatabaseUnavailable, StoreError, SignerError,
    KeyProviderError, RegionsError."""
    installation = Installation.open(settings.data, settings.secrets, settings.database)
    telemetry = _telemetry(settings)
    memory = _Memory.empty(settings, installation)
    database = installation.database(pool_size=settings.database.pool_size)
    stack.callback(database.close)
    installation.check_of_one_time(database)
    keys, signer = installation.keys, installation.signer()
    provider = _provider(settings.oidc) if settings.oidc.issuer else None
    workloads = _workloads(settings) if settings.workloads else None
    watches = await asyncio.to_thread(watches_of, installation, database)
    stack.callback(watches.close)
    return _Base(settings, installation, telemetry, memory, database, keys, signer, provider, workloads, watches)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The second stage: what runs while the gateway is open, on top of its `_Base`."""

    log: AuditLog
    recorder: Recorder
    names: NameFinder
    inspection: Inspection
    upstream: Upstream
    attestor: Attestor
    directory: Directory
    machines: Machines | None
    limiter: Limiter


async def _open_parts(stack: AsyncExitStack, base: _Base, member: Membership | None) -> _Parts:
    """Each is closed by `stack`, but for the recorder, which is closed with what runs in the background. Raises
    AuditUnavailable, DatabaseUnavailable, RegionsError."""
    settings, installation, database, memory = base.settings, base.installation, base.database, base.memory
    enter = stack.enter_async_context
    log = await enter(await _open_log(base, settings.node))
    if member is not None:
        for name in await asyncio.to_thread(member.left_behind, installation.audit_log.parent):
            await _close_open_calls(base, name)
    await asyncio.to_thread(installation.require_whole)  # lists what a first start has made
    recorder = Recorder(log, base.telemetry, settings.audit.address_days)
    names = await enter(NameFinder(settings.names))
    inspection = await enter(Inspection(settings.inspection))
    keys = BackendKeys(database, recorder.key_changed)
    attestors: list[Attestor] = []
    connected = _connected(recorder, keys, attestors)
    upstream = await enter(Upstream(memory.bounds, connected, installation.find_request_signer))
    accepted = settings.attestation
    attestor = Attestor(upstream, lambda: references_of(accepted), recorder.attested, accepted.every_s)
    attestors.append(attestor)
    directory = await enter(
        Directory(
            database,
            cell=installation.cell,
            hasher=installation.hasher(),
            compile_policy=memory.policies.compile,
            on_change=lambda read: memory.renew(read, upstream),
            prices=_prices_of(settings),
        )
    )
    sizes = installation.tree_sizes()
    if sizes is not None:
        stack.callback(sizes.close)
    ledger = await enter(
        Ledger(
            database,
            _log_name(base),
            installation.open_reader,
            lambda: directory.prices,
            days=settings.audit.ledger_days,
            sum_days=settings.audit.usage_days,
            sizes=None if sizes is None else sizes.read,
        )
    )
    machines = await enter(_machines(base.provider, settings.oidc, base.workloads))
    limit_store = await enter(_limit_store(database, ledger, installation.urls.redis, member))
    limiter = await enter(Limiter(limit_store))
    await enter(
        running_fleet(
            settings,
            installation,
            database,
            memory.fleet,
            memory.registry,
            memory.tracker,
            recorded_from_threads(log),
            EngineLifecycle(upstream, memory.routes),
        )
    )
    return _Parts(log, recorder, names, inspection, upstream, attestor, directory, machines, limiter)


def _connected(recorder: Recorder, keys: BackendKeys, attestors: Sequence[Attestor]) -> Connected:
    """Who answers a new connection is on record, and its key is one that may answer, before a request is sent on it."""

    async def connected(backend: Backend, peer: Peer) -> None:
        await recorder.connected(backend, peer)
        await keys.check(backend, peer)
        for attestor in attestors:
            attestor.connected(backend, peer)

    return connected


async def _close_open_calls(base: _Base, name: str) -> None:
    """Close the open calls of a worker that was killed and whose name is not used again."""
    with suppress(AuditUnavailable):  # it lives
        await (await _open_log(base, name)).close()


async def _open_log(base: _Base, node: str) -> AuditLog:
    """The record, whose stores acknowledge only while the watches see the databases that were opened."""
    settings, installation = base.settings, base.installation
    return await AuditLog.open(
        installation.audit_log,
        signer=base.signer,
        node=node,
        build=build(),
        settings=AuditSettings(limits=QueueLimits(reserve_bytes=settings.audit.reserve_bytes)),
        open_store=base.watches.guarding(
            open_log_and_values(installation.side_store, base.keys, installation.record_url, installation.values_url)
        ),
    )


def _pipeline(base: _Base, parts: _Parts, enforcement: PolicyEnforcement, responses: Responses) -> Pipeline:
    """What a call of a model goes through."""
    settings, telemetry, memory = base.settings, base.telemetry, base.memory
    directory = parts.directory
    authenticator = Authenticator(directory, telemetry, parts.machines, memory.origins)
    return Pipeline(
        authenticator=authenticator,
        limiter=CallLimiter(parts.limiter, lambda model: directory.prices.at(model, time()), memory.bounds),
        inspection=parts.inspection,
        enforcement=enforcement,
        evaluation=Evaluation(
            authenticator, enforcement, memory.routes, memory.parking, parts.names, parts.inspection, telemetry
        ),
        routes=memory.routes,
        recorder=parts.recorder,
        upstream=parts.upstream,
        adapters=BackendAdapters(parts.upstream),
        delivery=Delivery(
            parts.inspection,
            enforcement,
            memory.routes,
            telemetry,
            settings.data,
            memory.bounds,
            AnswerManifests(base.installation.manifest_signer),
        ),
        outcome=CallOutcome(parts.recorder, telemetry, enforcement.offers, log_access if settings.log.access else None),
        telemetry=telemetry,
        bounds=memory.bounds,
        responses=responses,
        marker=Marker(MarkKeys(base.database, base.keys), AnswerSalts(base.database, base.keys)),
        tenant_keys=TenantKeys(base.keys),
    )


def _health(base: _Base, parts: _Parts, is_ready: BackendProbe) -> Health:
    checks = {
        "audit": _durable(parts.log),
        "directory": _fresh(parts.directory),
        "databases": databases_healthy(base.watches),
    }
    return Health(checks, lambda: _backend_checks(base.memory.fleet, is_ready))


async def _gateway(
    app: ASGIApp,
    base: _Base,
    parts: _Parts,
    health: Health,
    operations: _Operations,
    batches: OpenBatches,
    responses: OpenResponses,
) -> Gateway:
    settings, installation, bounds = base.settings, base.installation, base.memory.bounds
    return Gateway(
        app,
        parts.directory,
        parts.log,
        base.telemetry,
        installation.inventory(base.database).has_operator,
        await asyncio.to_thread(_warnings, settings, installation, base.database),
        base.watches,
        parts.inspection,
        health,
        bounds,
        _live_settings(settings, bounds, parts.directory, operations),
        batches,
        responses,
    )


def _batches(
    base: _Base, parts: _Parts, context: AuditContext, pipeline: Pipeline, responses: Responses
) -> OpenBatches:
    return open_batches(
        base.settings,
        base.installation,
        base.database,
        parts.directory,
        context,
        pipeline,
        base.memory.bounds,
        WaitingResponses(responses, pipeline),
    )


def _mounts(base: _Base, context: AdminContext, admin: ASGIApp) -> dict[str, ASGIApp]:
    """What is served beside the inference API, by its prefix; without the console, which calls the whole of it."""
    cells = build_cells(base.database, base.installation.cell, base.signer)
    mounts: dict[str, ASGIApp] = {ADMIN_PREFIX: admin, CELLS_PREFIX: cells}
    if base.settings.scim.token_file is not None:
        mounts[SCIM_PREFIX] = _scim(base.settings, base.settings.scim.token_file, context)
    return mounts


def _model_routes(pipeline: Pipeline, memory: _Memory) -> list[Route]:
    offers = Offers(memory.registry, pipeline.enforcement, memory.cards)
    return ModelRoutes(pipeline.authenticator, offers, memory.bounds, ROUTES).routes()


def _cell_metrics(base: _Base, parts: _Parts, places: CasePlaces, admin: AdminContext) -> Exposition:
    memory, tenant_label = base.memory, base.telemetry.tenant_label
    backends = BackendMetrics(parts.upstream, memory.routes, memory.fleet, tenant_label, parts.directory.deployments)
    duties = OpenDeadlines(places.tenants, base.installation.open_reader, admin.cases, admin.requests)
    return CellMetrics(backends, Budgets(base.database, parts.directory.budgets), duties, tenant_label).exposition


def _webhooks(base: _Base, parts: _Parts) -> Webhooks:
    """Raises InstallationError for a secret that cannot be used."""
    settings, installation = base.settings, base.installation
    try:
        receivers = [Receiver.of(hook) for hook in settings.webhooks]
    except (SecretError, LoosePermissions) as error:
        raise InstallationError(str(error)) from error
    except OSError as error:
        raise InstallationError(
            f"the secret of a webhook cannot be read: {error}; correct webhooks.secret_file"
        ) from error
    return Webhooks(
        receivers,
        WebhookMessages(base.database, _log_name(base)),
        Lease(base.database, WEBHOOKS_LEASE, f"{settings.node}/{token_hex(8)}", ttl_s=LEASE_S),
        installation.open_reader,
        Budgets(base.database, parts.directory.budgets).use,
        base.telemetry.registry,
    )


def _log_name(base: _Base) -> str:
    """Name of the gateway's log in the cursors of what follows it."""
    return log_name(owner_of(base.database) or identity_of(base.installation.owner))


def _start_background(
    stack: AsyncExitStack,
    base: _Base,
    parts: _Parts,
    prober: Prober,
    on_event: OnEvent,
    context: AuditContext,
    recurring: Sequence[Callable[[], Coroutine[Any, Any, None]]],
) -> None:
    """Starts what recurs beside the calls, also `recurring`. `stack` ends it one after the other, and then
    closes the recorder."""
    settings, installation = base.settings, base.installation
    chores = Maintenance(context, installation.audit_log.parent, settings.audit, installation.learn_successions)

    def by_itself() -> Control:
        return installation.control(base.database, actor="system", on_event=on_event)

    def due() -> int:
        return len(by_itself().activate_due())

    tasks = [
        asyncio.create_task(watch_databases(base.watches), name="database watches"),
        asyncio.create_task(prober.run(), name="prober"),
        asyncio.create_task(_renew(base.memory.credentials), name="renewal"),
        asyncio.create_task(chores.run(), name="chores"),
        asyncio.create_task(activate_scheduled(due), name="scheduled policies"),
        asyncio.create_task(keep_trimmed(malloc_trim()), name="heap"),
        *(asyncio.create_task(run(), name=run.__qualname__) for run in recurring),
    ]
    if settings.cells.pull:
        tasks.append(asyncio.create_task(_pull(settings, installation, base.signer, by_itself), name="bundles"))
    stack.push_async_callback(parts.recorder.close)
    stack.push_async_callback(_end, tasks)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _packs(base: _Base, audit: AuditContext) -> PackShelf:
    """Evidence packs made in the background, in the data folder of this gateway."""
    folder = base.installation.audit_log.parent
    return PackShelf(
        base.settings.data / "packs",
        audit,
        evidence=partial(evidence_of, base.settings.data),
        attestations=lambda: attestations(files_beside(folder)),
    )


def _counting(on_event: OnEvent, telemetry: Telemetry) -> OnEvent:
    """Count changes that alerts are about, once they are on record."""

    def recorded(event: AdminEvent) -> None:
        on_event(event)
        if event.action == "policy.approval_refused":
            telemetry.approvals_refused.inc()

    return recorded


def _admin_context(
    base: _Base,
    parts: _Parts,
    on_event: OnEvent,
    audit: AuditContext,
    packs: PackShelf,
    places: CasePlaces,
    changes: ChangePlaces,
) -> AdminContext:
    """What the routes of the admin API work with."""
    settings, installation = base.settings, base.installation
    feasibility = Feasibility(installation, settings)
    return AdminContext(
        base.database,
        cell=installation.cell,
        hasher=installation.hasher,
        check_policy=base.memory.policies.check,
        on_event=on_event,
        provider=base.provider,
        workloads=base.workloads,
        check_region=_region_of(installation),
        check_deployment=feasibility.check,
        check_scale=feasibility.check_scale,
        plan=feasibility.plan,
        on_refused=_refusals_from_threads(parts.recorder, base.telemetry),
        policy_study=lambda store: PolicyStudy(
            store, installation.catalogue(), installation.open_reader, sinks=sinks_of(settings)
        ),
        backend_keys=installation.backend_keys,
        detect=_detection(base, parts),
        find_answer=AnswerFinder(
            AnswerSalts(base.database, base.keys),
            installation.open_reader,
            parts.log.append,
            TextTests(base.database, "search"),
        ),
        challenge=_challenges(base, parts),
        audit=audit,
        evidence=partial(evidence_of, settings.data),
        kept_content=partial(reader_of, settings.data),
        packs=packs,
        fleet=base.memory.fleet,
        cases=known_incidents(places.known),
        requests=known_requests(places.known),
        changes=changes.newest,
        weak_settings=lambda: configuration_warnings(settings, observe(settings, installation, base.database)),
        approval_wait=timedelta(hours=settings.approvals.wait_hours),
        provisioned=_provisioned(settings) if settings.scim.token_file is not None else None,
    )


def _scim(settings: Settings, token_file: Path, context: AdminContext) -> ASGIApp:
    """Raises OSError, LoosePermissions, InstallationError for a token that is none."""
    token = read_secret(token_file).strip()
    if len(token) < MIN_SCIM_TOKEN:
        raise InstallationError(f"{token_file} has less than {MIN_SCIM_TOKEN} characters; write a random token there")

    def people() -> Provisioning:
        if (found := context.provisioning()) is None:
            raise RuntimeError("there is no provisioning")
        return found

    redirect = settings.oidc.redirect_uri
    origin = "" if redirect is None else "{0.scheme}://{0.netloc}".format(urlsplit(redirect))
    return build_scim(
        people,
        token,
        lambda request: context.on_refused("scim_token", caller_address(request.scope)),
        origin + SCIM_PREFIX,
    )


def _provisioned(settings: Settings) -> Mapped:
    def subject_of(fields: UserFields) -> str | None:
        subject = fields.external_id if settings.scim.subject == "externalId" else fields.name
        return None if subject is None else subject_digest(settings.oidc.issuer or "", subject)

    return Mapped(subject_of, lambda groups: grants_of(groups, settings.oidc.roles))


def _challenges(base: _Base, parts: _Parts) -> Recomputation:
    """Challenges of answers by backends that are up and that the project's policy allows."""
    settings, installation, memory = base.settings, base.installation, base.memory

    def study() -> PolicyStudy:
        return PolicyStudy(
            Inventory(base.database), installation.catalogue(), installation.open_reader, sinks=sinks_of(settings)
        )

    async def facts(_: PolicyStudy, tenant: str, model: str) -> tuple[BackendFacts, ...]:
        return memory.registry.facts(tenant, model)

    async def ask(backend: Backend, body: bytes) -> tuple[int, bytes | None]:
        if not memory.fleet.live()[backend.id].available:
            raise BackendUnavailable("The backend is not up")
        return await parts.upstream.ask(memory.routes.target(backend), CHALLENGE_PATH, CHALLENGE_TIMEOUT_S, body)

    fleet = ChallengeFleet(study, memory.registry.backends, ask, facts)
    return Recomputation(fleet, parts.inspection, TextTests(base.database, "challenge"))


def _detection(base: _Base, parts: _Parts) -> Detection:
    """The test for watermarks, by backends that are up and that a project's policy allows."""
    settings, installation, memory = base.settings, base.installation, base.memory

    def allowed(tenant: str, project: str, model: str) -> list[Backend | None]:
        study = PolicyStudy(
            Inventory(base.database), installation.catalogue(), installation.open_reader, sinks=sinks_of(settings)
        )
        decision = study.explain(tenant, project, model).decision
        may = {*decision.backends, *decision.pending}  # it counts tokens there; no model reads the text
        live = memory.fleet.live()
        return [
            each
            for each in memory.registry.backends(tenant, model)
            if each.id in may and each.kind == "domicile" and live[each.id].available
        ]

    async def fetch(backend: Backend | None, body: bytes) -> bytes | None:
        if backend is None:
            return None
        return await parts.upstream.fetch(memory.routes.target(backend), MARKS_PATH, MARKS_TIMEOUT_S, body)

    return Detection(
        MarkKeys(base.database, base.keys), allowed, fetch, parts.log.append, TextTests(base.database, "watermark")
    )


def _telemetry(settings: Settings) -> Telemetry:
    """With spans exported where a collector is configured."""
    tracer = None
    if (spans := settings.telemetry).otlp_endpoint:
        tracer = exporting_tracer(spans.otlp_endpoint, spans.sample_ratio, settings.node, spans_leave(settings))
    return Telemetry(max_tenant_labels=spans.max_tenant_labels, tracer=tracer)


def _provider(settings: Oidc) -> "IdentityProvider":
    from gateway.identity.provider import IdentityProvider  # with its HTTP client, only where there is a provider

    return IdentityProvider(settings)


@asynccontextmanager
async def _machines(
    provider: "IdentityProvider | None", settings: Oidc, workloads: "Workloads | None"
) -> AsyncIterator[Machines | None]:
    by_groups = provider if settings.projects else None
    if by_groups is None and workloads is None:
        yield None
        return
    async with Machines(
        by_groups,
        settings.projects,
        settings.groups_claim,
        skew_s=settings.clock_skew_s,
        workloads=workloads,
    ) as machines:
        yield machines


def _workloads(settings: Settings) -> "Workloads":
    from gateway.identity.workloads import Workloads  # as above

    return Workloads(settings.workloads)


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
async def _limit_store(
    database: Database, ledger: Ledger, url: str | None, member: Membership | None
) -> AsyncIterator[LimitStore]:
    """Where limits hold across gateways: in the Redis at `url`, else in the database if that is PostgreSQL. Else of
    this process alone, or of all workers together; budgets continue from what the ledger says was spent."""
    store: LimitStore
    if url is not None:
        from gateway.limits.redis_store import RedisLimitStore  # of the extra domicile[redis]

        store = RedisLimitStore(url)
    elif database.is_shared:
        store = PostgresLimitStore(database)
    else:
        await ledger.catch_up()
        so_far = await asyncio.to_thread(spent, database, datetime.now(UTC).date())
        store = MemoryLimitStore(spent=so_far) if member is None else member.limit_store(so_far)
    try:
        yield store
    finally:
        await store.close()


def _refusals_from_threads(recorder: Recorder, telemetry: Telemetry) -> OnRefused:
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
                raise BackendUnavailable("its engine did not answer; see the log of the backend")

        return check

    return {backend.id: check_of(backend) for backend in fleet}


async def _renew(credentials: TenantCredentials) -> None:
    while True:
        await asyncio.sleep(RENEWAL_CHECK_S)
        await asyncio.to_thread(credentials.renew)


def _export_certificate_ends(telemetry: Telemetry, credentials: TenantCredentials, served: Path | None) -> None:
    """When the certificates end that this gateway shows to backends and to clients (`served`), read at each scrape."""

    def seconds(end: datetime | None) -> float:
        return nan if end is None else end.timestamp()

    ends = telemetry.certificate_ends
    ends.labels("backends").set_function(lambda: seconds(credentials.first_end()))
    if served is not None:
        ends.labels("listener").set_function(lambda: seconds(certificate_end(served)))
