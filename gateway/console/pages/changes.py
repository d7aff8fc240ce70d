"""Recorded changes of a tenant or of the installation: who changed what, each with its proof, and as CSV."""

import csv
import json
from io import StringIO
from typing import Any, Final

from starlette.responses import Response

from gateway.console import moments
from gateway.console.admin_calls import Refused
from gateway.console.page import Page
from gateway.console.visit import Visit

KINDS: Final = (
    "policies", "keys", "people", "projects", "limits", "fleet", "rights", "oversight", "incidents", "record",
    "sessions",
)  # fmt: skip
FILTERS: Final = ("kind", "who", "since", "until")
CSV_FIELDS: Final = ("seq", "ts", "type", "actor", "person", "name", "what", "project", "reason", "more")
CSV_PAGES: Final = 50
"""Of 200 changes: what one file holds at the most."""
PLACES: Final = {
    "keys": "keys", "projects": "projects", "limits": "limits", "fleet": "deployments", "rights": "rights",
    "oversight": "oversight", "incidents": "incidents", "record": "record", "policies": "policies",
}  # fmt: skip
"""Where a tenant's objects of a kind are."""


def _asked(visit: Visit) -> tuple[dict[str, str], str]:
    """The filter as the admin API takes it, with spans that end now; and the name of the span."""
    asked = {name: visit.request.query_params.get(name, "").strip() for name in FILTERS}
    within = visit.request.query_params.get("within", "")
    if within not in moments.WITHIN or asked["since"] or asked["until"]:
        within = ""  # what was typed comes first
    return asked, within


async def listed(visit: Visit) -> Response:
    asked, within = _asked(visit)
    since = asked["since"] or moments.since_of(within, visit.context.now())
    before = visit.request.query_params.get("before", "")
    page: Any = {"items": (), "before": None}
    try:
        page = await visit.of_tenant("changes", **asked | {"since": since}, before=before)
    except Refused as refused:
        if refused.status != 422:
            raise
        visit.problem, visit.status = refused, 422
    visit.form = asked | {name: moments.in_field(asked[name]) for name in ("since", "until")}
    return visit.render(
        "changes.html",
        shown_tenant=visit.tenant,
        active=_active(visit),
        rows=page["items"],
        older=page["before"],
        before=before,
        asked=asked | {"within": within},
        spans=moments.WITHIN,
        kinds=KINDS,
        people=await _people(visit),
        since=since,
        now=visit.context.now(),
        link_of=lambda one: link_of(visit, one),
    )


def _active(visit: Visit) -> str:
    return "changes" if visit.tenant is not None else "all_changes"


async def _people(visit: Visit) -> list[tuple[str, str]]:
    """Persons to choose from, for those who may see them, and what acts without a person."""
    found: list[Any] = []
    if visit.tenant is not None and visit.may("people.read"):
        found = (await visit.of_tenant("people", limit=200))["items"]
    if visit.may("staff.read"):
        found += (await visit.get("staff", limit=200))["items"]
    named = [(one["id"], f"{one['display_name']} ({one['id']})") for one in found]
    return [
        *named,
        ("cli", visit.language.text("changes.by_cli")),
        ("system", visit.language.text("changes.by_system")),
    ]


def link_of(visit: Visit, one: Any) -> str:
    """The page of what was changed; empty where there is none."""
    if visit.tenant is None:
        staff = visit.path("staff", one["what"]) if one["type"].startswith("admin.person.") else ""
        return visit.here("policies") if one["kind"] == "policies" else staff
    if one["type"].startswith("admin.person."):
        return visit.here("people", one["what"])
    if one["kind"] == "people":
        return visit.here("people")
    place = PLACES.get(one["kind"])
    if place is None:
        return ""
    filtered = one["project"] if place in ("keys", "policies", "limits") else ""
    return visit.here(place, project=filtered)


async def show(visit: Visit) -> Response:
    return await _one(visit)


async def _one(visit: Visit, proof: Any = None) -> Response:
    found = await visit.of_tenant("changes", visit.request.path_params["change"])
    return visit.render(
        "change.html",
        shown_tenant=visit.tenant,
        active=_active(visit),
        change=found["change"],
        record=found["record"],
        receipt=found["receipt"],
        link=link_of(visit, found["change"]),
        proof=proof,
    )


async def proven(visit: Visit) -> Response:
    """Show the change with a proof computed and verified now."""
    try:
        proof = await visit.of_tenant("changes", visit.request.path_params["change"], "proof")
    except Refused as refused:
        if refused.status != 422:
            raise
        visit.problem, visit.status, proof = refused, 422, None
    return await _one(visit, proof)


async def proof_file(visit: Visit) -> Response:
    """Return the proof as a file that any RFC 6962 implementation can check offline."""
    proof = await visit.of_tenant("changes", visit.request.path_params["change"], "proof")
    name = f"proof-{visit.tenant or 'installation'}-{proof['receipt'].split('/')[1]}.json"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(json.dumps(proof, indent=2), headers=headers, media_type="application/json")


async def as_csv(visit: Visit) -> Response:
    """Return what the filter matches, newest first."""
    asked, within = _asked(visit)
    asked["since"] = asked["since"] or moments.since_of(within, visit.context.now())
    text, before = StringIO(), ""
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(CSV_FIELDS)
    for _ in range(CSV_PAGES):
        page = await visit.of_tenant("changes", **asked, before=before, limit=200)
        for one in page["items"]:
            person = one["person"] or {"id": "", "display_name": ""}
            more = " ".join(f"{name}={value}" for name, value in one["more"].items())
            row = {**one, "person": person["id"], "name": person["display_name"], "more": more}
            lines.writerow([_inert(row[name] or "") if name != "seq" else row[name] for name in CSV_FIELDS])
        if page["before"] is None:
            break
        before = page["before"]
    headers = {"content-disposition": 'attachment; filename="changes.csv"'}
    return Response(text.getvalue(), headers=headers, media_type="text/csv; charset=utf-8")


def _inert(text: str) -> str:
    """A value that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text


def _pages(prefix: str) -> tuple[Page, ...]:
    """The same pages for a tenant and the installation."""
    return (
        Page(f"{prefix}/changes", listed),
        Page(f"{prefix}/changes.csv", as_csv),
        Page(f"{prefix}/changes/{{change}}", show),
        Page(f"{prefix}/changes/{{change}}/proof", proven),
        Page(f"{prefix}/changes/{{change}}/proof.json", proof_file),
    )


PAGES: Final = (*_pages("/t/{tenant}"), *_pages("/operator"))
