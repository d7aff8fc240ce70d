"""Policies of tenants and of the operator: active versions, drafts checked while typing, and proposals that a second
person approves."""

from typing import Any, Final

from starlette.responses import RedirectResponse, Response

from gateway.admin.people import MAX_ACTORS
from gateway.console.admin_calls import Refused
from gateway.console.page import Page, form
from gateway.console.visit import Visit
from gateway.records.control import PolicyVersionRecord

EXAMPLE: Final = "policy: {name}\nversion: 1\nresidency: {{process_in: EEA, store_in: EEA}}\n"


async def listed(visit: Visit) -> Response:
    """List versions and proposals of a tenant's or project's policy."""
    project = visit.request.query_params.get("project", "")
    versions = (await visit.of_tenant("policies", project=project, limit=200))["items"]
    proposals = [each for each in await visit.of_tenant("policy-proposals") if (each["project"] or "") == project]
    active = next((each for each in versions if each["active"]), None)
    return visit.render(
        "policies.html",
        shown_tenant=visit.tenant,
        active=_active(visit),
        project=project,
        projects=await _projects(visit),
        versions=versions[::-1],
        proposals=proposals[::-1],
        in_force=active,
        state_of=_state,
        people=await _named(visit, proposals, versions),
    )


async def _named(visit: Visit, *records: list[Any]) -> dict[str, Any]:
    """Return the persons behind versions and proposals by how these name them, for those who may see people."""
    if not visit.may("people.read" if visit.tenant is not None else "staff.read"):
        return {}
    fields = ("submitted_by", "approved_by", "activated_by")
    names = sorted({each[name] for some in records for each in some for name in fields if each.get(name)})
    found: dict[str, Any] = {}
    for start in range(0, len(names), MAX_ACTORS):
        named = await visit.of_tenant("actors", of=names[start : start + MAX_ACTORS])
        found |= {each["actor"]: each["person"] for each in named}
    return found


def _active(visit: Visit) -> str:
    """Return the key of the menu entry."""
    return "policies" if visit.tenant is not None else "operator_policies"


def _to(visit: Visit, *segments: object, **query: object) -> Response:
    """Redirect to a page of the same owner's policies."""
    return RedirectResponse(visit.here("policies", *segments, **query), 303)


async def _projects(visit: Visit) -> list[Any]:
    if visit.tenant is None:
        return []
    found: list[Any] = (await visit.of_tenant("projects", limit=200))["items"]
    return [each for each in found if each["revoked_at"] is None]


def _state(proposal: dict[str, Any]) -> str:
    """Return the state as `PolicyProposalRecord.state` does, from the API's JSON."""
    if proposal["withdrawn_at"] is not None:
        return "withdrawn"
    if proposal["version"] is not None:
        return "active"
    if proposal["activates_at"] is not None:
        return "scheduled"
    return "approved" if proposal["approved_by"] is not None else "submitted"


async def draft(visit: Visit) -> Response:
    """Show the editor, starting from the active policy."""
    project = visit.form.get("project", visit.request.query_params.get("project", ""))
    active = await _in_force(visit, project)
    text = visit.form.get("document")
    if text is None:
        text = active["document"] if active else EXAMPLE.format(name=project or visit.tenant or "operator")
    return visit.render(
        "policy_draft.html",
        shown_tenant=visit.tenant,
        active=_active(visit),
        project=project,
        projects=await _projects(visit),
        document=text,
        base=_base(project, active),
        studied=await _study(visit, text, project),
    )


async def _in_force(visit: Visit, project: str) -> Any:
    """Return the version in force, None if there is none."""
    versions = (await visit.of_tenant("policies", project=project, limit=200))["items"]
    return next((each for each in versions if each["active"]), None)


def _base(project: str, active: Any) -> str:
    """What a draft began from: whose policy, and its version."""
    return f"{project}:{active['number'] if active else ''}"


async def check(visit: Visit) -> Response:
    """Check a draft: problems and differences. Returns a fragment for scripts, otherwise the whole page."""
    if visit.request.headers.get("hx-request") != "true":
        return await draft(visit)
    project = visit.form.get("project", "")
    return visit.render("_policy_check.html", studied=await _study(visit, visit.form.get("document", ""), project))


async def _study(visit: Visit, document: str, project: str) -> dict[str, Any]:
    """Return problems, test results and differences of a draft."""
    body = {"document": document, "project": project or None}
    found: dict[str, Any] = {"problems": (), "tests": (), "differences": None, "first": False}
    try:
        checked = (await visit.api.call("POST", (*visit.owner, "policies", "check"), body=body)).body
        found |= {"problems": checked["problems"], "tests": checked["tests"]}
    except Refused as refused:
        if refused.status != 422:
            raise
        return found | {"problems": (refused.detail, *refused.errors.values())}
    if checked["ok"]:
        try:
            diff = await visit.api.call("POST", (*visit.owner, "policies", "diff"), body=body)
            found["differences"] = diff.body
        except Refused as refused:
            if refused.status != 422:
                raise
            found["first"] = True  # it compiles, so all that can be missing is a policy to compare it with
    return found


