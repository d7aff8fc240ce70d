"""Human oversight, data subject rights and incidents."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from starlette.responses import PlainTextResponse, Response

from gateway.console.admin_calls import Refused
from gateway.console.page import Page, form
from gateway.console.visit import Visit

RIGHTS: Final = ("access", "rectification", "erasure", "restriction", "portability", "objection", "human_review")
OUTCOMES: Final = ("answered", "answered_elsewhere", "refused", "withdrawn")
EXTENSIONS: Final = ("complexity", "number_of_requests")
SHOWN_ENDED: Final = 50
LAWS: Final = ("gdpr", "dora", "nis2", "ai_act")
SEVERITIES: Final = {
    "gdpr": ("unlikely_risk", "risk", "high_risk"),
    "dora": ("not_major", "major"),
    "nis2": ("not_significant", "significant"),
    "ai_act": ("serious", "widespread", "critical_infrastructure", "death"),
}
"""By law, as `audit/law/clocks.json` has them."""


async def oversight(visit: Visit) -> Response:
    stops = await visit.of_tenant("oversight")
    projects = (await visit.of_tenant("projects", limit=200))["items"]
    return visit.render(
        "oversight.html",
        shown_tenant=visit.tenant,
        active="oversight",
        stops=stops[::-1],
        projects=[each for each in projects if each["revoked_at"] is None],
        systems=sorted({each["ai_system_id"] for each in projects if each["ai_system_id"]}),
    )


async def stop(visit: Visit) -> Response:
    return await _act(visit, "stop", "oversight.stopped")


async def resume(visit: Visit) -> Response:
    return await _act(visit, "resume", "oversight.resumed")


async def _act(visit: Visit, act: str, done: str) -> Response:
    """`what` of the form reads ``project:NAME`` or ``system:ID``."""
    kind, _, name = visit.form.get("what", "").partition(":")
    body: dict[str, Any] = {"reason": visit.form.get("reason", "").strip()}
    body["ai_system_id" if kind == "system" else "project"] = name
    await visit.change("POST", "tenants", visit.tenant, "oversight", act, body=body)
    return visit.to("oversight", done=done)


async def rights(visit: Visit) -> Response:
    return await _rights(visit)


async def _rights(visit: Visit, *, package: Any = None, certificate: Any = None) -> Response:
    held = visit.form
    visit.form = {name: value for name, value in held.items() if name != "subject"}
    requests = await visit.of_tenant("rights", "requests")
    ended = [each for each in requests if each["closed_at"] is not None]
    return visit.render(
        "rights.html",
        shown_tenant=visit.tenant,
        active="rights",
        rights=_named(visit, "right.", RIGHTS),
        outcomes=_named(visit, "outcome_of.", OUTCOMES),
        extensions=_named(visit, "extension.", EXTENSIONS),
        waiting=[each for each in requests if each["closed_at"] is None],
        ended=ended[: -SHOWN_ENDED - 1 : -1],
        holds=await visit.of_tenant("rights", "holds"),
        certificates=(await visit.of_tenant("rights", "certificates"))[::-1],
        package=package,
        certificate=certificate,
        placed=_moment,
    )


def _named(visit: Visit, prefix: str, keys: Sequence[str]) -> list[tuple[str, str]]:
    """Return choices with their texts."""
    return [(key, visit.language.text(prefix + key)) for key in keys]


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


async def receive(visit: Visit) -> Response:
    sent = visit.form
    body = {
        "right": sent.get("right", ""),
        "subject": sent.get("subject", ""),
        "received_at": _typed_moment(sent.get("received_at", "")),
    }
    await visit.change("POST", "tenants", visit.tenant, "rights", "requests", body=body)
    return visit.to("rights", done="rights.received")


async def extend(visit: Visit) -> Response:
    body = {"reason": visit.form.get("reason", "")}
    await visit.change("POST", "tenants", visit.tenant, "rights", "requests", _matter(visit), "extend", body=body)
    return visit.to("rights", done="rights.extended")


async def settle(visit: Visit) -> Response:
    act = visit.form.get("act_seq", "")
    body = {
        "outcome": visit.form.get("outcome", ""),
        "act_seq": int(act) if act.isdecimal() else act or None,
        "reason": visit.form.get("reason", "").strip() or None,
    }
    await visit.change("POST", "tenants", visit.tenant, "rights", "requests", _matter(visit), "close", body=body)
    return visit.to("rights", done="rights.closed")


def _matter(visit: Visit) -> str:
    return str(visit.request.path_params["matter"])


def _typed_moment(text: str) -> str | None:
    """What a field for date and time sends, in UTC; None where it is empty."""
    text = text.strip()
    return f"{text}:00.000Z" if len(text) == len("2026-11-30T08:15") else text or None


async def access(visit: Visit) -> Response:
    """Show the package of an access request once, or return it as a file."""
    body = {"subject": visit.form.get("subject", "")}
    package = (await visit.change("POST", "tenants", visit.tenant, "rights", "access", body=body)).body
    if visit.form.get("as") == "file":
        headers = {"content-disposition": f'attachment; filename="access-{package["dsar_id"]}.json"'}
        return Response(json.dumps(package, indent=2), headers=headers, media_type="application/json")
    return await _rights(visit, package=package)


def _scope(visit: Visit) -> dict[str, Any]:
    """Return the scope of a person or of records without empty fields."""
    found: dict[str, Any] = {}
    if subject := visit.form.get("subject", ""):
        found["subject"] = subject
    for name in ("first", "last"):
        if text := visit.form.get(name, "").strip():
            found[name] = int(text) if text.isdecimal() else text
    if reason := visit.form.get("reason", "").strip():
        found["reason"] = reason
    return found


async def erase(visit: Visit) -> Response:
    made = await visit.change("POST", "tenants", visit.tenant, "rights", "erase", body=_scope(visit))
    return await _rights(visit, certificate=made.body)


async def certificate_file(visit: Visit) -> Response:
    """Return a signed certificate as a file. Raises Refused for one that this tenant does not have."""
    wanted = visit.form.get("certificate", "")
    for one in await visit.of_tenant("rights", "certificates"):
        if one["says"].get("id") == wanted:
            headers = {"content-disposition": 'attachment; filename="erasure-certificate.txt"'}
            return PlainTextResponse(one["note"], headers=headers)
    raise Refused(404, "this tenant has no such certificate; choose one of the list")


async def restrict(visit: Visit) -> Response:
    lifted = visit.form.get("act") == "lift"
    body = {"subject": visit.form.get("subject", ""), "restricted": not lifted}
    await visit.change("POST", "tenants", visit.tenant, "rights", "restrict", body=body)
    return visit.to("rights", done="rights.lifted" if lifted else "rights.restricted")


async def hold(visit: Visit) -> Response:
    await visit.change("POST", "tenants", visit.tenant, "rights", "holds", body=_scope(visit))
    return visit.to("rights", done="rights.held")


async def release(visit: Visit) -> Response:
    await visit.change("POST", "tenants", visit.tenant, "rights", "holds", visit.request.path_params["hold"], "release")
    return visit.to("rights", done="rights.released")


async def incidents(visit: Visit) -> Response:
    found = await visit.of_tenant("incidents")
    return visit.render(
        "incidents.html",
        shown_tenant=visit.tenant,
        active="incidents",
        rows=found[::-1],
        laws=LAWS,
        severities=partial(_severities, visit),
        now=visit.context.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M"),
    )


async def open_incident(visit: Visit) -> Response:
    sent = visit.form
    body = {
        **_facts(sent),
        "ai_system_id": sent.get("ai_system_id", "").strip() or None,
        "freeze": bool(sent.get("freeze")),
    }
    await visit.change("POST", "tenants", visit.tenant, "incidents", body=body)
    return visit.to("incidents", done="incident.opened")


def _facts(sent: Mapping[str, str]) -> dict[str, Any]:
    """What both a new incident and an update may say."""
    return {
        "laws": [law for law in LAWS if sent.get(f"law-{law}")],
        "severity": sent.get("severity") or None,
        "aware_at": _typed_moment(sent.get("aware_at", "")),
        "classified_at": _typed_moment(sent.get("classified_at", "")),
    }


def _severities(visit: Visit, laws: Sequence[str]) -> list[tuple[str, str]]:
    """Return the severities of these laws, each with its law where there are several."""
    named = [(law, name) for law in laws for name in SEVERITIES.get(law, ())]
    said = visit.language.text
    return [
        (name, f"{said(f'law.{law}')}: {said(f'severity.{name}')}" if len(laws) > 1 else said(f"severity.{name}"))
        for law, name in named
    ]


async def update(visit: Visit) -> Response:
    body = _facts(visit.form)
    await visit.change("POST", "tenants", visit.tenant, "incidents", _incident(visit), "update", body=body)
    return visit.to("incidents", done="incident.updated")


async def notify(visit: Visit) -> Response:
    body = {"clock": visit.form.get("clock", ""), "authority": visit.form.get("authority", "").strip()}
    await visit.change("POST", "tenants", visit.tenant, "incidents", _incident(visit), "notify", body=body)
    return visit.to("incidents", done="incident.notified")


async def close(visit: Visit) -> Response:
    body = {"reason": visit.form.get("reason", "").strip(), "release": bool(visit.form.get("release"))}
    await visit.change("POST", "tenants", visit.tenant, "incidents", _incident(visit), "close", body=body)
    return visit.to("incidents", done="incident.closed")


def _incident(visit: Visit) -> str:
    return str(visit.request.path_params["incident"])


PAGES: Final = (
    Page("/t/{tenant}/oversight", oversight),
    form("/t/{tenant}/oversight/stop", stop, oversight),
    form("/t/{tenant}/oversight/resume", resume, oversight),
    Page("/t/{tenant}/rights", rights),
    form("/t/{tenant}/rights/requests", receive, rights),
    form("/t/{tenant}/rights/requests/{matter}/extend", extend, rights),
    form("/t/{tenant}/rights/requests/{matter}/close", settle, rights),
    form("/t/{tenant}/rights/access", access, rights),
    form("/t/{tenant}/rights/erase", erase, rights, fresh=True),
    form("/t/{tenant}/rights/certificate", certificate_file, rights),
    form("/t/{tenant}/rights/restrict", restrict, rights),
    form("/t/{tenant}/rights/holds", hold, rights),
    form("/t/{tenant}/rights/holds/{hold}/release", release, rights, fresh=True),
    Page("/t/{tenant}/incidents", incidents),
    form("/t/{tenant}/incidents/open", open_incident, incidents),
    form("/t/{tenant}/incidents/{incident}/update", update, incidents),
    form("/t/{tenant}/incidents/{incident}/notify", notify, incidents),
    form("/t/{tenant}/incidents/{incident}/close", close, incidents),
)
