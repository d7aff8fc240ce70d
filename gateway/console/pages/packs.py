"""Evidence packs: made in the background, verified in the page, and downloaded."""

from typing import Any, Final

from starlette.responses import Response

from gateway.console import moments
from gateway.console.admin_calls import Refused
from gateway.console.page import Page, form
from gateway.console.visit import Visit


async def listed(visit: Visit) -> Response:
    asked = visit.request.query_params
    since, until = (moments.in_field(asked.get(name, ""))[:10] for name in ("since", "until"))
    return visit.render(
        "packs.html",
        shown_tenant=visit.tenant,
        active="packs",
        since=since,
        until=until,
        periods=moments.closed_periods(visit.context.now().date()),
        **await _state(visit),
    )


async def live(visit: Visit) -> Response:
    """Return only the list. The page fetches it while a pack is made or verified."""
    return visit.render("_packs.html", shown_tenant=visit.tenant, **await _state(visit))


async def _state(visit: Visit) -> dict[str, Any]:
    """Return the packs and whether one of them is in work."""
    packs = await visit.of_tenant("packs")
    working = any(one["state"] == "making" or _verifying(one) for one in packs)
    return {"packs": packs, "working": working, "verifying": _verifying}


def _verifying(pack: dict[str, Any]) -> bool:
    return pack["verification"] is not None and pack["verification"]["at"] is None


async def make(visit: Visit) -> Response:
    sent = {name: visit.form.get(name, "").strip() for name in ("since", "until", "reason")}
    body = {**sent, "since": sent["since"] or None, "until": sent["until"] or None}
    await visit.change("POST", "tenants", visit.tenant, "packs", body=body)
    return visit.to("packs", done="pack.asked")


async def verify(visit: Visit) -> Response:
    await visit.change("POST", "tenants", visit.tenant, "packs", _pack(visit), "verify")
    return visit.to("packs", done="pack.verifying")


async def download(visit: Visit) -> Response:
    """Pass on the admin API's file as it comes."""
    found = await visit.of_tenant("packs", _pack(visit))
    if found["state"] != "made":
        raise Refused(409, f"the pack is not ready ({found['state']}); wait until it is, or make another")
    return visit.api.passed_on("tenants", visit.tenant, "packs", _pack(visit), "file")


def _pack(visit: Visit) -> str:
    return str(visit.request.path_params["pack"])


PAGES: Final = (
    Page("/t/{tenant}/packs", listed),
    form("/t/{tenant}/packs/make", make, listed),
    Page("/t/{tenant}/packs/live", live),
    form("/t/{tenant}/packs/{pack}/verify", verify, listed),
    Page("/t/{tenant}/packs/{pack}/pack.zip", download),
)
