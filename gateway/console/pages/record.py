"""Health of the record: checkpoints, verification, and consistency proofs."""

from typing import Any, Final

from starlette.responses import Response

from gateway.console import moments
from gateway.console.admin_calls import Refused
from gateway.console.page import Page, form
from gateway.console.visit import Visit


async def show(visit: Visit) -> Response:
    return await _show(visit)


async def _show(visit: Visit, *, verdict: Any = None, proof: Any = None) -> Response:
    return visit.render(
        "record.html",
        shown_tenant=visit.tenant,
        active="record",
        health=await visit.of_tenant("record"),
        verdict=verdict,
        proof=proof,
    )


async def verify(visit: Visit) -> Response:
    """Verify the tree now."""
    verdict = (await visit.api.call("POST", ("tenants", visit.tenant, "record", "verify"))).body
    return await _show(visit, verdict=verdict)


async def consistency(visit: Visit) -> Response:
    """Prove that the log only grew between two checkpoints, named by size or by date."""
    asked = {name: visit.request.query_params.get(name, "").strip() for name in ("old", "new", "since", "until")}
    proof = None
    try:
        proof = await visit.of_tenant("record", "consistency", **asked)
    except Refused as refused:
        if refused.status not in (404, 422):
            raise
        await visit.of_tenant("record")  # 404 of the tenant itself is no matter of sizes
        visit.problem, visit.status = refused, 422
    visit.form = asked | {name: moments.in_field(asked[name]) for name in ("since", "until")}
    return await _show(visit, proof=proof)


async def outside(visit: Visit) -> Response:
    """Return only who vouches from outside. The page fetches it separately, since the whole anchor tree is read."""
    found = await visit.of_tenant("record", "outside")
    return visit.render("_outside.html", shown_tenant=visit.tenant, outside=found)


PAGES: Final = (
    Page("/t/{tenant}/record", show),
    form("/t/{tenant}/record/verify", verify, show),
    Page("/t/{tenant}/record/consistency", consistency),
    Page("/t/{tenant}/record/outside", outside),
)
