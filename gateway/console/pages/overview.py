"""Start page of the installation for its staff, and of a tenant for its people."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.responses import RedirectResponse, Response

from gateway.console import charts
from gateway.console.page import Page
from gateway.console.visit import Visit, path

DAYS: Final = 14
PROPOSED: Final = "submitted"


async def home(visit: Visit) -> Response:
    """Redirect people of a tenant to their tenant, and staff to the list of tenants if permitted."""
    tenant = visit.me["tenant"]
    if tenant is not None:
        return RedirectResponse(path("t", tenant), 303)
    if visit.may("tenants.list"):
        return RedirectResponse(path("tenants"), 303)
    return RedirectResponse(path("account"), 303)


async def show(visit: Visit) -> Response:
    await visit.of_tenant()  # 404 before anything else
    return visit.render(
        "overview.html", shown_tenant=visit.tenant, active="overview", duties=await _duties(visit),
        summary=await visit.of_tenant("calls-summary"),
    )  # fmt: skip


async def live(visit: Visit) -> Response:
    """Return only the figures of the newest calls. The page fetches them every few seconds."""
    summary = await visit.of_tenant("calls-summary")
    return visit.render("_figures.html", shown_tenant=visit.tenant, summary=summary)


async def days(visit: Visit) -> Response:
    """Return the chart of calls by day. The page fetches it separately, since summing the ledger of a busy tenant
    takes a second."""
    today = datetime.now(UTC).date()
    since = today - timedelta(days=DAYS - 1)
    lines = await visit.of_tenant("usage", by="day", since=since.isoformat())
    by_day = {line["day"]: line for line in lines}
    shown = [(since + timedelta(days=n)).isoformat() for n in range(DAYS)]
    return visit.render(
        "_days.html", shown_tenant=visit.tenant, today=by_day.get(today.isoformat()),
        chart=_chart(visit, shown, by_day),
        period={name: sum(line[name] for line in lines) for name in ("requests", "eur")},
    )  # fmt: skip


def _chart(visit: Visit, days: Iterable[str], by_day: dict[str, Any]) -> Any:
    t, number = visit.language.text, visit.language.number
    values = []
    for day in days:
        calls = by_day.get(day, {}).get("requests", 0)
        values.append(charts.Column(day[5:], calls, f"{day}: {number(calls)} {t('overview.calls')}"))
    return charts.columns(values, t("overview.chart", days=DAYS), number(max(each.value for each in values)))


async def _duties(visit: Visit) -> list[tuple[str, str, str]]:
    """Return open duties: key of the text, its values, and the link."""
    found = []
    if visit.may("policies.approve"):
        for each in await visit.of_tenant("policy-proposals"):
            open_one = each["approved_by"] is None and each["withdrawn_at"] is None and each["version"] is None
            if open_one:
                scope = each["project"] or ""
                link = visit.here("policies", "proposals", each["number"], project=scope)
                found.append(("duty.approve", f"{each['number']}", link))
    for stop in await visit.of_tenant("oversight"):
        if stop["resumed_at"] is None:
            found.append(("duty.stopped", stop["project"] or stop["ai_system_id"], visit.here("oversight")))
    return found


PAGES: Final = (
    Page("/", home),
    Page("/t/{tenant}", show),
    Page("/t/{tenant}/live", live),
    Page("/t/{tenant}/days", days),
)
