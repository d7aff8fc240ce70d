"""Fleet supervision in a gateway: publishes demand to the database; the leader reconciles deployments."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from secrets import token_hex

from gateway.configuration.settings import Fleet as FleetSettings
from gateway.configuration.settings import Settings
from gateway.database.database import Database
from gateway.directory.backend_registry import BackendRegistry
from gateway.installation.installation import Installation
from gateway.store.change import OnEvent
from gateway.store.fleet.demand import FRESH_S, write_demand
from gateway.store.fleet.fleet_store import FleetStore
from regions.fleet.demand import NOTHING, DemandReport, DemandTracker
from regions.fleet.fleet import Fleet
from regions.fleet.launcher import Launcher
from regions.fleet.ports import LifecycleClient
from regions.fleet.reconciler import Reconciler
from regions.launchers.local import LocalLauncher

log = logging.getLogger(__name__)

TELL_S = 1.0
GRACE_S = 40.0
"""Seconds for a backend to finish its answers after a stop signal: more than its own limit."""


def launches_here(settings: Settings, installation: Installation) -> bool:
    """Whether this gateway may lead: where certificates are issued elsewhere, so are backends started."""
    issued_elsewhere = (
        installation.authority_key.with_name("ca.pem").exists() and not installation.authority_key.exists()
    )
    return settings.fleet.launcher != "none" and not issued_elsewhere


@asynccontextmanager
async def running_fleet(
    settings: Settings,
    installation: Installation,
    database: Database,
    fleet: Fleet,
    registry: BackendRegistry,
    tracker: DemandTracker,
    on_event: OnEvent,
    lifecycle: LifecycleClient,
) -> AsyncIterator[None]:
    """While the block runs, demand is published, and deployments are reconciled if this gateway leads. Leaving stops
    the backends that it started."""
    node = f"{settings.node}-{token_hex(4)}"
    if not launches_here(settings, installation):
        telling = asyncio.create_task(
            _publish_demand(database, installation.cell, node, tracker, registry, lambda: None)
        )
        try:
            yield
        finally:
            await _ended(telling)
        return
    async with _launcher(settings, installation, lambda: reconciler.nudge()) as launcher:
        reconciler = Reconciler(
            FleetStore(database, cell=installation.cell, node=node, on_event=on_event),
            launcher,
            cell=installation.cell,
            models=installation.models(settings),
            drafts=settings.fleet.draft_models,
            report=fleet.report,
            lifecycle=lifecycle,
            every_s=settings.fleet.every_s,
        )
        telling = asyncio.create_task(
            _publish_demand(database, installation.cell, node, tracker, registry, reconciler.nudge)
        )
        running = asyncio.create_task(reconciler.run(), name="fleet")
        try:
            yield
        finally:
            await _ended(telling)
            await _ended(running)
            await reconciler.close()


@asynccontextmanager
async def _launcher(
    settings: Settings, installation: Installation, nudge: Callable[[], None]
) -> AsyncIterator[Launcher]:
    """Raises ClusterError outside a cluster."""
    # The authority is created when the first backend is started, not before it is needed.
    if settings.fleet.launcher == "kubernetes":
        from regions.launchers.cluster import Cluster  # with its HTTP client, only where there is a cluster
        from regions.launchers.kubernetes import KubernetesLauncher
        from regions.launchers.kubernetes_objects import ClusterSettings

        where = ClusterSettings(**settings.fleet.kubernetes.model_dump())
        async with (
            Cluster.of_this_pod(where.namespace) as cluster,
            KubernetesLauncher(
                cluster,
                installation.data,
                installation.authority,
                where,
                request_key=installation.request_key,
                on_change=lambda replica, running: nudge(),
            ) as launcher,
        ):
            yield launcher
        return
    yield LocalLauncher(
        installation.data,
        installation.authority,
        grace_s=GRACE_S,
        gpus=settings.fleet.gpus,
        options=lambda: ("--request-key", str(installation.request_key()), *_backend_options(settings.fleet)),
        on_change=lambda replica, running: nudge(),
    )


def _backend_options(fleet: FleetSettings) -> tuple[str, ...]:
    """Options of ``domicile backend serve``."""
    evidence = () if fleet.evidence is None else ("--evidence", str(fleet.evidence.resolve()))
    return (*_adapter_options(fleet), *evidence)


def _adapter_options(fleet: FleetSettings) -> tuple[str, ...]:
    if fleet.adapters is None or not fleet.max_adapters:
        return ()
    rank, folder = str(fleet.max_adapter_rank), str(fleet.adapters.resolve())
    return ("--max-adapters", str(fleet.max_adapters), "--max-adapter-rank", rank, "--adapters", folder)


async def _publish_demand(
    database: Database,
    cell: str,
    node: str,
    tracker: DemandTracker,
    registry: BackendRegistry,
    told: Callable[[], None],
) -> None:
    """Once a second, and at once when a call begins to wait; unchanged demand is published again before it is stale."""
    waiting = asyncio.Event()
    tracker.when_waiting(waiting.set)
    last: dict[tuple[str, str], DemandReport] = {}
    loop = asyncio.get_running_loop()
    said_at = float("-inf")
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(TELL_S):  # wait_for could swallow the end, as in gateway.directory.directory
                await waiting.wait()
        waiting.clear()
        now = {(t.tenant, t.model): t for t in tracker.reports() if registry.deployment(t.tenant, t.model) is not None}
        again = loop.time() - said_at >= FRESH_S / 2
        news = [each for key, each in now.items() if again or last.get(key) != each]
        news += [DemandReport(*key, NOTHING) for key, each in last.items() if key not in now and each.demand != NOTHING]
        if not news:
            continue
        try:
            await asyncio.to_thread(write_demand, database, cell, node, news)
        except Exception as error:  # of any kind: the demand is published again
            log.warning("the demand could not be published; it is retried: %s: %s", type(error).__name__, error)
            continue
        last, said_at = now, loop.time() if again else said_at
        told()


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
