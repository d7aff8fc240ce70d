"""Deployments of a tenant's models, their replicas, and the load of its backends."""

from typing import Annotated, Self

from fastapi import APIRouter, Depends, Query, Response
from pydantic import AfterValidator, Field, model_validator

from gateway.admin.calls.access import Context, IfMatch, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import After, Body, Limit, ResponseBody, tagged
from gateway.database.errors import Invalid
from gateway.identity.roles import Actor
from gateway.records.fleet import DeploymentRecord, ReplicaRecord
from gateway.records.prices import MICRO
from gateway.store.pagination import Page
from gateway.store.reports.fleet_inventory import deployment_at, deployments_in, replicas_of
from regions.fleet.cards import CPU, Cards
from regions.fleet.deployment import MAX_NAME, MAX_REPLICAS, Deployment, Kind, Place, Scale, Sha256, check_kind
from regions.fleet.fleet import EngineReport, Load

router = APIRouter(tags=["deployments"], route_class=IdempotentRoute)

Reading = Depends(RequirePermission("backends.read"))
Manager = Annotated[Actor, Depends(RequirePermission("deployments.manage"))]
Weights = Annotated[
    str, Field(max_length=200, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$")
]


class Figures(Body, Scale):
    """Number of replicas, and when more are started."""


def _in_one_spelling(gpu: str) -> str:
    """Return the canonical name of the cards. Raises ValueError for an unknown one."""
    return gpu if gpu == "auto" else str(Cards.parse(gpu))


class NewDeployment(Figures):
    """A new deployment. `weights`: a file or folder in the installation's folder of models. `gpu`: the cards of one
    replica: `cpu`, `h100`, `4xh100`. `wait_s`: seconds that a request waits for a replica. `eur_per_hour`: price of one
    replica. `weights_sha256`: required digest of the weights; by default the first one that a replica reports. `kind`:
    with `disaggregated`, `prefill` separate replicas compute prompts, and the other figures are for those that
    decode."""

    id: Annotated[Place, Field(max_length=MAX_NAME)]
    model: Annotated[str, Field(min_length=1, max_length=200)]
    weights: Weights
    regions: Annotated[tuple[Place, ...], Field(min_length=1, max_length=16)]
    gpu: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$"), AfterValidator(_in_one_spelling)] = CPU
    wait_s: Annotated[int, Field(ge=1, le=3600)] = 120
    eur_per_hour: Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)] = 0.0
    weights_sha256: Sha256 | None = None
    kind: Kind = "mixed"
    prefill: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 0

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.gpu != "auto":
            check_kind(self.kind, self.prefill, Cards.parse(self.gpu).count)
        return self


class WhatIf(Body):
    """A number of replicas of these weights on these cards."""

    weights: Weights
    gpu: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$"), AfterValidator(_in_one_spelling)] = CPU
    replicas: Annotated[int, Field(ge=1, le=1000)] = 1


class Feasible(ResponseBody):
    """Result of a check. `because`: the planner's reason if they cannot run."""

    feasible: bool
    because: str


class BackendLoad(ResponseBody):
    """Current state of a backend, as known to this gateway. `in_flight`: calls of this gateway. `running`, `waiting`:
    sequences, as the backend reports them. `kv_use`: used share of its KV cache, 0 to 1. `first_byte_ms`: time to the
    first byte of the last call. Null if unknown."""

    backend: str
    available: bool
    in_flight: int
    running: int | None
    waiting: int | None
    kv_use: float | None
    first_byte_ms: float | None


@router.get("/tenants/{tenant}/backend-loads", dependencies=[Reading])
def list_backend_loads(context: Context, tenant: str) -> tuple[BackendLoad, ...]:
    """List the load of the tenant's backends, as this gateway last measured it."""
    context.inventory.tenant(tenant)
    if context.fleet is None:
        return ()
    live = context.fleet.live()
    return tuple(_load(each.id, live[each.id], context.fleet.report(each.id)) for each in context.fleet.of(tenant))


def _load(backend: str, load: Load, report: EngineReport | None) -> BackendLoad:
    return BackendLoad(
        backend=backend,
        available=load.available,
        in_flight=load.in_flight,
        running=None if report is None else report.running,
        waiting=None if report is None else report.waiting,
        kv_use=None if report is None else report.kv_use,
        first_byte_ms=None if load.latency_s is None else round(load.latency_s * 1000, 1),
    )


