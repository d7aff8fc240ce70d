"""Client of the identity provider: its metadata, logins and keys (OpenID Connect Core, Discovery).

What it publishes is read again every ten minutes, and for a key that is not known, but never more often than every
ten seconds, also under unauthenticated calls. If it does not answer, keys known already serve until they are
`keys_max_age_s` old; after that no login and no token of its is accepted (fail closed).

Every call to it has a deadline, a bound on its answer and a pool of its own (`audit.external_service`). Its HTTP client
and OAuth library are loaded with this module, by gateways that have a provider alone.
"""

import base64
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote_plus, urlencode

from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc.jwk import Key

from audit.external_service import Breaker, ExternalAnswer, ExternalService, ExternalUnavailable
from audit.files.secret_file import read_secret
from gateway.configuration.settings import Oidc, is_safe_url
from gateway.identity.jwt import (
    JwtRefused,
    check_claims,
    check_device_login,
    check_login,
    public_keys,
    read_header,
    verified_claims,
)
from gateway.identity.login import FRESH, CodeRefused, LoginAttempt, ProviderUnavailable

REFRESH_AFTER_S = 600
ASK_EVERY_S = 10
DEADLINE_S = 5.0
"""For a whole call, to the last byte of its answer."""
MAX_DOCUMENT = 1 << 20
_KEYS = "jwks_uri"
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", _KEYS)


@dataclass(frozen=True, slots=True)
class Published:
    """The provider's metadata, as of instant `at` of a monotonic clock.

    `names_itself`: its answers carry ``iss`` (RFC 9207). `end_session`: where a browser ends its session there (OpenID
    Connect RP-Initiated Logout).
    """

    endpoints: dict[str, str]
    secret_in_body: bool
    keys: list[Key]
    at: float
    names_itself: bool = False
    end_session: str | None = None

    def key(self, kid: str | None) -> Key | None:
        """The one named `kid`; where a token names none, the only one there is (OpenID Connect Core §10.1)."""
        fitting = [key for key in self.keys if key.kid == kid] if kid is not None else self.keys
        return fitting[0] if len(fitting) == 1 else None


