"""Model names, adapters and allowed web origins of a project."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from gateway.admin.calls.access import Context, IfMatch, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, Instant, tagged
from gateway.database.errors import NotFound
from gateway.identity.roles import Actor
from gateway.records.adapters import AdapterName, AdapterRecord, Sha256
from gateway.records.control import ProjectRecord
from gateway.records.model_names import MAX_TARGETS, ModelName, ModelNameRecord
from gateway.store.adapters import adapters_in
from gateway.store.control.adapters import adapter_setting
from gateway.store.control.models import named
from gateway.store.model_names import model_names_in

router = APIRouter(tags=["models"], route_class=IdempotentRoute)

Reading = Depends(RequirePermission("tenant.read"))
Manager = Annotated[Actor, Depends(RequirePermission("projects.manage"))]
Target = Annotated[str, Field(min_length=1, max_length=200)]


class Defaults(Body):
    """Default values of sampling parameters and of the length."""

    frequency_penalty: float | None = None
    max_tokens: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


class NamedModel(Body):
    """A name for models. `targets`: models of the tenant, the preferred one first. `defaults`: values of parameters
    that a call does not set."""

    name: ModelName
    targets: Annotated[tuple[Target, ...], Field(min_length=1, max_length=MAX_TARGETS)]
    defaults: Defaults = Defaults()
    other_vectors: bool = False
    deprecated_at: Instant | None = None
    sunset_at: Instant | None = None
    replacement: Annotated[str, Field(min_length=1, max_length=128)] | None = None


class NewAdapter(Body):
    """A new adapter; the fields are those of `gateway.records.adapters.AdapterSetting`."""

    name: AdapterName
    model: Annotated[str, Field(min_length=1, max_length=128)]
    path: Annotated[str, Field(min_length=1, max_length=1024)]
    sha256: Sha256


class DeletedAdapter(Body):
    name: AdapterName


class DeletedName(Body):
    name: ModelName


class Origins(Body):
    """Origins in the form that browsers send: scheme, host and port."""

    origins: Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=64)]


@router.get("/tenants/{tenant}/projects/{project}/models", dependencies=[Reading])
def list_model_names(
    context: Context, tenant: str, project: str, name: Annotated[ModelName | None, Query()] = None
) -> list[ModelNameRecord]:
    """List the names of the project, or the one called `name`."""
    found = model_names_in(context.database, tenant, project)
    return found if name is None else [record for record in found if record.name == name]


@router.put("/tenants/{tenant}/projects/{project}/models")
def set_model_name(
    actor: Manager,
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
    project: str,
    new: NamedModel,
) -> ModelNameRecord:
    """Create or replace a name. The policy decides about each target when it is called."""
    defaults = new.defaults.model_dump(exclude_none=True)
    naming = named(**new.model_dump(exclude={"name", "defaults"}), defaults=defaults)
    control = context.control(actor.name, expected)
    try:
        record = control.update_model_name(tenant, project, new.name, naming)
    except NotFound:
        record = control.create_model_name(tenant, project, new.name, naming)
    return tagged(response, record)


@router.post("/tenants/{tenant}/projects/{project}/models/delete")
def delete_model_name(
    actor: Manager,
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
    project: str,
    gone: DeletedName,
) -> ModelNameRecord:
    """Delete a name. Calls with it then mean the model of that name, if there is one."""
    return tagged(response, context.control(actor.name, expected).delete_model_name(tenant, project, gone.name))


@router.get("/tenants/{tenant}/projects/{project}/adapters", dependencies=[Reading])
def list_adapters(context: Context, tenant: str, project: str) -> list[AdapterRecord]:
    """List the adapters of the project."""
    return adapters_in(context.database, tenant, project)


@router.post("/tenants/{tenant}/projects/{project}/adapters", status_code=201)
def create_adapter(
    actor: Manager,
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
    project: str,
    new: NewAdapter,
) -> AdapterRecord:
    """Register an adapter. Calls of the project select it as `model: base:adapter`; the first one loads it."""
    setting = adapter_setting(**new.model_dump(exclude={"name"}))
    return tagged(response, context.control(actor.name, expected).create_adapter(tenant, project, new.name, setting))


@router.post("/tenants/{tenant}/projects/{project}/adapters/delete")
def delete_adapter(
    actor: Manager,
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
    project: str,
    gone: DeletedAdapter,
) -> AdapterRecord:
    """Delete an adapter. No later call can select it."""
    return tagged(response, context.control(actor.name, expected).delete_adapter(tenant, project, gone.name))


@router.put("/tenants/{tenant}/projects/{project}/origins")
def set_origins(
    actor: Manager,
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
    project: str,
    wanted: Origins,
) -> ProjectRecord:
    """Replace the origins of the web pages that may call for the project. Without one, no page may."""
    return tagged(response, context.control(actor.name, expected).set_origins(tenant, project, wanted.origins))
