"""Puts kept responses together: what the pipeline and the routes use, and what deletes them."""

from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

from audit.private.audit_context import AuditContext
from gateway.batches.content.sealing import Sealing
from gateway.batches.retention import EVERY_S
from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import Settings
from gateway.database.database import Database
from gateway.database.leases import Lease
from gateway.directory.directory import Directory
from gateway.installation.installation import Installation
from gateway.request.enforcement import PolicyEnforcement
from gateway.responses.responses import Responses
from gateway.responses.retention import LEASE, ResponseRetention
from gateway.store.batches.responses import StoredResponses


@dataclass(frozen=True, slots=True)
class OpenResponses:
    """`wakes`: called when a response was queued."""

    responses: Responses
    retention: ResponseRetention
    wakes: list[Callable[[], None]]


def open_responses(
    settings: Settings,
    installation: Installation,
    database: Database,
    directory: Directory,
    context: AuditContext,
    enforcement: PolicyEnforcement,
    bounds: Bounds,
) -> OpenResponses:
    """`context`: of the record and the value store, which has the keys of the content."""
    wakes: list[Callable[[], None]] = []

    def queued() -> None:
        for wake in wakes:
            wake()

    stored = StoredResponses(database, installation.cell)
    responses = Responses(context, stored, Sealing(context), enforcement, directory, settings.batches, bounds, queued)
    lease = Lease(database, LEASE, f"{settings.node}/{token_hex(8)}", ttl_s=2 * EVERY_S)
    return OpenResponses(responses, ResponseRetention(responses, lease), wakes)