async def simulate(visit: Visit) -> Response:
    """Simulate the draft on recorded calls."""
    sent = visit.form
    body = {"document": sent.get("document", ""), "project": sent.get("project") or None}
    impact = (await visit.api.call("POST", (*visit.owner, "policies", "simulate"), body=body)).body
    return visit.render(
        "policy_impact.html",
        shown_tenant=visit.tenant,
        active=_active(visit),
        impact=impact,
        document=body["document"],
        project=body["project"] or "",
    )


async def propose(visit: Visit) -> Response:
    """Propose the draft, unless another version came into force since the draft was begun: that is said once, and the
    draft then shown beside it."""
    body = {"document": visit.form.get("document", ""), "project": visit.form.get("project") or None}
    project, begun = body["project"] or "", visit.form.get("base", "")
    if begun.partition(":")[0] == project and begun and begun != _base(project, await _in_force(visit, project)):
        raise Refused(
            409,
            "another version came into force after this draft was begun; look at the differences, which are now those "
            "to that version, and propose again",
        )
    made = (await visit.change("POST", *visit.owner, "policy-proposals", body=body)).body
    return _to(visit, "proposals", made["number"], project=made["project"] or "", done="policy.proposed")


async def proposal(visit: Visit) -> Response:
    project = visit.request.query_params.get("project", "")
    segments = (*visit.owner, "policy-proposals", visit.request.path_params["proposal"])
    found = await visit.api.call("GET", segments, query={"project": project})
    return visit.render(
        "policy_proposal.html",
        shown_tenant=visit.tenant,
        active=_active(visit),
        proposal=found.body,
        project=project,
        state=_state(found.body),
        tag=found.headers.get("etag", "").strip('"'),
        own=visit.me["person"],
        people=await _named(visit, [found.body]),
        studied=await _study(visit, found.body["document"], project),
    )


async def approve(visit: Visit) -> Response:
    return await _decide(visit, "approve", "policy.approved", None)


async def activate(visit: Visit) -> Response:
    at = visit.form.get("at", "").strip()
    return await _decide(visit, "activate", "policy.activated", {"at": at or None})


async def withdraw(visit: Visit) -> Response:
    return await _decide(visit, "withdraw", "policy.withdrawn", {})


async def _decide(visit: Visit, act: str, done: str, body: Any) -> Response:
    number, project = visit.request.path_params["proposal"], visit.request.query_params.get("project", "")
    await visit.change("POST", *visit.owner, "policy-proposals", number, act, body=body, project=project)
    return _to(visit, "proposals", number, project=project, done=done)


async def confirm_roll_back(visit: Visit) -> Response:
    project = visit.request.query_params.get("project", visit.form.get("project", ""))
    active = await _in_force(visit, project)
    visit.need("policies.activate")
    return visit.render(
        "confirm.html",
        shown_tenant=visit.tenant,
        active=_active(visit),
        title="policies.roll_back",
        lead="policies.roll_back_lead",
        name=project or visit.tenant or visit.language.text("policies.operators"),
        back=visit.here("policies", project=project),
        state=PolicyVersionRecord.model_validate(active).digest() if active else "",
        keep={"project": project},
    )


async def roll_back(visit: Visit) -> Response:
    project = visit.form.get("project", "")
    await visit.change("POST", *visit.owner, "policies", "rollback", body={"project": project or None})
    return _to(visit, project=project, done="policy.rolled_back")


async def explain(visit: Visit) -> Response:
    """Explain how a request would be decided now, with the deciding lines."""
    asked = visit.request.query_params
    visit.form = {name: asked.get(name, "").strip() for name in ("project", "model")}
    explained = None
    if visit.form["model"]:
        try:
            answer = await visit.api.call("POST", (*visit.owner, "policies", "explain"), body=dict(visit.form))
            explained = answer.body
        except Refused as refused:
            if refused.status != 422:
                raise
            visit.problem, visit.status = refused, 422
    return visit.render(
        "policy_explain.html",
        shown_tenant=visit.tenant,
        active=_active(visit),
        explained=explained,
        projects=await _projects(visit),
        models=await _models(visit),
    )


async def _models(visit: Visit) -> list[str]:
    """Return names to choose from, for those who may see backends; others type them."""
    if not visit.may("backends.read"):
        return []
    backends = (await visit.of_tenant("backends", limit=200))["items"]
    return sorted({name for each in backends if each["revoked_at"] is None for name in each["models"]})


def _pages(prefix: str) -> tuple[Page, ...]:
    """The same pages for a tenant's policies and the operator's."""
    return (
        Page(f"{prefix}/policies", listed),
        Page(f"{prefix}/policies/draft", draft),
        form(f"{prefix}/policies/check", check, draft),
        form(f"{prefix}/policies/simulate", simulate, draft),
        form(f"{prefix}/policies/propose", propose, draft),
        Page(f"{prefix}/policies/roll-back", confirm_roll_back),
        form(f"{prefix}/policies/roll-back", roll_back, confirm_roll_back, fresh=True),
        Page(f"{prefix}/policies/proposals/{{proposal}}", proposal),
        form(f"{prefix}/policies/proposals/{{proposal}}/approve", approve, proposal),
        form(f"{prefix}/policies/proposals/{{proposal}}/activate", activate, proposal),
        form(f"{prefix}/policies/proposals/{{proposal}}/withdraw", withdraw, proposal),
    )


PAGES: Final = (*_pages("/t/{tenant}"), *_pages("/operator"), Page("/t/{tenant}/policies/explain", explain))
