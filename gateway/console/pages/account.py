"""Account page: identity, permissions and open sessions of the user."""

from typing import Final

from starlette.responses import RedirectResponse, Response

from gateway.console.page import Page, form
from gateway.console.visit import Visit, path
from gateway.identity.keys import parse_key


async def show(visit: Visit) -> Response:
    return visit.render(
        "account.html", sessions=await visit.get("sessions"), own=parse_key(visit.api.token, "admin").id
    )


async def end_session(visit: Visit) -> Response:
    await visit.change("POST", "sessions", visit.request.path_params["token"], "end")
    return RedirectResponse(path("account", done="session.ended"), 303)


PAGES: Final = (Page("/account", show), form("/account/sessions/{token}/end", end_session, show))
