"""A tenant's backends: what is registered, and servers of its own that speak OpenAI's API.

Our own engines are registered by what starts them. Registering decides where a tenant's prompts go and by whose facts
that place is judged, so it is the operator's to do.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import Field, ValidationError

from audit.files.secret_file import LoosePermissions, read_secret
from gateway.admin.calls.access import AdminContext, Context, IfMatch, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import After, Body, Limit, Name, tagged
from gateway.admin.explain import policy_study
from gateway.database.errors import Invalid
from gateway.identity.roles import Actor
from gateway.records.control import BackendRecord
from gateway.store.pagination import Page
from policy.errors import invalid_value
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust, Watermarking

router = APIRouter(prefix="/tenants/{tenant}/backends", tags=["backends"], route_class=IdempotentRoute)

Reading = Depends(RequirePermission("backends.read"))
Manager = Annotated[Actor, Depends(RequirePermission("backends.manage"))]
Model = Annotated[str, Field(min_length=1, max_length=200)]


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class NewBackend(Body):
    """A server of the tenant's own, in a `region` of the catalogue, that answers at `url` (https).

    It is trusted by `ca` (PEM, for the host of the URL or `name`), by `pin` (SHA-256 of its certificate in DER form, in
    hex), or both. `key`: the file of that name in the gateways' folder ``secrets/backends/TENANT`` holds what it asks
    for as bearer token. `plain`: it refuses what is not OpenAI's own; `priority`: it queues by vLLM's parameter;
    `watermark`: it marks its answers, and is asked to in this server's way.
    `single_tenant`: it is declared to serve this tenant alone. `managed`: it is a service of another company, trusted
    by public authorities for the host of the URL or `name`; with `refuse_changed_key` nothing is sent to a key that
    was not seen before. `weights_sha256`: the digest of its weights, as you declare it.
    `eur_per_million`: what a million tokens cost there.
    """

    id: Name
    region: Name
    url: Annotated[str, Field(max_length=500)]
    models: Annotated[tuple[Model, ...], Field(min_length=1, max_length=100)]
    ca: Annotated[str, Field(max_length=64 * 1024)] | None = None
    name: Annotated[str, Field(max_length=253)] | None = None
    pin: Sha256 | None = None
    key: Name | None = None
    plain: bool = False
    priority: bool = False
    watermark: Watermarking | None = None
    single_tenant: bool = False
    managed: bool = False
    refuse_changed_key: bool = False
    weights_sha256: Sha256 | None = None
    eur_per_million: Annotated[Decimal, Field(ge=0, le=10**6, decimal_places=6)] | None = None


@router.get("", dependencies=[Reading])
def list_backends(context: Context, tenant: str, after: After = None, limit: Limit = 50) -> Page[BackendRecord]:
    """Ours and theirs, also those that were revoked."""
    return context.pages.backends(tenant, after, limit)


@router.get("/{backend}", dependencies=[Reading])
def show_backend(context: Context, response: Response, tenant: str, backend: str) -> BackendRecord:
    record = context.inventory.backend(tenant, backend)
    tagged(response, record)
    return record


@router.post("", status_code=201)
def register_backend(
    actor: Manager, context: Context, response: Response, tenant: str, new: NewBackend
) -> BackendRecord:
    """Register a server, or change one of the same name and region. It gets requests within a second."""
    if not new.url.startswith("https://"):
        raise Invalid("over this API a server is registered by its https URL; give one that begins with https://")
    with policy_study(context) as study:
        study.catalogue.region(new.region, datetime.now(UTC).date())
    record = context.control(actor.name).register_backend(
        BackendIdentity(context.cell, tenant, new.region, new.id),
        url=new.url,
        models=new.models,
        kind="managed" if new.managed else "openai",
        single_tenant="declared" if new.single_tenant else None,
        trust=_trust(context, tenant, new),
        eur_per_million=new.eur_per_million,
        weights_sha256=new.weights_sha256,
    )
    tagged(response, record)
    return record


class AcceptedKey(Body):
    """`key_sha256`: of the public key (SubjectPublicKeyInfo, DER) that a managed service may show from now on."""

    key_sha256: Sha256


@router.post("/{backend}/accept-key")
def accept_key(
    actor: Manager, context: Context, expected: IfMatch, response: Response, tenant: str, backend: str, key: AcceptedKey
) -> BackendRecord:
    record = context.control(actor.name, expected).accept_backend_key(tenant, backend, key.key_sha256)
    tagged(response, record)
    return record


@router.post("/{backend}/revoke")
def revoke_backend(
    actor: Manager, context: Context, expected: IfMatch, response: Response, tenant: str, backend: str
) -> BackendRecord:
    """It gets no more requests from any gateway within a second."""
    record = context.control(actor.name, expected).revoke_backend(tenant, backend)
    tagged(response, record)
    return record


def _trust(context: AdminContext, tenant: str, new: NewBackend) -> Trust:
    try:
        return Trust(
            ca=new.ca, name=new.name, pin=new.pin, key_file=_key_file(context, tenant, new.key), plain=new.plain,
            priority=new.priority, watermark=new.watermark, public=new.managed,
            changed_key="refuse" if new.refuse_changed_key else "record",
        )  # fmt: skip
    except ValidationError as error:
        raise Invalid(invalid_value(error.errors()[0])) from error


def _key_file(context: AdminContext, tenant: str, key: str | None) -> str | None:
    """By name in a folder for this alone: by a path, any secret of the gateway's could be sent to any server."""
    if key is None:
        return None
    if context.backend_keys is None:
        raise Invalid(
            "this gateway has no folder for keys of backends"
            "; set it up on the gateway's host, or register the server with `domicile backend create`"
        )
    path = context.backend_keys / tenant / key
    try:
        read_secret(path)
    except LoosePermissions as error:
        raise Invalid(f"others than its owner may read the file of key {key!r}; run chmod 600 on it") from error
    except OSError as error:
        raise Invalid(
            f"there is no file {tenant}/{key} in the gateway's folder secrets/backends; put the key there"
        ) from error
    return str(path)
