"""Deployments of a tenant's models, their replicas, and the load of its backends."""

from typing import Annotated, Literal, Self

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
from gateway.store.reports.cost_report import eur_per_million
from gateway.store.reports.curves import BackendPoint, PeriodName, backend_curves
from gateway.store.reports.fleet_inventory import deployment_at, deployments_in, replicas_of
from regions.fleet.cards import CPU, Cards
from regions.fleet.deployment import MAX_NAME, MAX_REPLICAS, Deployment, Kind, Place, Scale, Sha256, check_kind
from regions.fleet.engine_figures import EngineRates
from regions.fleet.fleet import Backend, EngineReport, Load, Role
from regions.launchers.planning import KNOWN_CARDS

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
            check_kind(self.kind, self.prefill)
        return self


class WhatIf(Body):
    """A number of replicas of these weights on these cards."""

    weights: Weights
    gpu: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$"), AfterValidator(_in_one_spelling)] = CPU
    replicas: Annotated[int, Field(ge=1, le=1000)] = 1


class PlanAsked(Body):
    """What the planner predicts for. `gpu`: the cards of one replica: `h100`, `4xh100`. `context`: tokens that a call
    may have, by default as many as the model can; `concurrency`: calls at one time; `quantization`: of the weights, by
    default as they are stored; `eur_per_hour`: of one replica."""

    weights: Weights
    gpu: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$"), AfterValidator(_in_one_spelling)]
    context: Annotated[int, Field(ge=1, le=10**8)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=4096)] = 32
    quantization: Literal["none", "fp8", "fp8-block", "int8", "w4a16", "awq", "gptq", "mxfp4"] | None = None
    eur_per_hour: Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)] | None = None


class Planned(ResponseBody):
    """The planner's prediction of one replica, as `domicile plan` makes it. `refusal`: why it could not run, and what
    would do; the rates are then 0. Bytes are of each card: `weights_bytes`, `cache_bytes` (of the KV cache) and
    `peak_bytes` in all. `max_concurrency`: calls of a whole `context` that the cache holds. `tokens_per_s`: written
    with `concurrency` calls of `prompt` tokens in and `answer` out; `step_ms`: between two tokens of an answer then.
    `calibrated`: measured on this card, not scaled from another. `fewest_cards`: that would do, None where none would.
    `eur_per_million_tokens`: written ones, at full use."""

    card: str
    cards: int
    calibrated: bool
    context: int
    concurrency: int
    prompt: int
    answer: int
    parameters: int
    weights_bytes: int
    cache_bytes: int
    peak_bytes: int
    max_concurrency: int
    first_token_ms: float
    step_ms: float
    tokens_per_s: float
    fewest_cards: int | None
    refusal: str | None
    eur_per_million_tokens: float | None


class Feasible(ResponseBody):
    """Result of a check. `because`: the planner's reason if they cannot run."""

    feasible: bool
    because: str


class BackendLoad(ResponseBody):
    """Current state of a backend, as known to this gateway. `in_flight`: calls of this gateway. `running`, `waiting`:
    sequences, as the backend reports them. `kv_use`: used share of its KV cache, 0 to 1. `first_byte_ms`: time to the
    first byte of the last call. As the backend reports them for the last 30 s: `tokens_per_s`: tokens written, of all
    calls; `first_token_ms`: the mean; `joules_per_1000_tokens`: energy of its cards for written tokens; `gpu_use`,
    `gpu_memory`: used shares of its cards' time and memory, 0 to 1; `watts`: power of its cards. Null if unknown."""

    backend: str
    available: bool
    role: Role
    in_flight: int
    running: int | None
    waiting: int | None
    kv_use: float | None
    first_byte_ms: float | None
    tokens_per_s: float | None
    first_token_ms: float | None
    joules_per_1000_tokens: float | None
    gpu_use: float | None
    gpu_memory: float | None
    watts: float | None


@router.get("/tenants/{tenant}/backend-loads", dependencies=[Reading])
def list_backend_loads(context: Context, tenant: str) -> tuple[BackendLoad, ...]:
    """List the load of the tenant's backends, as this gateway last measured it."""
    context.inventory.tenant(tenant)
    if context.fleet is None:
        return ()
    fleet, live = context.fleet, context.fleet.live()
    return tuple(_load(each, live[each.id], fleet.report(each.id), fleet.rates(each.id)) for each in fleet.of(tenant))


