"""A tenant's registered backends, and the registration of the tenant's own servers with an OpenAI-compatible API.

Domicile's engines are registered when they are started. A registration decides where prompts of the tenant are sent and
which facts apply to that place. It therefore needs a permission of the operator.
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
    """A server of the tenant in a `region` of the catalogue, reached at `url` (https).

    It is trusted by `ca` (PEM, for the host of the URL or `name`), by `pin` (SHA-256 of its certificate in DER, in
    hexadecimal), or both. `key`: name of a file in the gateways' folder ``secrets/backends/TENANT`` that contains the
    bearer token which the server requires. `plain`: the server refuses parameters that OpenAI's API does not have.
    `priority`: it schedules by vLLM's parameter of that name. `watermark`: it marks its answers, and how it is asked
    to. `single_tenant`: declared to serve this tenant only. `managed`: a service of another company, trusted by public
    certificate authorities for the host of the URL or `name`; with `refuse_changed_key` no request is sent when the
    server shows a new key. `weights_sha256`: declared digest of its weights. `eur_per_million`: price of a million
    tokens in euros."""

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
    """List all backends of the tenant, including revoked ones."""
    return context.pages.backends(tenant, after, limit)


@router.get("/{backend}", dependencies=[Reading])
def show_backend(context: Context, response: Response, tenant: str, backend: str) -> BackendRecord:
    return tagged(response, context.inventory.backend(tenant, backend))


@router.post("", status_code=201)
def register_backend(
    actor: Manager, context: Context, response: Response, tenant: str, new: NewBackend
) -> BackendRecord:
    """Register a server, or change the one with the same name and region. It receives requests within a second."""
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
    return tagged(response, record)


class AcceptedKey(Body):
    """A new key of a managed service. `key_sha256`: SHA-256 of the public key (SubjectPublicKeyInfo, DER)."""

    key_sha256: Sha256


@router.post("/{backend}/accept-key")
def accept_key(
    actor: Manager, context: Context, expected: IfMatch, response: Response, tenant: str, backend: str, key: AcceptedKey
) -> BackendRecord:
    return tagged(response, context.control(actor.name, expected).accept_backend_key(tenant, backend, key.key_sha256))


@router.post("/{backend}/revoke")
def revoke_backend(
    actor: Manager, context: Context, expected: IfMatch, response: Response, tenant: str, backend: str
) -> BackendRecord:
    """Revoke the backend. Within a second no gateway sends it requests."""
    return tagged(response, context.control(actor.name, expected).revoke_backend(tenant, backend))


def _trust(context: AdminContext, tenant: str, new: NewBackend) -> Trust:
    try:
        return Trust(
            ca=new.ca,
            name=new.name,
            pin=new.pin,
            key_file=_key_file(context, tenant, new.key),
            plain=new.plain,
            priority=new.priority,
            watermark=new.watermark,
            public=new.managed,
            changed_key="refuse" if new.refuse_changed_key else "record",
        )
    except ValidationError as error:
        raise Invalid(invalid_value(error.errors()[0])) from error


def _key_file(context: AdminContext, tenant: str, key: str | None) -> str | None:
    """Return the path of a backend's key. It is given by name, in a folder that contains such keys only, because a path
    could send any secret of the gateway to any server. Raises Invalid."""
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
        raise Invalid(
            f"the file of key {key!r} can be read by users other than its owner; run chmod 600 on it"
        ) from error
    except OSError as error:
        raise Invalid(
            f"there is no file {tenant}/{key} in the gateway's folder secrets/backends; put the key there"
        ) from error
    return str(path)
