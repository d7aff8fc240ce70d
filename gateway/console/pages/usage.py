"""Limits, usage and cost by day and other dimensions, as charts, tables and CSV."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.responses import Response

from gateway.console import charts
from gateway.console.page import Page, form
from gateway.console.visit import Visit
from gateway.limits.limit_kinds import KINDS

PERIODS: Final = (7, 14, 30, 90)
GROUPS: Final = ("project", "model", "key", "region", "backend", "day")


def _base(visit: Visit) -> tuple[object, ...]:
    return ("usage",) if visit.tenant is None else ("tenants", visit.tenant, "usage")


async def show(visit: Visit) -> Response:
    asked = visit.request.query_params
    days = int(asked["days"]) if asked.get("days", "") in [str(each) for each in PERIODS] else 30
    groups = GROUPS if visit.tenant is not None else ("tenant", *GROUPS)
    by = asked.get("by", "") if asked.get("by") in groups else groups[0]
    today = datetime.now(UTC).date()
    since = today - timedelta(days=days - 1)
    by_day = {line["day"]: line for line in await visit.get(*_base(visit), by="day", since=since.isoformat())}
    rows = await visit.get(*_base(visit), by=by, since=since.isoformat())
    t, number = visit.language.text, visit.language.number
    shown = [(since + timedelta(days=n)).isoformat() for n in range(days)]
    tokens = [
        charts.Column(day[5:], used := _tokens(by_day.get(day)), f"{day}: {number(used)} {t('usage.tokens')}")
        for day in shown
    ]
    euros = [
        charts.Column(day[5:], spent := by_day.get(day, {}).get("eur", 0.0), f"{day}: {number(spent, 2)} €")
        for day in shown
    ]
    costs = charts.columns(euros, t("usage.cost_chart", days=days), number(max(each.value for each in euros), 2))
    chart = charts.columns(tokens, t("usage.chart", days=days), number(max(each.value for each in tokens)))
    visit.form = {"by": by, "days": str(days)}
    total = {name: sum(row[name] for row in rows) for name in ("requests", "tokens_in", "tokens_out", "eur")}
    newest_first = sorted(by_day.values(), key=lambda each: each["day"], reverse=True)
    return visit.render(
        "usage.html", by_day=newest_first, shown_tenant=visit.tenant,
        active="usage" if visit.tenant else "all_usage", rows=rows, by=by,
        days=days, periods=PERIODS, groups=groups, chart=chart, costs=costs, total=total, since=since.isoformat(),
        base=visit.here("usage") if visit.tenant else visit.path("usage"),
    )  # fmt: skip


def _tokens(line: Any) -> int:
    return 0 if line is None else int(line["tokens_in"] + line["tokens_out"])


async def as_csv(visit: Visit) -> Response:
    """Return the page's table as CSV, as written by the admin API."""
    asked = visit.request.query_params
    found = await visit.get(*_base(visit), by=asked.get("by", "day"), since=asked.get("since", ""), format="csv")
    headers = {"content-disposition": 'attachment; filename="usage.csv"'}
    return Response(found or "", headers=headers, media_type="text/csv; charset=utf-8")


async def limits(visit: Visit) -> Response:
    rows = await visit.of_tenant("limits", "all")
    projects = (await visit.of_tenant("projects", limit=200))["items"]
    place = visit.request.query_params.get("project", "")
    where = ("limits",) if not place else ("projects", place, "limits")
    present = await visit.api.call("GET", ("tenants", visit.tenant, *where))
    return visit.render(
        "limits.html", shown_tenant=visit.tenant, active="limits", rows=rows, kinds=KINDS, projects=projects,
        place=place, present=present.body,
        state=present.headers.get("etag", "").strip('"'),
        manages=visit.may("limits.manage" if place else "tenants.manage"),
    )  # fmt: skip


async def set_limits(visit: Visit) -> Response:
    place = visit.form.get("place", "")
    where = ("limits",) if not place else ("projects", place, "limits")
    figures = {kind.field: visit.form.get(kind.field, "").strip() or None for kind in KINDS}
    body = {name: _figure(text) for name, text in figures.items()}
    await visit.change("PUT", "tenants", visit.tenant, *where, body=body)
    return visit.to("limits", project=place, done="limits.set")


def _figure(text: str | None) -> float | int | str | None:
    """Parse a number. Other text is passed on, so that the API reports the error."""
    try:
        return None if text is None else float(text) if "." in text else int(text)
    except ValueError:
        return text


PAGES: Final = (
    Page("/t/{tenant}/usage", show),
    Page("/t/{tenant}/usage.csv", as_csv),
    Page("/usage", show),
    Page("/usage.csv", as_csv),
    Page("/t/{tenant}/limits", limits),
    form("/t/{tenant}/limits/set", set_limits, limits),
)
