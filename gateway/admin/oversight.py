"""Human oversight: AI systems and projects are stopped and resumed (AI Act 14(4)(e), 26(5))."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from gateway.admin.calls.access import Context, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, Name
from gateway.identity.roles import Actor
from gateway.store.oversight import StopRecord, stops_in

router = APIRouter(tags=["oversight"], route_class=IdempotentRoute)

Overseer = Annotated[Actor, Depends(RequirePermission("oversight.act"))]


class Act(Body):
    """Applies to an AI system with all its projects, or to one project; exactly one is given. `reason`: a code, not
    free text."""

    ai_system_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    project: Name | None = None
    reason: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,63}$")]


@router.get("/tenants/{tenant}/oversight", dependencies=[Depends(RequirePermission("tenant.read"))])
def list_stops(context: Context, tenant: str) -> list[StopRecord]:
    """List all stops in the tenant, with actor, begin and end."""
    return stops_in(context.database, tenant)


@router.post("/tenants/{tenant}/oversight/stop")
def stop_system(actor: Overseer, context: Context, tenant: str, act: Act) -> StopRecord:
    """Stop it: within a second every gateway refuses its calls and ends running ones."""
    return context.control(actor.name).stop(
        tenant, project=act.project, ai_system_id=act.ai_system_id, reason=act.reason
    )


@router.post("/tenants/{tenant}/oversight/resume")
def resume_system(actor: Overseer, context: Context, tenant: str, act: Act) -> StopRecord:
    """End a stop. Calls are accepted again."""
    return context.control(actor.name).resume(
        tenant, project=act.project, ai_system_id=act.ai_system_id, reason=act.reason
    )
