"""Start page of the installation for its staff, and of a tenant for its people."""

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from starlette.responses import RedirectResponse, Response

from gateway.console.drawing import charts
from gateway.console.page import Page
from gateway.console.visit import Visit, path
from gateway.identity.roles import Permission

DAYS: Final = 14


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
        "overview.html",
        shown_tenant=visit.tenant,
        active="overview",
        summary=await visit.of_tenant("calls-summary"),
    )


async def live(visit: Visit) -> Response:
    """Return only the figures of the newest calls. The page fetches them every few seconds."""
    summary = await visit.of_tenant("calls-summary")
    return visit.render("_figures.html", shown_tenant=visit.tenant, summary=summary)


async def days(visit: Visit) -> Response:
    """Return the chart of calls by day. The page fetches it separately, since a tenant with many keys has many sums to
    add up."""
    today = datetime.now(UTC).date()
    since = today - timedelta(days=DAYS - 1)
    lines = await visit.of_tenant("usage", by="day", since=since.isoformat())
    by_day = {line["day"]: line for line in lines}
    shown = [(since + timedelta(days=n)).isoformat() for n in range(DAYS)]
    return visit.render(
        "_days.html",
        shown_tenant=visit.tenant,
        today=by_day.get(today.isoformat()),
        chart=_chart(visit, shown, by_day),
        period={name: sum(line[name] for line in lines) for name in ("requests", "eur")},
    )


def _chart(visit: Visit, days: Iterable[str], by_day: dict[str, Any]) -> Any:
    t, number = visit.language.text, visit.language.number
    values = []
    for day in days:
        calls = by_day.get(day, {}).get("requests", 0)
        values.append(charts.Column(day[5:], calls, f"{day}: {number(calls)} {t('overview.calls')}"))
    return charts.columns(values, t("overview.chart", days=DAYS), number(max(each.value for each in values)))


async def duties(visit: Visit) -> Response:
    """Return the open duties: for scripts the list alone, which the page fetches every few seconds."""
    await visit.of_tenant()
    found = await _duties(visit)
    if visit.request.headers.get("hx-request") == "true":
        return visit.render("_duties.html", shown_tenant=visit.tenant, duties=found)
    return visit.render("duties.html", shown_tenant=visit.tenant, active="overview", duties=found)


class Duty(NamedTuple):
    """`key`: of its text; `values`: filled in; `link`: where it is done; `due`: until when; `kind`: bad, warn or
    empty."""

    key: str
    values: dict[str, str]
    link: str
    due: str = ""
    kind: str = ""


async def _duties(visit: Visit) -> list[Duty]:
    """Return the open duties that the user may do something about, what is overdue first."""
    found = [
        *await _proposals(visit, "policies.approve", "policies.activate", visit.of_tenant, visit.here),
        *await _operators_proposals(visit),
        *await _clocks(visit),
        *await _requests(visit),
        *await _holds(visit),
    ]
    for stop in await visit.of_tenant("oversight"):
        if stop["resumed_at"] is None:
            name = stop["project"] or stop["ai_system_id"]
            found.append(Duty("duty.stopped", {"name": name}, visit.here("oversight"), kind="bad"))
    if visit.may("staff.read") and (rows := await visit.get("weak-settings")):
        found.append(Duty("duty.weak", {"count": str(len(rows))}, visit.path("weak"), kind="warn"))
    return sorted(found, key=lambda each: (each.kind != "bad", each.kind != "warn", each.due or "9"))


async def _proposals(
    visit: Visit,
    approves: Permission,
    activates: Permission,
    read: Callable[..., Awaitable[Any]],
    here: Callable[..., str],
) -> list[Duty]:
    """Return proposals that wait for this user: to be approved, if another made them, or activated."""
    if not (visit.may(approves) or visit.may(activates)):
        return []
    found = []
    for each in await read("policy-proposals"):
        if each["withdrawn_at"] is not None or each["version"] is not None:
            continue
        link = here("policies", "proposals", each["number"], project=each["project"] or "")
        values = {"name": str(each["number"])}
        if each["approved_by"] is None and visit.may(approves) and each["submitted_by"] != visit.me["person"]:
            found.append(Duty("duty.approve", values, link))
        if each["approved_by"] is not None and each["activates_at"] is None and visit.may(activates):
            found.append(Duty("duty.activate", values, link))
    return found


async def _operators_proposals(visit: Visit) -> list[Duty]:
    async def read(name: str) -> Any:
        return await visit.get("operator", name)

    def here(*segments: object, **query: object) -> str:
        return path("operator", *segments, **query)

    keys = {"duty.approve": "duty.operator_approve", "duty.activate": "duty.operator_activate"}
    found = await _proposals(visit, "operator-policy.approve", "operator-policy.activate", read, here)
    return [each._replace(key=keys[each.key]) for each in found]


async def _clocks(visit: Visit) -> list[Duty]:
    """Return what authorities have to be told of open incidents."""
    if not visit.may("record.read"):
        return []
    found = []
    for case in await visit.of_tenant("incidents"):
        for one in case["deadlines"] if case["closed"] is None else ():
            if one["state"] in ("running", "overdue"):
                kind = "bad" if one["state"] == "overdue" else "warn"
                values = {"name": one["clock"], "article": visit.language.article(one["article"])}
                found.append(Duty("duty.incident", values, visit.here("incidents"), one["due"] or "", kind))
    return found


async def _requests(visit: Visit) -> list[Duty]:
    """Return requests of persons that wait for an answer."""
    if not visit.may("rights.act"):
        return []
    found = []
    for each in await visit.of_tenant("rights", "requests"):
        if each["closed_at"] is None:
            kind = "bad" if each["state"] == "overdue" else "warn"
            values = {
                "name": visit.language.known(f"right.{each['right']}", each["right"]),
                "article": visit.language.article(each["article"]),
            }
            found.append(Duty("duty.request", values, visit.here("rights"), each["due_at"], kind))
    return found


async def _holds(visit: Visit) -> list[Duty]:
    """Return legal holds that stand."""
    if not visit.may("rights.act"):
        return []
    holds = await visit.of_tenant("rights", "holds")
    return [Duty("duty.hold", {"name": each["reason"]}, visit.here("rights")) for each in holds]


async def weak(visit: Visit) -> Response:
    """List the weak settings of the gateway, as ``domicile doctor`` names them."""
    return visit.render("weak.html", active="weak", rows=await visit.get("weak-settings"))


PAGES: Final = (
    Page("/", home),
    Page("/t/{tenant}", show),
    Page("/t/{tenant}/live", live),
    Page("/t/{tenant}/days", days),
    Page("/t/{tenant}/duties", duties),
    Page("/weak", weak),
)