@router.post("/tenants/{tenant}/deployments/check", dependencies=[Depends(RequirePermission("deployments.manage"))])
def check_deployment(context: Context, tenant: str, asked: WhatIf) -> Feasible:
    """Check whether that many replicas can run here. Nothing is started."""
    context.inventory.tenant(tenant)
    if asked.gpu == "auto":
        raise Invalid("this API does not choose a card; name one, or cpu")
    wanted = Deployment(
        tenant=tenant, id="what-if", model="what-if", weights=asked.weights, regions=("what-if",), gpu=asked.gpu,
        min_replicas=0, max_replicas=asked.replicas,
    )  # fmt: skip
    try:
        context.check_deployment(wanted)
    except Invalid as error:
        return Feasible(feasible=False, because=str(error))
    return Feasible(feasible=True, because="")


@router.get("/tenants/{tenant}/deployments", dependencies=[Reading])
def list_deployments(context: Context, tenant: str, after: After = None, limit: Limit = 50) -> Page[DeploymentRecord]:
    return deployments_in(context.database, tenant, after, limit)


@router.post("/tenants/{tenant}/deployments", status_code=201)
def create_deployment(
    actor: Manager, context: Context, response: Response, tenant: str, new: NewDeployment
) -> DeploymentRecord:
    """Create a deployment. Its backends are started within seconds of a request and serve this tenant only. A model has
    one deployment. If it could not run because of card, weights, model or memory, it is refused with the planner's
    reason."""
    for region in new.regions:
        context.check_region(region)
    if new.gpu == "auto":
        raise Invalid(
            "this API does not choose a card; name one, or cpu, or use `domicile deployment create --gpu auto`"
        )
    wanted = Deployment(
        tenant=tenant,
        **new.model_dump(exclude={"eur_per_hour"}),
        micro_eur_per_hour=round(new.eur_per_hour * MICRO),
    )
    context.check_deployment(wanted)
    return tagged(response, context.control(actor.name).create_deployment(wanted))


@router.get("/tenants/{tenant}/deployments/{deployment}", dependencies=[Reading])
def show_deployment(context: Context, response: Response, tenant: str, deployment: str) -> DeploymentRecord:
    return tagged(response, deployment_at(context.database, tenant, deployment))


@router.put("/tenants/{tenant}/deployments/{deployment}/scale")
def scale_deployment(
    actor: Manager,
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
    deployment: str,
    figures: Figures,
) -> DeploymentRecord:
    """Replace the figures. A drained deployment starts replicas again. More replicas than can run are refused with the
    reason."""
    scale = Scale(**figures.model_dump())
    context.check_scale(deployment_at(context.database, tenant, deployment), scale)
    return tagged(response, context.control(actor.name, expected).scale_deployment(tenant, deployment, scale))


class PinnedWeights(Body):
    """`weights_sha256`: digest as in the record and in `GET` of the deployment."""

    weights_sha256: Sha256


@router.post("/tenants/{tenant}/deployments/{deployment}/pin-weights")
def pin_weights(
    actor: Manager,
    context: Context,
    expected: IfMatch,
    response: Response,
    tenant: str,
    deployment: str,
    pinned: PinnedWeights,
) -> DeploymentRecord:
    """Require these weights of replicas that start from now on. Running ones continue."""
    control = context.control(actor.name, expected)
    return tagged(response, control.pin_weights(tenant, deployment, pinned.weights_sha256))


@router.post("/tenants/{tenant}/deployments/{deployment}/drain")
def drain_deployment(
    actor: Manager, context: Context, expected: IfMatch, response: Response, tenant: str, deployment: str
) -> DeploymentRecord:
    """Stop the backends after their running answers. None is started until the deployment is scaled again."""
    return tagged(response, context.control(actor.name, expected).drain_deployment(tenant, deployment))


@router.post("/tenants/{tenant}/deployments/{deployment}/delete")
def delete_deployment(
    actor: Manager, context: Context, expected: IfMatch, response: Response, tenant: str, deployment: str
) -> DeploymentRecord:
    """Drain and delete the deployment permanently. Its costs stay on record."""
    return tagged(response, context.control(actor.name, expected).delete_deployment(tenant, deployment))


@router.get("/tenants/{tenant}/deployments/{deployment}/replicas", dependencies=[Reading])
def list_replicas(
    context: Context,
    tenant: str,
    deployment: str,
    after: After = None,
    limit: Limit = 50,
    ended: Annotated[bool, Query(description="include replicas that have ended")] = False,
) -> Page[ReplicaRecord]:
    return replicas_of(context.database, tenant, deployment, after, limit, ended=ended)
