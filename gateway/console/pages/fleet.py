"""Deployments with their replicas, backends, and the regions that the policy allows."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from gateway.console import running
from gateway.console.admin_calls import Refused
from gateway.console.drawing import country_map
from gateway.console.drawing.country_map import Country
from gateway.console.page import Page, form
from gateway.console.visit import Visit
from gateway.records.fleet import DeploymentRecord
from regions.fleet.cards import CPU
from regions.fleet.deployment import Scale
from regions.launchers.planning import KNOWN_CARDS, QUANTIZATIONS

WHAT_IF: Final = frozenset(
    {"weights", "gpu", "count", "replicas", "quantization", "context", "concurrency", "eur_per_hour"}
)
"""Fields of the form for the planner."""


async def deployments(visit: Visit) -> Response:
    return await _deployments(visit)


async def live(visit: Visit) -> Response:
    """The part of the page that is fetched again every few seconds."""
    return visit.render("_running.html", **await _running(visit))


async def what_if(visit: Visit) -> Response:
    """Ask the planner whether so many replicas could run, and how fast one would be. Nothing is started."""
    sent = {name: text.strip() for name, text in visit.form.items() if name in WHAT_IF and text.strip()}
    card, count = sent.get("gpu", ""), sent.get("count", "1")
    gpu = card if count == "1" else f"{count}x{card}"
    path = ("tenants", visit.tenant, "deployments")
    weights = sent.get("weights", "")
    plan = None
    if card != CPU:
        body: dict[str, Any] = {"weights": weights, "gpu": gpu}
        body |= {name: _whole(sent[name]) for name in ("context", "concurrency", "quantization") if name in sent}
        if "eur_per_hour" in sent:
            body["eur_per_hour"] = sent["eur_per_hour"].replace(",", ".")
        plan = (await visit.api.call("POST", (*path, "plan"), body=body)).body
    body = {"weights": weights, "gpu": gpu, "replicas": _whole(sent.get("replicas", "1"))}
    check = (await visit.api.call("POST", (*path, "check"), body=body)).body
    return await _deployments(visit, planned={"check": check, "plan": plan})


def _whole(text: str) -> int | str:
    """A number as such; what is none is left to the API, which says so."""
    return int(text) if text.isdecimal() else text


async def _running(visit: Visit) -> dict[str, Any]:
    """What both the page and its live part show."""
    found: list[dict[str, Any]] = []
    for one in (await visit.of_tenant("deployments", limit=100))["items"]:
        if one["deleted_at"] is None:
            replicas = (await visit.of_tenant("deployments", one["id"], "replicas", limit=50))["items"]
            digest = DeploymentRecord.model_validate(one).digest()
            found.append({**one, "replicas": replicas, "digest": digest})
    loads = {one["backend"]: one for one in await visit.of_tenant("backend-loads")}
    backends = (await visit.of_tenant("backends", limit=200))["items"]
    prices = {one["id"]: one["eur_per_hour"] for one in found}
    rows = running.rows_of(found, backends, loads)
    for one in found:
        own = [row for row in rows if row.deployment == one["id"]]
        one |= {"sums": running.sums_of(own, prices), "states": Counter(row.state for row in own)}
    return {
        "deployments": found, "backends": backends, "loads": loads, "rows": rows,
        "sums": running.sums_of(rows, prices),
    }  # fmt: skip


async def _deployments(visit: Visit, planned: Any = None) -> Response:
    costs: dict[str, Any] = {}
    if visit.may("usage.read"):
        for line in await visit.of_tenant("usage", "cost", by="deployment"):
            costs[line["deployment"]] = line
    return visit.render(
        "deployments.html",
        shown_tenant=visit.tenant,
        active="deployments",
        costs=costs,
        planned=planned,
        cards=(CPU, *KNOWN_CARDS),
        formats=QUANTIZATIONS,
        **await _running(visit),
    )


async def scale(visit: Visit) -> Response:
    """Replace the scaling bounds by those of the form and keep all other values."""
    name = visit.request.path_params["deployment"]
    found = await visit.api.call("GET", ("tenants", visit.tenant, "deployments", name))
    kept = {field: found.body[field] for field in Scale.model_fields}
    for field in ("min_replicas", "max_replicas"):
        kept[field] = _whole(visit.form.get(field, "").strip())
    await visit.change("PUT", "tenants", visit.tenant, "deployments", name, "scale", body=kept)
    return visit.to("deployments", done="deployment.scaled")


async def drain(visit: Visit) -> Response:
    await visit.change("POST", "tenants", visit.tenant, "deployments", visit.request.path_params["deployment"], "drain")
    return visit.to("deployments", done="deployment.drained")


async def put_to_sleep(visit: Visit) -> Response:
    await visit.change("POST", "tenants", visit.tenant, "deployments", visit.request.path_params["deployment"], "sleep")
    return visit.to("deployments", done="deployment.put_to_sleep")


async def wake(visit: Visit) -> Response:
    await visit.change("POST", "tenants", visit.tenant, "deployments", visit.request.path_params["deployment"], "wake")
    return visit.to("deployments", done="deployment.woken")


async def places(visit: Visit) -> Response:
    """Show where calls ran and which regions the policy allows, with the rules that refuse the others."""
    summary = await visit.of_tenant("calls-summary")
    checked: dict[str, Any] = {"verdicts": (), "catalogue": ""}
    try:
        checked = (await visit.api.call("POST", ("tenants", visit.tenant, "regions", "check"), body={})).body
    except Refused as refused:
        if refused.status != 422:
            raise
        visit.problem = refused  # no policy is active: the other tables are still shown
    known = {one["region"]: one for one in (await visit.get("regions"))["regions"]}
    countries = country_map.countries_of(summary["places"], checked["verdicts"], known)
    bases: dict[str, int] = {}
    for one in summary["places"]:
        bases[one["basis"]] = bases.get(one["basis"], 0) + one["calls"]
    return visit.render(
        "places.html",
        shown_tenant=visit.tenant,
        active="places",
        summary=summary,
        verdicts=_by_reasons(checked["verdicts"]),
        catalogue=checked["catalogue"],
        facts=known,
        countries=countries,
        bases=bases,
        tiles=_tiles(visit, countries),
        basis_kind=lambda basis: country_map.kinds_of([basis])[-1],
    )


def _by_reasons(verdicts: Sequence[Any]) -> list[list[Any]]:
    """Return the verdicts in groups of the same reasons, the allowed regions first: a policy refuses many regions for
    one reason, which the page then says once."""
    groups: dict[str, list[Any]] = {}
    for each in sorted(verdicts, key=lambda each: not each["allowed"]):
        groups.setdefault(f"{each['allowed']} {each['reasons']}", []).append(each)
    return list(groups.values())


def _tiles(visit: Visit, countries: list[Country]) -> list[tuple[str, Any]]:
    """Return key and image of each part of the world."""
    t, number, known = visit.language.text, visit.language.number, visit.language.known

    def said(one: Country) -> str:
        facts = [known(f"country.{one.code}", one.code)]
        if one.ran:
            facts.append(t("map.ran", count=number(one.ran)))
        if one.stored:
            facts.append(t("map.stored", count=number(one.stored)))
        facts += [known(f"basis.{kind}", kind) for kind in one.kinds]
        if one.allowed is not None:
            facts.append(t("map.may" if one.allowed else "map.may_not"))
        return ", ".join(facts)

    return [
        (name, country_map.draw(rows, countries, t(f"map.{name}"), said))
        for name, rows in country_map.parts_of(countries)
    ]


PAGES: Final = (
    Page("/t/{tenant}/deployments", deployments),
    Page("/t/{tenant}/deployments/live", live),
    form("/t/{tenant}/deployments/what-if", what_if, deployments),
    form("/t/{tenant}/deployments/{deployment}/scale", scale, deployments),
    form("/t/{tenant}/deployments/{deployment}/drain", drain, deployments, fresh=True),
    form("/t/{tenant}/deployments/{deployment}/sleep", put_to_sleep, deployments, fresh=True),
    form("/t/{tenant}/deployments/{deployment}/wake", wake, deployments),
    Page("/t/{tenant}/places", places),
)
