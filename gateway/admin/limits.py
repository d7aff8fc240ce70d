"""Limits of a tenant, its projects and its keys, and prices. Changes are in force in every gateway within a second."""

from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from gateway.admin.calls.access import AdminContext, Context, IfMatch, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, Instant, tagged
from gateway.identity.roles import Actor
from gateway.limits.limit_kinds import LimitFigures
from gateway.records.usage import LimitsRecord, PriceRecord
from gateway.store.reports.usage_inventory import limits_at, limits_in, prices_in

router = APIRouter(tags=["limits"], route_class=IdempotentRoute)

Reading = Depends(RequirePermission("tenant.read"))
Owner = Annotated[Actor, Depends(RequirePermission("tenants.manage"))]
Manager = Annotated[Actor, Depends(RequirePermission("limits.manage"))]
Amount = Annotated[Decimal, Field(ge=0, le=10**6, decimal_places=6)]


class NewPrice(Body):
    """Price of a model in euros per million tokens. `cached`: by default as `input`. `valid_from`: by default now.
    `batch_discount`: reduction for lines of batches in percent."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    input: Amount
    output: Amount
    cached: Amount | None = None
    batch_discount: Annotated[int, Field(ge=0, le=100)] = 0
    valid_from: Instant | None = None


@router.get("/tenants/{tenant}/limits/all", dependencies=[Reading])
def list_limits(context: Context, tenant: str) -> list[LimitsRecord]:
    """List the limits of the tenant, its projects and its keys."""
    return limits_in(context.database, tenant)


@router.get("/tenants/{tenant}/limits", dependencies=[Reading])
def show_tenant_limits(context: Context, response: Response, tenant: str) -> LimitsRecord:
    return _shown(context, response, tenant)


@router.put("/tenants/{tenant}/limits")
def set_tenant_limits(
    actor: Owner, context: Context, expected: IfMatch, response: Response, tenant: str, figures: LimitFigures
) -> LimitsRecord:
    """Replace the tenant's own limits. This needs a permission of the operator, because they restrict the tenant."""
    return tagged(response, context.control(actor.name, expected).set_limits(tenant, figures))


@router.get("/tenants/{tenant}/projects/{project}/limits", dependencies=[Reading])
def show_project_limits(context: Context, response: Response, tenant: str, project: str) -> LimitsRecord:
    return _shown(context, response, tenant, project=project)


@router.put("/tenants/{tenant}/projects/{project}/limits")
def set_project_limits(
    actor: Manager,
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
    project: str,
    figures: LimitFigures,
) -> LimitsRecord:
    """Replace the project's limits. If its policy sets one as well, the lower one applies."""
    return tagged(response, context.control(actor.name, expected).set_limits(tenant, figures, project=project))


@router.get("/tenants/{tenant}/keys/{key}/limits", dependencies=[Reading])
def show_key_limits(context: Context, response: Response, tenant: str, key: str) -> LimitsRecord:
    return _shown(context, response, tenant, key=key)


@router.put("/tenants/{tenant}/keys/{key}/limits")
def set_key_limits(
    actor: Manager,
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
    key: str,
    figures: LimitFigures,
) -> LimitsRecord:
    """Replace the key's limits. Its successor by rotation inherits them."""
    return tagged(response, context.control(actor.name, expected).set_limits(tenant, figures, key=key))


@router.get("/prices", dependencies=[Depends(RequirePermission("prices.read"))])
def list_prices(context: Context) -> list[PriceRecord]:
    """List all versions of the prices of all models."""
    return prices_in(context.database, context.cell)


@router.post("/prices", status_code=201)
def set_price(
    actor: Annotated[Actor, Depends(RequirePermission("prices.manage"))],
    context: Context,
    response: Response,
    new: NewPrice,
) -> PriceRecord:
    """Add a version of a model's price. Costs of earlier calls do not change."""
    record = context.control(actor.name).set_price(
        new.model,
        input=new.input,
        output=new.output,
        cached=new.cached,
        batch_discount=new.batch_discount,
        valid_from=new.valid_from,
    )
    return tagged(response, record)


def _shown(
    context: AdminContext, response: Response, tenant: str, *, project: str | None = None, key: str | None = None
) -> LimitsRecord:
    return tagged(response, limits_at(context.database, tenant, project=project, key=key))
