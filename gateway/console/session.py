"""Browser sessions and protection against cross-site request forgery (CSRF).

A form needs a token bound to the session and must come from the console's own pages, according to `Origin` or, if
``Referrer-Policy: no-referrer`` makes that ``null``, to `Sec-Fetch-Site`. The session cookie is not sent with
cross-site requests (``SameSite=Strict``).
"""

from datetime import datetime, timedelta
from typing import Final

from starlette.requests import Request

from gateway.admin.calls.access import AdminContext
from gateway.admin.calls.authentication import Cookies
from gateway.console.admin_calls import Refused
from gateway.identity.login import FRESH

SEAL: Final = "console form"
FIELD: Final = "csrf"


def cookies_of(context: AdminContext, request: Request) -> Cookies:
    """Return the cookie settings: of the identity provider's configuration, otherwise of the request's own address."""
    return context.cookies or Cookies(own_origin(request), "/", request.url.scheme == "https")


def own_origin(request: Request) -> str:
    return f"{request.url.scheme}://{request.headers.get('host', '')}"


def form_token(context: AdminContext, session: str) -> str:
    """Return the CSRF token of a session. It is invalid for other sessions and does not reveal the session token."""
    return context.hasher().seal(SEAL, session)


def check_origin(context: AdminContext, request: Request) -> None:
    """Check that a form comes from this site. Raises Refused."""
    origin, site = request.headers.get("origin", "null"), request.headers.get("sec-fetch-site")
    ours = {cookies_of(context, request).origin, own_origin(request)}
    if origin in ours and site in (None, "same-origin"):
        return
    if origin == "null" and site == "same-origin":
        return
    raise Refused(403, "this form was not sent by a page of this console; open the page again and send it from there")


def check_form(context: AdminContext, request: Request, session: str, sent: str) -> None:
    """Check origin and CSRF token of a form. Raises Refused."""
    check_origin(context, request)
    if not is_own_form(context, session, sent):
        raise Refused(403, "this form belongs to another session; open the page again and send it from there")


def is_own_form(context: AdminContext, session: str, sent: str) -> bool:
    """Return whether a form has the CSRF token of this session."""
    return context.hasher().sealed(SEAL, session, sent)


def is_fresh(authenticated_at: str | None, now: datetime) -> bool:
    """Return whether the person showed who they are recently enough for irreversible actions: by the identity
    provider's ``auth_time``, or by a one-time token. False where that is not known."""
    return authenticated_at is not None and timedelta(0) <= now - datetime.fromisoformat(authenticated_at) <= FRESH
