"""Usage and costs from the ledger, of one tenant or of all; and the curves of its calls."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response, StreamingResponse

from gateway.admin.calls.access import Context, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Day
from gateway.store.reports.cost_report import Cost, CostDimension, cost
from gateway.store.reports.curves import CallPoint, PeriodName, call_curves
from gateway.store.reports.inventory import Inventory
from gateway.store.reports.usage_csv import csv_lines, json_lines
from gateway.store.reports.usage_report import Dimension, LedgerEntry, Span, Usage, entries, usage

router = APIRouter(tags=["usage"], route_class=IdempotentRoute)

By = Annotated[list[Dimension], Query(description="dimension to group by; may be repeated")]
Format = Annotated[Literal["json", "csv"], Query()]
CSV = "text/csv; charset=utf-8"
JSON_LINES = "application/jsonl"
LineFormat = Annotated[Literal["csv", "jsonl"], Query()]
AS_LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: {"schema": {"type": "string"}} for kind in (CSV, JSON_LINES)}}
}
AS_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {CSV: {"schema": {"type": "string"}}}}}


def span_of(since: Day | None = None, until: Day | None = None) -> Span:
    """Return the time span. `since`, `until`: days in UTC, both included."""
    return Span(since=since, until=until)


SpanOf = Annotated[Span, Depends(span_of)]


@router.get(
    "/tenants/{tenant}/usage",
    dependencies=[Depends(RequirePermission("usage.read"))],
    response_model=list[Usage],
    responses=AS_CSV,
)
def show_usage(
    context: Context,
    tenant: str,
    span: SpanOf,
    by: By = [],  # noqa: B006  # FastAPI copies it
    format: Format = "json",
) -> list[Usage] | Response:
    """Return requests, tokens, backend seconds and costs of the tenant."""
    return _report(usage(context.database, tenant=tenant, by=by, span=span), format)


@router.get(
    "/usage", dependencies=[Depends(RequirePermission("usage.read-all"))], response_model=list[Usage], responses=AS_CSV
)
def show_all_usage(context: Context, span: SpanOf, by: By = [], format: Format = "json") -> list[Usage] | Response:  # noqa: B006
    """Return requests, tokens, backend seconds and costs of all tenants."""
    return _report(usage(context.database, by=by, span=span), format)


CostBy = Annotated[list[CostDimension], Query(description="dimension to group by; may be repeated")]


@router.get(
    "/tenants/{tenant}/usage/cost",
    dependencies=[Depends(RequirePermission("usage.read"))],
    response_model=list[Cost],
    responses=AS_CSV,
)
def show_cost(
    context: Context,
    tenant: str,
    span: SpanOf,
    by: CostBy = [],  # noqa: B006  # FastAPI copies it
    format: Format = "json",
) -> list[Cost] | Response:
    """Return the cost of the tenant's deployments by time, the idle part of it, and the resulting cost of a million
    tokens."""
    return _costs(cost(context.database, tenant=tenant, by=by, span=span), format)


@router.get(
    "/usage/cost",
    dependencies=[Depends(RequirePermission("usage.read-all"))],
    response_model=list[Cost],
    responses=AS_CSV,
)
def show_all_cost(context: Context, span: SpanOf, by: CostBy = [], format: Format = "json") -> list[Cost] | Response:  # noqa: B006
    """Return the cost by time of the deployments of all tenants."""
    return _costs(cost(context.database, by=by, span=span), format)


@router.get(
    "/tenants/{tenant}/usage/calls",
    dependencies=[Depends(RequirePermission("usage.read"))],
    response_class=StreamingResponse,
    responses=AS_LINES,
)
def export_calls(context: Context, tenant: str, span: SpanOf, format: LineFormat = "csv") -> StreamingResponse:
    """Export all finished calls of the tenant: CSV, or one JSON object a line."""
    Inventory(context.database).tenant(tenant)  # 404 before the first byte
    return _exported(entries(context.database, tenant=tenant, span=span), format)


@router.get(
    "/usage/calls",
    dependencies=[Depends(RequirePermission("usage.read-all"))],
    response_class=StreamingResponse,
    responses=AS_LINES,
)
def export_all_calls(context: Context, span: SpanOf, format: LineFormat = "csv") -> StreamingResponse:
    """Export all finished calls of all tenants: CSV, or one JSON object a line."""
    return _exported(entries(context.database, span=span), format)


def _exported(rows: Iterable[LedgerEntry], format: str) -> StreamingResponse:
    lines = csv_lines(rows, LedgerEntry) if format == "csv" else json_lines(rows)
    return StreamingResponse((line.encode() for line in lines), media_type=CSV if format == "csv" else JSON_LINES)


@router.get("/tenants/{tenant}/usage/curves", dependencies=[Depends(RequirePermission("tenant.read"))])
def show_curves(context: Context, tenant: str, period: PeriodName = "24h") -> list[CallPoint]:
    """Return rates, refusals, latency and written tokens over the last hour (a point a minute), day (ten minutes) or
    week (an hour), oldest first. Calls are counted when they end."""
    return call_curves(context.database, tenant, period, context.now().timestamp())


def _costs(lines: list[Cost], format: str) -> list[Cost] | Response:
    return Response("".join(csv_lines(lines, Cost)), media_type=CSV) if format == "csv" else lines


def _report(lines: list[Usage], format: str) -> list[Usage] | Response:
    return Response("".join(csv_lines(lines, Usage)), media_type=CSV) if format == "csv" else lines
