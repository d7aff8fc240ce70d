"""Recorded calls: list, decision and steps of a call, inclusion proof, and kept content."""

import json
from typing import Any, Final

from starlette.responses import Response

from gateway.console import moments
from gateway.console.admin_calls import Refused
from gateway.console.page import Page, form
from gateway.console.visit import Visit

FILTERS: Final = ("outcome", "project", "region", "model", "request", "since", "until", "subject")


async def listed(visit: Visit) -> Response:
    asked = {name: visit.request.query_params.get(name, "").strip() for name in FILTERS}
    within = visit.request.query_params.get("within", "")
    if within not in moments.WITHIN or asked["since"] or asked["until"]:
        within = ""  # what was typed comes first
    since = asked["since"] or moments.since_of(within, visit.context.now())
    before = visit.request.query_params.get("before", "")
    page: Any = {"items": (), "before": None}
    try:
        page = await visit.of_tenant("calls", **asked | {"since": since}, before=before)
    except Refused as refused:
        if refused.status != 422:
            raise
        visit.problem, visit.status = refused, 422
    visit.form = asked | {name: moments.in_field(asked[name]) for name in ("since", "until")}
    projects = (await visit.of_tenant("projects", limit=200))["items"]
    return visit.render(
        "calls.html",
        shown_tenant=visit.tenant,
        active="calls",
        page=page,
        rows=page["items"],
        asked=asked | {"within": within},
        spans=moments.WITHIN,
        since=since,
        before=before,
        projects=projects,
        now=visit.context.now(),
    )


async def show(visit: Visit) -> Response:
    return await _one(visit)


async def _one(visit: Visit, *, proof: Any = None, content: Any = None) -> Response:
    number = visit.request.path_params["number"]
    found = await visit.of_tenant("calls", number)
    return visit.render(
        "call.html",
        shown_tenant=visit.tenant,
        active="calls",
        call=found["call"],
        records=found["records"],
        receipt=found["receipt"],
        kept={int(seq): fields for seq, fields in found["kept"].items()},
        proof=proof,
        content=content,
        first=found["records"][0]["record"],
        last=found["records"][-1]["record"],
        decision=_decision(found["records"]),
    )


async def proven(visit: Visit) -> Response:
    """Show the call with a proof computed and verified now."""
    try:
        proof = await visit.of_tenant("calls", visit.request.path_params["number"], "proof")
    except Refused as refused:
        if refused.status != 422:
            raise
        visit.problem, visit.status, proof = refused, 422, None
    return await _one(visit, proof=proof)


async def proof_file(visit: Visit) -> Response:
    """Return the proof as a file that `verify.py` and any RFC 6962 implementation can check offline."""
    number = visit.request.path_params["number"]
    proof = await visit.of_tenant("calls", number, "proof")
    name = f"proof-{visit.tenant}-{proof['receipt'].split('/')[1]}.json"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(json.dumps(proof, indent=2), headers=headers, media_type="application/json")


async def read_content(visit: Visit) -> Response:
    """Show the kept content of a record once. Reader and reason are recorded first."""
    sent = visit.form
    asked = {"reason": sent.get("reason", "")}
    answer = await visit.change("POST", "tenants", visit.tenant, "calls", sent.get("record", ""), "content", body=asked)
    return await _one(visit, content=(sent["record"], answer.body["values"]))


def _decision(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last decision of the call."""
    made = [each["record"]["decision"] for each in records if each["record"].get("decision")]
    return made[-1] if made else {"outcome": "deny", "reasons": []}


PAGES: Final = (
    Page("/t/{tenant}/calls", listed),
    Page("/t/{tenant}/calls/{number}", show),
    Page("/t/{tenant}/calls/{number}/proof", proven),
    Page("/t/{tenant}/calls/{number}/proof.json", proof_file),
    form("/t/{tenant}/calls/{number}/content", read_content, show),
)
