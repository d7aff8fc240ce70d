"""Credentials of callers of the admin API: an access token, a browser's session, or a machine's token of the provider.

A browser sends its session cookie with every request, also with one that a page of another origin causes. A change with
a session is therefore accepted only from this site's origin. Browsers send the origin in `Origin`, which no page can
alter. ``SameSite=Strict`` is a second protection.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi import Request, Response

from gateway.admin.calls.problems import Forbidden
from gateway.configuration.settings import Oidc
from gateway.identity.keys import KeyHasher, KeyUnknown
from gateway.identity.login import LoginAttempt

BEARER = "bearer "
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOGIN_LIFE_S = 600
LOGIN_SEAL = "login cookie"


@dataclass(frozen=True, slots=True)
class Cookies:
    """The session cookie and the login cookie. With an https address they are bound to this host and sent over TLS
    only."""

    origin: str
    callback: str
    secure: bool

    @classmethod
    def at(cls, settings: Oidc) -> "Cookies | None":
        """Return the cookies for the address in the settings; None without an identity provider."""
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

    def set_login(self, response: Response, begun: "PendingLogin", hasher: KeyHasher) -> None:
        """Set the login cookie. It is `lax`, because the browser has to send it when the provider's site redirects
        here."""
        attempt = begun.attempt
        parts = (
            attempt.state, attempt.nonce, attempt.verifier, begun.tenant or "", begun.session, str(begun.at),
            "again" if begun.again else "",
        )  # fmt: skip
        text = ".".join(parts)
        response.set_cookie(
            self.login,
            f"{text}.{hasher.seal(LOGIN_SEAL, text)}",
            max_age=LOGIN_LIFE_S,
            path=self.callback,
            secure=self.secure,
            httponly=True,
            samesite="lax",
        )

    def login_of(self, request: Request, hasher: KeyHasher, now: float) -> "PendingLogin | None":
        """Return the login that a gateway of this installation started in this browser; None if there is none or it has
        expired. `now`: seconds since 1970."""
        text, _, seal = request.cookies.get(self.login, "").rpartition(".")
        parts = text.split(".")
        if len(parts) != 7 or not hasher.sealed(LOGIN_SEAL, text, seal):
            return None
        state, nonce, verifier, tenant, session, at, again = parts
        if not 0 <= now - int(at) <= LOGIN_LIFE_S:
            return None
        return PendingLogin(LoginAttempt(state, nonce, verifier), tenant or None, session, int(at), bool(again))

    def forget(self, response: Response, *, session: bool = False) -> None:
        name, path = (self.session, "/") if session else (self.login, self.callback)
        response.set_cookie(
            name, "", max_age=0, path=path, secure=self.secure, httponly=True, samesite="strict" if session else "lax"
        )


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """Content of the login cookie. It is sealed, so that a callback asks the provider only for logins started here.
    `session`: id of the browser's session at that time, which the new session replaces. `at`: seconds since 1970.
    `again`: the provider has to authenticate the person again."""

    attempt: LoginAttempt
    tenant: str | None
    session: str
    at: int
    again: bool = False


def credential_of(request: Request, cookies: Cookies | None) -> str:
    """Return the bearer token, else the session, else an empty string. Raises Forbidden for a change with a session
    from another origin, KeyUnknown for two authorization headers."""
    sent = request.headers.getlist("authorization")
    if len(sent) > 1:
        raise KeyUnknown("more than one authorization header was sent; send one")
    if sent:
        return sent[0][len(BEARER) :].strip() if sent[0][: len(BEARER)].lower() == BEARER else ""
    session = request.cookies.get(cookies.session, "") if cookies else ""
    if cookies and session and request.method not in SAFE_METHODS and request.headers.get("origin") != cookies.origin:
        raise Forbidden(f"changes with a session are accepted from {cookies.origin} only; send a token instead")
    return session
