"""The browser's session and its forms: who asks, and whether the form that changes something is ours.

A form is taken only with a token that is bound to the session, and only from our own pages, as the browser says by
`Origin` or, where our own policy makes it send none (``Referrer-Policy: no-referrer``), by `Sec-Fetch-Site`. The
session itself is in a cookie that is sent with no other site's request (``SameSite=Strict``).
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.requests import Request

from gateway.admin.calls.access import AdminContext
from gateway.admin.calls.authentication import Cookies
from gateway.console.admin_calls import Refused

SEAL: Final = "console form"
FIELD: Final = "csrf"
FRESH: Final = timedelta(minutes=15)
"""How long after signing in a person may do what cannot be undone."""


def cookies_of(context: AdminContext, request: Request) -> Cookies:
    """Those of the identity provider's settings; without one, of the address that the browser calls us by."""
    return context.cookies or Cookies(own_origin(request), "/", request.url.scheme == "https")


def own_origin(request: Request) -> str:
    return f"{request.url.scheme}://{request.headers.get('host', '')}"


def form_token(context: AdminContext, session: str) -> str:
    """What forms of this session carry. It is of no use with another session, and says nothing of the session."""
    return context.hasher().seal(SEAL, session)


def check_origin(context: AdminContext, request: Request) -> None:
    """Raises Refused for a form of another site."""
    origin, site = request.headers.get("origin", "null"), request.headers.get("sec-fetch-site")
    ours = {cookies_of(context, request).origin, own_origin(request)}
    if origin in ours and site in (None, "same-origin"):
        return
    if origin == "null" and site == "same-origin":
        return
    raise Refused(403, "this form was not sent by a page of this console; open the page again and send it from there")


def check_form(context: AdminContext, request: Request, session: str, sent: str) -> None:
    """Raises Refused for a form of another site, or of another session."""
    check_origin(context, request)
    if not context.hasher().sealed(SEAL, session, sent):
        raise Refused(403, "this form belongs to another session; open the page again and send it from there")


def is_fresh(since: str | None, now: datetime) -> bool:
    """Whether a session that began `since` may do what cannot be undone."""
    begun = datetime.fromisoformat(since) if since else datetime.min.replace(tzinfo=UTC)
    return timedelta(0) <= now - begun <= FRESH
