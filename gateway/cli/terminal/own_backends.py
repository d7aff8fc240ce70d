"""Calls of a command to backends of the installation, with the identities that its gateways have; connections are
recorded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.configuration.bounds import Bounds

if TYPE_CHECKING:
    from audit.private.audit_context import AuditContext
    from gateway.installation.installation import Installation
    from gateway.records.control import BackendRecord
    from gateway.upstream.client import Target, Upstream
    from gateway.upstream.http1 import Peer
    from regions.fleet.fleet import Backend


@asynccontextmanager
async def opened_upstream(installation: "Installation", context: "AuditContext") -> "AsyncIterator[Upstream]":
    from gateway.installation.installation import configured
    from gateway.request.recorder import connection_of
    from gateway.upstream.client import Upstream

    async def connected(backend: "Backend", peer: "Peer") -> None:
        if (event := connection_of(backend, peer)) is not None:
            await context.record(event)

    async with Upstream(Bounds(configured().requests), connected, installation.find_request_signer) as upstream:
        yield upstream


def target_of(installation: "Installation", backend: "Backend") -> "Target":
    from gateway.upstream.client import Target

    credentials = installation.credentials()
    tls = (lambda: credentials.context_for(backend)) if backend.url.startswith("https:") else None
    return Target(backend.id, backend.url.rstrip("/"), tls, backend)


def backend_of(record: "BackendRecord") -> "Backend":
    from gateway.directory.backend_registry import BACKEND_FIELDS
    from regions.fleet.fleet import Backend

    return Backend.model_validate(record.model_dump(include=BACKEND_FIELDS))
