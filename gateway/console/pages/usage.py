"""Limits, usage and cost by day and other dimensions, as charts, tables and CSV."""

from asyncio import gather
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from starlette.responses import Response

from gateway.console.drawing import charts
from gateway.console.page import Page, form
from gateway.console.visit import Visit
from gateway.limits.limit_kinds import KINDS

PERIODS: Final = (7, 14, 30, 90)
GROUPS: Final = ("project", "model", "key", "region", "backend", "day")


def _base(visit: Visit) -> tuple[object, ...]:
    return ("usage",) if visit.tenant is None else ("tenants", visit.tenant, "usage")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the form asks for: the last `days`, from `since` on, grouped `by`."""

    by: str
    days: int
    groups: tuple[str, ...]

    @classmethod
    def of(cls, visit: Visit) -> "Asked":
        """Return what the URL says; defaults where it says nothing known."""
        asked = visit.request.query_params
        groups = GROUPS if visit.tenant is not None else ("tenant", *GROUPS)
        by = asked.get("by", "") if asked.get("by") in groups else groups[0]
        days = int(asked["days"]) if asked.get("days", "") in [str(each) for each in PERIODS] else 30
        visit.form = {"by": by, "days": str(days)}
        return cls(by, days, groups)

    @property
    def since(self) -> date:
        return datetime.now(UTC).date() - timedelta(days=self.days - 1)


async def show(visit: Visit) -> Response:
    """Show the form at once; the page fetches the figures separately, since a tenant with many keys has many sums to
    add up."""
    if visit.tenant is not None:
        await visit.of_tenant()  # 404 before anything else
    visit.need("usage.read" if visit.tenant is not None else "usage.read-all")
    return _render(visit, "usage.html", Asked.of(visit), figures=None)


async def figures(visit: Visit) -> Response:
    """Return charts and table: for scripts them alone, otherwise the whole page."""
    asked = Asked.of(visit)
    since = asked.since.isoformat()
    lines, rows = await gather(
        visit.get(*_base(visit), by="day", since=since), visit.get(*_base(visit), by=asked.by, since=since)
    )
    shown = {
        **_charts(visit, asked, {line["day"]: line for line in lines}),
        "rows": rows,
        "by_day": sorted(lines, key=lambda each: str(each["day"]), reverse=True),
        "total": {name: sum(row[name] for row in rows) for name in ("requests", "tokens_in", "tokens_out", "eur")},
    }
    template = "_usage.html" if visit.request.headers.get("hx-request") == "true" else "usage.html"
    return _render(visit, template, asked, figures=shown)


def _render(visit: Visit, template: str, asked: Asked, figures: Any) -> Response:
    return visit.render(
        template,
        shown_tenant=visit.tenant,
        active="usage" if visit.tenant else "all_usage",
        by=asked.by,
        days=asked.days,
        periods=PERIODS,
        groups=asked.groups,
        since=asked.since.isoformat(),
        figures=figures,
        base=visit.here("usage") if visit.tenant else visit.path("usage"),
    )


def _charts(visit: Visit, asked: Asked, by_day: dict[str, Any]) -> dict[str, Any]:
    """Return the charts of tokens and of cost, a column a day."""
    t, number = visit.language.text, visit.language.number
    tokens, euros = [], []
    for at in range(asked.days):
        day = (asked.since + timedelta(days=at)).isoformat()
        used, spent = _tokens(by_day.get(day)), by_day.get(day, {}).get("eur", 0.0)
        tokens.append(charts.Column(day[5:], used, f"{day}: {number(used)} {t('usage.tokens')}"))
        euros.append(charts.Column(day[5:], spent, f"{day}: {number(spent, 2)} €"))
    return {
        "chart": charts.columns(tokens, t("usage.chart", days=asked.days), number(max(each.value for each in tokens))),
        "costs": charts.columns(
            euros, t("usage.cost_chart", days=asked.days), number(max(each.value for each in euros), 2)
        ),
    }


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
        "limits.html",
        shown_tenant=visit.tenant,
        active="limits",
        rows=rows,
        kinds=KINDS,
        projects=projects,
        place=place,
        present=present.body,
        state=present.headers.get("etag", "").strip('"'),
        manages=visit.may("limits.manage" if place else "tenants.manage"),
    )


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
    Page("/t/{tenant}/usage/figures", figures),
    Page("/t/{tenant}/usage.csv", as_csv),
    Page("/usage", show),
    Page("/usage/figures", figures),
    Page("/usage.csv", as_csv),
    Page("/t/{tenant}/limits", limits),
    form("/t/{tenant}/limits/set", set_limits, limits),
)