@router.get("/tenants/{tenant}/backend-curves", dependencies=[Reading])
def show_backend_curves(context: Context, tenant: str, period: PeriodName = "24h") -> list[BackendPoint]:
    """Return what the tenant's backends told of queue, KV cache, speed and power over the last hour (a point a minute),
    day (ten minutes) or week (an hour), oldest first."""
    return backend_curves(context.database, tenant, period, context.now().timestamp())


def _load(backend: Backend, load: Load, report: EngineReport | None, rates: EngineRates | None) -> BackendLoad:
    rates = rates or EngineRates()
    return BackendLoad(
        backend=backend.id,
        available=load.available,
        role=backend.role,
        in_flight=load.in_flight,
        running=None if report is None else report.running,
        waiting=None if report is None else report.waiting,
        kv_use=None if report is None else report.kv_use,
        first_byte_ms=None if load.latency_s is None else round(load.latency_s * 1000, 1),
        **{name: None if value is None else round(value, 3) for name, value in rates._asdict().items()},
    )


@router.post("/tenants/{tenant}/deployments/check", dependencies=[Depends(RequirePermission("deployments.manage"))])
def check_deployment(context: Context, tenant: str, asked: WhatIf) -> Feasible:
    """Check whether that many replicas can run here. Nothing is started."""
    context.inventory.tenant(tenant)
    if asked.gpu == "auto":
        raise Invalid("this API does not choose a card; name one, or cpu")
    wanted = Deployment(
        tenant=tenant,
        id="what-if",
        model="what-if",
        weights=asked.weights,
        regions=("what-if",),
        gpu=asked.gpu,
        min_replicas=0,
        max_replicas=asked.replicas,
    )
    try:
        context.check_deployment(wanted)
    except Invalid as error:
        return Feasible(feasible=False, because=str(error))
    return Feasible(feasible=True, because="")


@router.post("/tenants/{tenant}/deployments/plan", dependencies=[Depends(RequirePermission("deployments.manage"))])
def plan_deployment(context: Context, tenant: str, asked: PlanAsked) -> Planned:
    """Memory and speed of a replica, from the configuration of its model alone. Nothing is loaded or started."""
    context.inventory.tenant(tenant)
    cards = Cards.parse(asked.gpu) if asked.gpu != "auto" else None
    if cards is None or cards.name not in KNOWN_CARDS:
        raise Invalid(f"the planner predicts for GPUs; name one of {', '.join(KNOWN_CARDS)}")
    made = context.plan(
        asked.weights,
        cards,
        {"calls": asked.concurrency, "context": asked.context, "quantization": asked.quantization},
    )
    memory, price = made["memory"], None
    if asked.eur_per_hour is not None and made["refusal"] is None:
        price = eur_per_million(asked.eur_per_hour, float(made["tokens_per_s"]))
    same = Planned.model_fields.keys() & made.keys()
    return Planned(
        **{name: made[name] for name in same},
        weights_bytes=memory["weights"],
        cache_bytes=memory["cache"],
        peak_bytes=memory["peak"],
        eur_per_million_tokens=price,
    )


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


@router.post("/tenants/{tenant}/deployments/{deployment}/sleep")
def put_to_sleep(
    actor: Manager, context: Context, expected: IfMatch, response: Response, tenant: str, deployment: str
) -> DeploymentRecord:
    """Running answers end, then its replicas sleep, also where it has to have some at least, until a call waits or it
    is woken. Those that cannot sleep end."""
    return tagged(response, context.control(actor.name, expected).put_deployment_to_sleep(tenant, deployment))


@router.post("/tenants/{tenant}/deployments/{deployment}/wake")
def wake_deployment(
    actor: Manager, context: Context, expected: IfMatch, response: Response, tenant: str, deployment: str
) -> DeploymentRecord:
    """One of its replicas wakes, or starts where none sleeps, before a call needs it."""
    return tagged(response, context.control(actor.name, expected).wake_deployment(tenant, deployment))


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
