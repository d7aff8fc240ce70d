"""Puts files and batches together: their routes, the worker, and what deletes them."""

from dataclasses import dataclass
from secrets import token_hex

from starlette.routing import Route

from audit.private.audit_context import AuditContext
from gateway.batches.batches import Batches
from gateway.batches.content.files import Files
from gateway.batches.content.sealing import Sealing
from gateway.batches.retention import EVERY_S, LEASE, FileRetention
from gateway.batches.routes import BatchRoutes
from gateway.batches.work.worker import BatchMetrics, BatchWorker, SingleCalls
from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import Settings
from gateway.database.database import Database
from gateway.database.leases import Lease
from gateway.directory.directory import Directory
from gateway.installation.installation import Installation
from gateway.request.pipeline import Pipeline
from gateway.store.batches.batches import StoredBatches
from gateway.store.batches.files import StoredFiles

ID_BYTES = 12


@dataclass(frozen=True, slots=True)
class OpenBatches:
    routes: list[Route]
    worker: BatchWorker
    retention: FileRetention


def open_batches(
    settings: Settings,
    installation: Installation,
    database: Database,
    directory: Directory,
    context: AuditContext,
    pipeline: Pipeline,
    bounds: Bounds,
    singles: SingleCalls,
) -> OpenBatches:
    """`context`: of the record and the value store, which has the keys of the content. `singles`: calls that wait by
    themselves."""

    def new_id() -> str:
        return token_hex(ID_BYTES)

    def created() -> None:
        worker.wake()

    holder, cell = f"{settings.node}/{token_hex(8)}", installation.cell
    enforcement, sealing = pipeline.enforcement, Sealing(context)
    stored_files, stored_batches = StoredFiles(database, cell), StoredBatches(database, cell)
    files = Files(context, stored_files, stored_batches, sealing, enforcement, settings.batches, bounds, new_id)
    batches = Batches(
        context, stored_batches, files, sealing, enforcement, directory, settings.batches, new_id, created
    )
    metrics = BatchMetrics(pipeline.telemetry.registry, pipeline.telemetry.tenant_label)
    worker = BatchWorker(database, batches, singles, pipeline, metrics, holder)
    retention = FileRetention(batches, Lease(database, LEASE, holder, ttl_s=2 * EVERY_S))
    return OpenBatches(BatchRoutes(pipeline.authenticator, files, batches, bounds).routes(), worker, retention)
