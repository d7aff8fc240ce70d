"""Who calls the admin API: by an access token, by the session of a browser, or, of a machine, by the provider's token.

A browser sends its session by itself, also when a page of somebody else makes it call. So with a session a change must
come from our own origin, which is what browsers say in `Origin` and no page can alter (beside ``SameSite=Strict``).
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi import Request, Response

from gateway.admin.problems import Forbidden
from gateway.identity.keys import KeyUnknown
from gateway.identity.login import Attempt
from gateway.settings import Oidc

BEARER = "bearer "
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOGIN_LIFE_S = 600


@dataclass(frozen=True, slots=True)
class Cookies:
    """The two cookies, as our own address allows: over https bound to this very host and sent over TLS alone."""

    origin: str
    callback: str
    secure: bool

    @classmethod
    def at(cls, settings: Oidc) -> "Cookies | None":
        """None where nobody can log in."""
        if settings.redirect_uri is None:
            return None
        parts = urlsplit(settings.redirect_uri)
        return cls(f"{parts.scheme}://{parts.netloc}", parts.path or "/", parts.scheme == "https")

    @property
    def session(self) -> str:
        return "__Host-domicile-session" if self.secure else "domicile-session"

    @property
    def login(self) -> str:
        return "__Secure-domicile-login" if self.secure else "domicile-login"

    def set_session(self, response: Response, token: str, life_s: int) -> None:
        response.set_cookie(
            self.session, token, max_age=life_s, path="/", secure=self.secure, httponly=True, samesite="strict"
        )

    def set_login(self, response: Response, attempt: Attempt, tenant: str | None) -> None:
        """Comes back with the browser from the provider, which is another site: hence only `lax`."""
        value = ".".join((attempt.state, attempt.nonce, attempt.verifier, tenant or ""))
        response.set_cookie(
            self.login,
            value,
            max_age=LOGIN_LIFE_S,
            path=self.callback,
            secure=self.secure,
            httponly=True,
            samesite="lax",
        )

    def login_of(self, request: Request) -> tuple[Attempt, str | None] | None:
        parts = request.cookies.get(self.login, "").split(".")
        return (Attempt(*parts[:3]), parts[3] or None) if len(parts) == 4 and all(parts[:3]) else None

    def forget(self, response: Response, *, session: bool = False) -> None:
        name, path = (self.session, "/") if session else (self.login, self.callback)
        response.set_cookie(
            name, "", max_age=0, path=path, secure=self.secure, httponly=True, samesite="strict" if session else "lax"
        )


def credential_of(request: Request, cookies: Cookies | None) -> str:
    """What the caller shows, '' if nothing: the bearer token, else the session, which may change something only from
    our own origin. Raises Forbidden, KeyUnknown where there are two of one header."""
    sent = request.headers.getlist("authorization")
    if len(sent) > 1:
        raise KeyUnknown("send one authorization header")
    if sent:
        return sent[0][len(BEARER) :].strip() if sent[0][: len(BEARER)].lower() == BEARER else ""
    session = request.cookies.get(cookies.session, "") if cookies else ""
    if cookies and session and request.method not in SAFE_METHODS and request.headers.get("origin") != cookies.origin:
        raise Forbidden(f"a session may change something only from {cookies.origin}; send a token instead")
    return session
