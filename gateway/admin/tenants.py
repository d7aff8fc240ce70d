"""Tenants and their projects."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from gateway.admin.calls.access import Context, IfMatch, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import After, Body, Limit, Name, ResponseBody, tagged
from gateway.identity.roles import Actor
from gateway.records.control import (
    LegalBasis,
    ProjectRecord,
    RiskClass,
    TenantRecord,
)
from gateway.store.pagination import Page

router = APIRouter(tags=["tenants"], route_class=IdempotentRoute)


class NewTenant(Body):
    id: Name
    display_name: str | None = None


class NewProject(Body):
    id: Name
    purpose: str
    legal_basis: LegalBasis
    data_classes: tuple[str, ...] = ()
    risk_class: RiskClass = "minimal"
    ai_system_id: str | None = None


class Weakness(ResponseBody):
    """A weak setting. `code`: its name in docs/warnings.md. `says`: the finding. `fix`: what to do."""

    code: str
    says: str
    fix: str


@router.get("/weak-settings", dependencies=[Depends(RequirePermission("staff.read"))])
def list_weak_settings(context: Context) -> tuple[Weakness, ...]:
    """List the weak settings of this gateway, as `domicile doctor` does."""
    return tuple(Weakness(code=one.code, says=one.says, fix=one.fix) for one in context.weak_settings())


@router.get("/tenants", dependencies=[Depends(RequirePermission("tenants.list"))])
def list_tenants(context: Context, after: After = None, limit: Limit = 50) -> Page[TenantRecord]:
    return context.pages.tenants(after, limit)


@router.post("/tenants", status_code=201)
def create_tenant(
    actor: Annotated[Actor, Depends(RequirePermission("tenants.manage"))],
    context: Context,
    response: Response,
    new: NewTenant,
) -> TenantRecord:
    return tagged(response, context.control(actor.name).create_tenant(new.id, display_name=new.display_name))


@router.get("/tenants/{tenant}", dependencies=[Depends(RequirePermission("tenant.read"))])
def show_tenant(context: Context, response: Response, tenant: str) -> TenantRecord:
    return tagged(response, context.inventory.tenant(tenant))


@router.post("/tenants/{tenant}/revoke")
def revoke_tenant(
    actor: Annotated[Actor, Depends(RequirePermission("tenants.manage"))],
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
) -> TenantRecord:
    """Revoke the tenant. Within a second its keys are refused and its backends receive no requests. This cannot be
    undone."""
    return tagged(response, context.control(actor.name, expected).revoke_tenant(tenant))


@router.get("/tenants/{tenant}/projects", dependencies=[Depends(RequirePermission("tenant.read"))])
def list_projects(context: Context, tenant: str, after: After = None, limit: Limit = 50) -> Page[ProjectRecord]:
    return context.pages.projects(tenant, after, limit)


@router.post("/tenants/{tenant}/projects", status_code=201)
def create_project(
    actor: Annotated[Actor, Depends(RequirePermission("projects.manage"))],
    context: Context,
    response: Response,
    tenant: str,
    new: NewProject,
) -> ProjectRecord:
    record = context.control(actor.name).create_project(
        tenant,
        new.id,
        purpose=new.purpose,
        legal_basis=new.legal_basis,
        data_classes=new.data_classes,
        risk_class=new.risk_class,
        ai_system_id=new.ai_system_id,
    )
    return tagged(response, record)


@router.get("/tenants/{tenant}/projects/{project}", dependencies=[Depends(RequirePermission("tenant.read"))])
def show_project(context: Context, response: Response, tenant: str, project: str) -> ProjectRecord:
    return tagged(response, context.inventory.project(tenant, project))


@router.post("/tenants/{tenant}/projects/{project}/revoke")
def revoke_project(
    actor: Annotated[Actor, Depends(RequirePermission("projects.manage"))],
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
    project: str,
) -> ProjectRecord:
    """Revoke the project. Its keys are refused within a second. This cannot be undone."""
    return tagged(response, context.control(actor.name, expected).revoke_project(tenant, project))