class IdentityProvider:
    """Called from threads, of which several may come at once."""

    def __init__(
        self,
        settings: Oidc,
        *,
        tls: ssl.SSLContext | None = None,
        bearer_file: Path | None = None,
        transport: Any = None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tls`: how the provider's certificate is verified, by default against the system's authorities;
        `bearer_file`: a token to read what it publishes with, as of Kubernetes. Raises OSError where the client's
        secret cannot be read, LoosePermissions where others could too."""
        if settings.issuer is None:
            raise ValueError("there is no identity provider in these settings; set oidc.issuer")
        self.settings = settings
        self._issuer = settings.issuer
        self._secret = _secret(settings.client_secret_file)
        self._service = ExternalService(
            "the identity provider",
            deadline_s=DEADLINE_S,
            max_bytes=MAX_DOCUMENT,
            tls=tls,
            breaker=Breaker(longest_s=ASK_EVERY_S, now=monotonic),
            transport=transport,
        )
        self._bearer_file = bearer_file
        self._now = now
        self._monotonic = monotonic
        self._published: Published | None = None
        self._asked_at = float("-inf")
        self._failed = ""
        self._asking = Lock()

    # People

    def authorization_url(self, attempt: LoginAttempt, again: bool = False) -> str:
        """Where to send a browser: code flow, PKCE S256 (RFC 7636), state, nonce. Raises ProviderUnavailable.

        `again`: the provider is to ask the person even if they are signed in there, and to say when it did (OpenID
        Connect Core 3.1.2.1: with ``max_age`` the ID token has ``auth_time``).
        """
        asked = {"prompt": "login", "max_age": str(int(FRESH.total_seconds()))} if again else {}
        url: str = prepare_grant_uri(
            self._current().endpoints["authorization_endpoint"],
            client_id=self.settings.client_id,
            response_type="code",
            redirect_uri=self.settings.redirect_uri,
            scope=self.settings.scope,
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=create_s256_code_challenge(attempt.verifier),
            code_challenge_method="S256",
            **asked,
        )
        return url

    def check_issuer(self, issuer: str | None) -> None:
        """The ``iss`` of an authorization response, which must be there where the provider advertises it (RFC 9207
        §2.4). Raises JwtRefused, ProviderUnavailable."""
        if issuer is None and self._current().names_itself:
            raise JwtRefused(
                "login_issuer", "the answer does not name the identity provider that it comes from; check oidc.issuer"
            )
        if issuer is not None and issuer != self._issuer:
            raise JwtRefused("login_issuer", "the answer comes from another identity provider; check oidc.issuer")

    def end_session_url(self) -> str | None:
        """The URL that ends the session at the provider after a logout here, if it advertises one. Sends no request."""
        published = self._published
        if published is None or published.end_session is None:
            return None
        query = {"client_id": self.settings.client_id or ""}
        if self.settings.post_logout_redirect_uri is not None:
            query["post_logout_redirect_uri"] = self.settings.post_logout_redirect_uri
        joint = "&" if "?" in published.end_session else "?"
        return f"{published.end_session}{joint}{urlencode(query)}"

    def person(self, code: str, attempt: LoginAttempt) -> dict[str, Any]:
        """The claims of who came back with `code`. Raises CodeRefused, JwtRefused, ProviderUnavailable."""
        answer = self._redeemed(self._current(), code, attempt)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise ProviderUnavailable(
                "the identity provider sent no ID token; check the scope openid and the client at the provider"
            )
        client_id = self.settings.client_id or ""
        claims = self._verified(token, client_id)
        check_login(claims, client_id=client_id, nonce=attempt.nonce)
        return claims

    def person_at_device(self, token: str) -> dict[str, Any]:
        """The claims of an ID token that a command line got by the device flow (RFC 8628). Raises JwtRefused,
        ProviderUnavailable."""
        client_id = self.settings.device_client_id
        if client_id is None:
            raise JwtRefused("jwt_audience", "logging in from a command line is off; set oidc.device_client_id")
        claims = self._verified(token, client_id)
        skew_s = self.settings.clock_skew_s
        check_device_login(claims, client_id=client_id, now=self._now(), skew_s=skew_s)
        return claims

    def _redeemed(self, published: Published, code: str, attempt: LoginAttempt) -> dict[str, Any]:
        """The token response (RFC 6749 §4.1.3, RFC 7636 §4.5)."""
        client_id = self.settings.client_id or ""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.settings.redirect_uri or "",
            "code_verifier": attempt.verifier,
        }
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        if self._secret is None:
            form["client_id"] = client_id
        elif published.secret_in_body:
            form |= {"client_id": client_id, "client_secret": self._secret}
        else:
            pair = f"{quote_plus(client_id)}:{quote_plus(self._secret)}".encode()  # RFC 6749 §2.3.1
            headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        answer = self._ask_service("POST", published.endpoints["token_endpoint"], urlencode(form).encode(), headers)
        answered = _object(answer)
        if answer.status == 200 and answered is not None and "error" not in answered:
            return answered
        error = None if answered is None else answered.get("error")
        if error in {"invalid_client", "unauthorized_client"}:
            raise ProviderUnavailable(
                "the identity provider does not accept this gateway's client secret; correct oidc.client_secret_file"
            )
        if isinstance(error, str):
            raise CodeRefused("the identity provider did not accept the code; log in again")
        raise ProviderUnavailable("the identity provider did not redeem the code")

    # Machines

    def machine(self, token: str) -> dict[str, Any]:
        """The claims of the machine that sent `token`. Raises JwtRefused, ProviderUnavailable."""
        if self.settings.audience is None:
            raise JwtRefused("jwt_audience", "tokens of machines are not accepted here; set oidc.audience")
        return self._verified(token, self.settings.audience)

    def _verified(self, token: str, audience: str) -> dict[str, Any]:
        header = read_header(token)
        claims = verified_claims(token, header, self._key(header.kid))
        check_claims(claims, issuer=self._issuer, audience=audience, now=self._now(), skew_s=self.settings.clock_skew_s)
        return claims

    # What it publishes

    def _key(self, kid: str | None) -> Key:
        if (key := self._current().key(kid)) is not None:
            return key
        self._ask(wait=True)
        if (key := self._current().key(kid)) is not None:
            return key
        if self._failed:  # it may be one that we have not heard of
            raise ProviderUnavailable(self._failed)
        raise JwtRefused(
            "jwt_key", "the token is signed with a key that is not known; get a new token from the identity provider"
        )

    def _current(self) -> Published:
        """Metadata not older than allowed. The first caller that finds it old fetches it; others use what there is."""
        if self._published is None or self._age() > self.settings.keys_max_age_s:
            self._ask(wait=True)
        elif self._age() > REFRESH_AFTER_S:
            self._ask(wait=False)
        if self._published is None or self._age() > self.settings.keys_max_age_s:
            raise ProviderUnavailable(self._failed or "the identity provider does not answer")
        return self._published

    def _age(self) -> float:
        return float("inf") if self._published is None else self._monotonic() - self._published.at

    def _ask(self, *, wait: bool) -> None:
        """Read what the provider publishes, unless that was tried just now, also by another thread waited for."""
        if not self._asking.acquire(blocking=wait):
            return
        try:
            if self._monotonic() - self._asked_at < ASK_EVERY_S:
                return
            self._asked_at = self._monotonic()
            try:
                self._published, self._failed = self._read(), ""
            except ProviderUnavailable as error:
                self._failed = str(error)
        finally:
            self._asking.release()

    def _read(self) -> Published:
        at = self._monotonic()
        answered = self._document(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        if answered.get("issuer") != self._issuer:
            raise ProviderUnavailable("the identity provider's metadata name another issuer; correct oidc.issuer")
        needed = _ENDPOINTS if self.settings.redirect_uri is not None else (_KEYS,)
        endpoints = {name: _endpoint(answered, name) for name in needed}
        keys = public_keys(self._document(endpoints["jwks_uri"]))
        if not keys:
            raise ProviderUnavailable(
                "the identity provider publishes no key that may sign; let the provider publish one at its jwks_uri"
            )
        methods = answered.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        in_body = "client_secret_basic" not in methods and "client_secret_post" in methods
        end_session = _endpoint(answered, "end_session_endpoint") if answered.get("end_session_endpoint") else None
        named = answered.get("authorization_response_iss_parameter_supported") is True
        return Published(endpoints, in_body, keys, at, named, end_session)

    def _document(self, url: str) -> dict[str, Any]:
        headers = {"accept": "application/json"}
        if self._bearer_file is not None:
            headers["authorization"] = f"Bearer {_bearer(self._bearer_file)}"
        answer = self._ask_service("GET", url, None, headers)
        if answer.status != 200:
            raise ProviderUnavailable(
                f"the identity provider answered {answer.status}; check oidc.issuer and that it runs"
            )
        if (read := _object(answer)) is None:
            raise ProviderUnavailable("the identity provider's document is not an object; check oidc.issuer")
        return read

    def _ask_service(self, method: str, url: str, content: bytes | None, headers: Mapping[str, str]) -> ExternalAnswer:
        try:
            return self._service.request(method, url, content=content, headers=headers)
        except ExternalUnavailable as error:
            raise ProviderUnavailable(str(error)) from None


def _secret(file: Path | None) -> str | None:
    return None if file is None else read_secret(file).decode().strip()


def _bearer(file: Path) -> str:
    """Read each time: such tokens are replaced while we run. Raises ProviderUnavailable."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ProviderUnavailable(f"{file} cannot be read; mount the gateway's own token there") from error


def _endpoint(answered: Mapping[str, Any], name: str) -> str:
    url = answered.get(name)
    if not isinstance(url, str) or not is_safe_url(url.partition("?")[0]):
        raise ProviderUnavailable(
            f"the identity provider's {name} is not an https URL; let the provider publish an https URL"
        )
    return url


def _object(answer: ExternalAnswer) -> dict[str, Any] | None:
    try:
        read = json.loads(answer.content)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None
