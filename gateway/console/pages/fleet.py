"""Deployments with their replicas, backends, and the regions that the policy allows."""

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from gateway.console import country_map
from gateway.console.admin_calls import Refused
from gateway.console.country_map import Country
from gateway.console.page import Page, form
from gateway.console.visit import Visit
from regions.fleet.deployment import Scale


async def deployments(visit: Visit) -> Response:
    return await _deployments(visit)


async def what_if(visit: Visit) -> Response:
    """Ask the planner whether so many replicas could run. Nothing is started."""
    sent = {name: visit.form.get(name, "").strip() for name in ("weights", "gpu", "replicas")}
    body = {**sent, "replicas": int(sent["replicas"]) if sent["replicas"].isdecimal() else sent["replicas"]}
    answer = await visit.api.call("POST", ("tenants", visit.tenant, "deployments", "check"), body=body)
    return await _deployments(visit, planned=answer.body)


async def _deployments(visit: Visit, planned: Any = None) -> Response:
    found = (await visit.of_tenant("deployments", limit=100))["items"]
    rows: list[dict[str, Any]] = []
    for one in found:
        if one["deleted_at"] is None:
            replicas = (await visit.of_tenant("deployments", one["id"], "replicas", limit=50))["items"]
            rows.append({**one, "replicas": replicas})
    costs: dict[str, Any] = {}
    if visit.may("usage.read"):
        for line in await visit.of_tenant("usage", "cost", by="deployment"):
            costs[line["deployment"]] = line
    return visit.render(
        "deployments.html", shown_tenant=visit.tenant, active="deployments", rows=rows, costs=costs,
        backends=(await visit.of_tenant("backends", limit=200))["items"], planned=planned,
        loads={one["backend"]: one for one in await visit.of_tenant("backend-loads")},
    )  # fmt: skip


async def scale(visit: Visit) -> Response:
    """Replace the scaling bounds by those of the form and keep all other values."""
    name = visit.request.path_params["deployment"]
    found = await visit.api.call("GET", ("tenants", visit.tenant, "deployments", name))
    kept = {field: found.body[field] for field in Scale.model_fields}
    for field in ("min_replicas", "max_replicas"):
        text = visit.form.get(field, "").strip()
        kept[field] = int(text) if text.isdecimal() else text
    await visit.change("PUT", "tenants", visit.tenant, "deployments", name, "scale", body=kept)
    return visit.to("deployments", done="deployment.scaled")


async def drain(visit: Visit) -> Response:
    await visit.change("POST", "tenants", visit.tenant, "deployments", visit.request.path_params["deployment"], "drain")
    return visit.to("deployments", done="deployment.drained")


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
        "places.html", shown_tenant=visit.tenant, active="places", summary=summary,
        verdicts=_by_reasons(checked["verdicts"]),
        catalogue=checked["catalogue"], facts=known, countries=countries, bases=bases, tiles=_tiles(visit, countries),
        basis_kind=lambda basis: country_map.kinds_of([basis])[-1],
    )  # fmt: skip


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
    form("/t/{tenant}/deployments/what-if", what_if, deployments),
    form("/t/{tenant}/deployments/{deployment}/scale", scale, deployments),
    form("/t/{tenant}/deployments/{deployment}/drain", drain, deployments, fresh=True),
    Page("/t/{tenant}/places", places),
)
