"""Puts the admin API together. OpenAPI at ``/openapi.json``; no page that loads scripts from elsewhere."""

from fastapi import FastAPI

from gateway.admin import keys, people, policies, tenants
from gateway.admin.access import Desk
from gateway.admin.problems import MEDIA_TYPE, Problem, install_handlers

PREFIX = "/admin/v1"


def build_admin(desk: Desk) -> FastAPI:
    """To be mounted at PREFIX."""
    app = FastAPI(
        title="Domicile admin API",
        version="1",
        docs_url=None,
        redoc_url=None,
        servers=[{"url": PREFIX}],
        root_path_in_servers=False,
        responses={
            code: {"model": Problem, "content": {MEDIA_TYPE: {}}} for code in (401, 403, 404, 409, 412, 422, 500, 503)
        },
    )
    app.state.desk = desk
    install_handlers(app)
    for router in (people.entrance, tenants.router, policies.router, keys.router, people.of_tenant, people.of_staff):
        app.include_router(router)
    return app
