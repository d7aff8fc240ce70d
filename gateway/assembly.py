"""Puts a gateway together from its settings: opens what it needs, in order, and closes it in the reverse order."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from audit import AuditLog, AuditSettings
from audit.sequencer import Limits as AuditLimits
from gateway.admin.access import Desk
from gateway.admin.app import PREFIX as ADMIN_PREFIX
from gateway.admin.app import build_admin
from gateway.admin_record import recorded_from_threads
from gateway.app import GatewayApp, build_app
from gateway.authentication import Authenticator
from gateway.credentials import TenantCredentials
from gateway.directory import Directory
from gateway.errors import BackendUnavailable
from gateway.health import Check, Health
from gateway.installation import Installation
from gateway.inventory import Inventory
from gateway.judge import Judge
from gateway.limits import Limiter, LimitStore, MemoryLimitStore
from gateway.meter import Meter
from gateway.pipeline import Pipeline
from gateway.policy_clock import activate_scheduled
from gateway.policy_room import PolicyRoom
from gateway.probe import BackendProbe
from gateway.recorder import Recorder
from gateway.routes import Routes
from gateway.settings import Settings
from gateway.telemetry import Telemetry, exporting_tracer
from gateway.upstream import Upstream
from regions.fleet import Backend, Fleet
from regions.health import Prober

RENEWAL_CHECK_S = 600


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway ready to be served."""

    app: GatewayApp
    directory: Directory
    log: AuditLog
    telemetry: Telemetry


@asynccontextmanager
async def open_gateway(settings: Settings) -> AsyncIterator[Gateway]:
    """Raises what keeps it from starting: InstallationError, DatabaseUnavailable, AuditUnavailable, RegionsError."""
    installation = Installation.open(settings.data)
    tracer = None
    if settings.telemetry.otlp_endpoint:
        tracer = exporting_tracer(settings.telemetry.otlp_endpoint, settings.telemetry.sample_ratio, settings.node)
    telemetry = Telemetry(max_tenant_labels=settings.telemetry.max_tenant_labels, tracer=tracer)
    fleet = Fleet()
    inventory = Inventory(fleet, installation.catalogue())
    credentials = installation.credentials()
    routes = Routes(fleet, inventory, credentials, settings.requests.max_attempts)
    database = installation.database()
    audit_settings = AuditSettings(limits=AuditLimits(reserve_bytes=settings.audit.reserve_bytes))
    try:
        async with (
            await AuditLog.open(
                installation.audit_log,
                signer=installation.signer(),
                node=settings.node,
                build=build(),
                settings=audit_settings,
            ) as log,
            Upstream(settings.requests, lambda backend, peer: recorder.connected(backend, peer)) as upstream,
            _limit_store() as limit_store,
            Directory(
                database,
                cell=installation.cell,
                hasher=installation.hasher(),
                compile_policy=installation.policies().compile,
                on_change=lambda directory: inventory.replace(directory.backends()),
            ) as directory,
        ):
            recorder = Recorder(log, telemetry)
            pipeline = Pipeline(
                authenticator=Authenticator(directory, recorder, telemetry),
                meter=Meter(Limiter(limit_store), settings.prices, settings.requests.default_max_tokens),
                judge=Judge(inventory, telemetry),
                routes=routes,
                recorder=recorder,
                upstream=upstream,
                telemetry=telemetry,
                settings=settings.requests,
            )

            is_ready = BackendProbe(upstream, routes, fleet)
            health = Health(
                {"audit": _durable(log), "directory": _fresh(directory)}, lambda: _backend_checks(fleet, is_ready)
            )
            on_event = recorded_from_threads(log)

            def due() -> int:
                control = installation.control(database, actor="system", on_event=on_event)
                return len(control.activate_due())

            background = [
                asyncio.create_task(Prober(fleet, is_ready).run(), name="prober"),
                asyncio.create_task(_renew(credentials), name="renewal"),
                asyncio.create_task(activate_scheduled(due), name="scheduled policies"),
            ]
            try:
                admin = build_admin(
                    Desk(
                        database,
                        cell=installation.cell,
                        hasher=installation.hasher,
                        check_policy=installation.policies().check,
                        on_event=on_event,
                        policy_room=lambda store: PolicyRoom(store, installation.catalogue(), installation.audit_log),
                    )
                )
                app = build_app(pipeline, inventory, health, settings.listen.operators, {ADMIN_PREFIX: admin})
                yield Gateway(app, directory, log, telemetry)
            finally:
                for task in background:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
    finally:
        database.close()


@asynccontextmanager
async def _limit_store() -> AsyncIterator[LimitStore]:
    """In Redis where DOMICILE_REDIS_URL says so, for limits that hold across gateways; else of this process alone."""
    url = os.environ.get("DOMICILE_REDIS_URL")
    if not url:
        yield MemoryLimitStore()
        return
    from gateway.redis_limits import RedisLimitStore  # of the extra domicile[redis]

    store = RedisLimitStore(url)
    try:
        yield store
    finally:
        await store.close()


def build() -> str:
    """Name and version of this program, as the record names it."""
    try:
        return f"domicile {version('domicile')}"
    except PackageNotFoundError:
        return "domicile (not installed)"


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
