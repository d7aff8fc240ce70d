"""Who calls the admin API: by an access token, by the session of a browser, or, of a machine, by the provider's token.

A browser sends its session by itself, also when a page of another origin makes it call. So with a session a change must
come from our own origin, which browsers send in `Origin` and no page can alter (in addition to ``SameSite=Strict``).
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
    """The two cookies, as our own address allows: over https bound to this very host and sent over TLS alone."""

    origin: str
    callback: str
    secure: bool

    @classmethod
    def at(cls, settings: Oidc) -> "Cookies | None":
        """None where no identity provider is configured."""
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
        """Comes back with the browser from the provider, which is another site: hence only `lax`."""
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
        """The login that this gateway, or another of the installation, began in this browser not too long ago."""
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
    """Content of the login cookie, sealed: only we can make one, so that a callback asks the provider only for a
    login that was begun here. `session`: the id of the one that the browser had then, which a new one replaces;
    `at`: seconds since 1970; `again`: the person is to show anew who they are."""

    attempt: LoginAttempt
    tenant: str | None
    session: str
    at: int
    again: bool = False


def credential_of(request: Request, cookies: Cookies | None) -> str:
    """What the caller shows, '' if nothing: the bearer token, else the session, which may change something only from
    our own origin. Raises Forbidden, KeyUnknown where there are two of one header."""
    sent = request.headers.getlist("authorization")
    if len(sent) > 1:
        raise KeyUnknown("more than one authorization header was sent; send one")
    if sent:
        return sent[0][len(BEARER) :].strip() if sent[0][: len(BEARER)].lower() == BEARER else ""
    session = request.cookies.get(cookies.session, "") if cookies else ""
    if cookies and session and request.method not in SAFE_METHODS and request.headers.get("origin") != cookies.origin:
        raise Forbidden(f"a session may change something only from {cookies.origin}; send a token instead")
    return session
