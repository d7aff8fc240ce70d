"""Tenants, for the staff of the installation, and projects of a tenant."""

from typing import Any, Final, get_args

from starlette.responses import RedirectResponse, Response

from gateway.console.page import Page, form
from gateway.console.visit import Visit, confirm, path
from gateway.records.control import LegalBasis, RiskClass


async def listed(visit: Visit) -> Response:
    page = await visit.get("tenants", after=visit.request.query_params.get("after", ""), limit=50)
    return visit.render("tenants.html", active="tenants", rows=page["items"], after=page["next"])


async def create(visit: Visit) -> Response:
    sent = visit.form
    body = {"id": sent.get("id", "").strip(), "display_name": sent.get("display_name", "").strip() or None}
    await visit.change("POST", "tenants", body=body)
    return RedirectResponse(path("t", body["id"], "projects", done="tenant.created"), 303)


confirm_revoke: Final = confirm(
    "tenants.revoke",
    "tenants.revoke_lead",
    "tenants",
    lambda visit: ("tenants", visit.tenant),
    lambda visit: str(visit.tenant),
    lambda visit: path("tenants"),
)


async def revoke(visit: Visit) -> Response:
    await visit.change("POST", "tenants", visit.tenant, "revoke")
    return RedirectResponse(path("tenants", done="tenant.revoked"), 303)


async def projects(visit: Visit) -> Response:
    page = await visit.of_tenant("projects", after=visit.request.query_params.get("after", ""), limit=100)
    return visit.render(
        "projects.html",
        shown_tenant=visit.tenant,
        active="projects",
        rows=page["items"],
        after=page["next"],
        bases=get_args(LegalBasis),
        risks=get_args(RiskClass),
    )


async def create_project(visit: Visit) -> Response:
    sent = {name: value.strip() for name, value in visit.form.items()}
    classes = [each.strip() for each in sent.get("data_classes", "").split(",") if each.strip()]
    body: dict[str, Any] = {
        "id": sent.get("id", ""),
        "purpose": sent.get("purpose", ""),
        "legal_basis": sent.get("legal_basis", ""),
        "risk_class": sent.get("risk_class", ""),
        "data_classes": classes,
        "ai_system_id": sent.get("ai_system_id") or None,
    }
    await visit.change("POST", "tenants", visit.tenant, "projects", body=body)
    return visit.to("projects", done="project.created")


def _project(visit: Visit) -> str:
    return str(visit.request.path_params["project"])


confirm_project: Final = confirm(
    "projects.revoke",
    "projects.revoke_lead",
    "projects",
    lambda visit: ("tenants", visit.tenant, "projects", _project(visit)),
    _project,
    lambda visit: visit.here("projects"),
)


async def revoke_project(visit: Visit) -> Response:
    await visit.change("POST", "tenants", visit.tenant, "projects", _project(visit), "revoke")
    return visit.to("projects", done="project.revoked")


PAGES: Final = (
    Page("/tenants", listed),
    form("/tenants/create", create, listed),
    Page("/t/{tenant}/revoke", confirm_revoke),
    form("/t/{tenant}/revoke", revoke, confirm_revoke, fresh=True),
    Page("/t/{tenant}/projects", projects),
    form("/t/{tenant}/projects/create", create_project, projects),
    Page("/t/{tenant}/projects/{project}/revoke", confirm_project),
    form("/t/{tenant}/projects/{project}/revoke", revoke_project, confirm_project, fresh=True),
)
