"""The identity provider: what it publishes, whom it sends, whose tokens it signed (OpenID Connect Core, Discovery).

What it publishes is read again every ten minutes, and for a key that is not known, but never more often than every
ten seconds, whatever strangers send. If it does not answer, keys known already serve until they are `keys_max_age_s`
old; after that nobody comes in through it (fail closed).

Its HTTP client and OAuth library are loaded with it, by gateways that have a provider alone.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import OAuth2Client
from joserfc.jwk import Key

from gateway.identity.jwt import JwtRefused, check_claims, check_login, public_keys, read_header, verified_claims
from gateway.identity.login import Attempt, CodeRefused, ProviderUnavailable
from gateway.settings import Oidc, is_safe_url
from regions.secret_file import read_secret

REFRESH_AFTER_S = 600
ASK_EVERY_S = 10
TIMEOUT_S = 5
MAX_DOCUMENT = 1 << 20
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True)
class Published:
    """What the provider says of itself, as of instant `at` of a monotonic clock."""

    endpoints: dict[str, str]
    secret_in_body: bool
    keys: list[Key]
    at: float

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
        transport: httpx2.BaseTransport | None = None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises OSError where the client's secret cannot be read, LoosePermissions where others could too."""
        if settings.issuer is None:
            raise ValueError("there is no identity provider in these settings")
        self.settings = settings
        self._issuer = settings.issuer
        self._secret = _secret(settings.client_secret_file)
        self._transport = transport
        self._now = now
        self._monotonic = monotonic
        self._published: Published | None = None
        self._asked_at = float("-inf")
        self._failed = ""
        self._asking = Lock()

    # People

    def authorization_url(self, attempt: Attempt) -> str:
        """Where to send a browser: code flow, PKCE S256 (RFC 7636), state, nonce. Raises ProviderUnavailable."""
        published = self._current()
        with self._client(published) as client:
            url, _ = client.create_authorization_url(
                published.endpoints["authorization_endpoint"],
                state=attempt.state,
                code_verifier=attempt.verifier,
                nonce=attempt.nonce,
            )
        return str(url)

    def person(self, code: str, attempt: Attempt) -> dict[str, Any]:
        """The claims of who came back with `code`. Raises CodeRefused, JwtRefused, ProviderUnavailable."""
        published = self._current()
        try:
            with self._client(published) as client:
                answer = client.fetch_token(
                    published.endpoints["token_endpoint"],
                    grant_type="authorization_code",
                    code=code,
                    redirect_uri=self.settings.redirect_uri,
                    code_verifier=attempt.verifier,
                )
        except OAuthError as error:
            if error.error in {"invalid_client", "unauthorized_client"}:
                raise ProviderUnavailable(
                    "the identity provider does not accept this gateway's client secret"
                ) from error
            raise CodeRefused("the identity provider did not accept the code; log in again") from error
        except (httpx2.HTTPError, ValueError) as error:
            raise ProviderUnavailable("the identity provider did not redeem the code") from error
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise ProviderUnavailable("the identity provider sent no ID token")
        client_id = self.settings.client_id or ""
        claims = self._verified(token, client_id)
        check_login(claims, client_id=client_id, nonce=attempt.nonce)
        return claims

    # Machines

    def machine(self, token: str) -> dict[str, Any]:
        """The claims of the machine that sent `token`. Raises JwtRefused, ProviderUnavailable."""
        if self.settings.audience is None:
            raise JwtRefused("jwt_audience", "tokens of machines are not accepted here")
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
        raise JwtRefused("jwt_key", "the token is signed with a key that is not known")

    def _current(self) -> Published:
        """Not older than allowed. Whoever finds it merely old asks again, and the others go on with what there is."""
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
        with httpx2.Client(transport=self._transport, timeout=TIMEOUT_S, follow_redirects=False) as client:
            said = _document(client, f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if said.get("issuer") != self._issuer:
                raise ProviderUnavailable("the identity provider says that it is another issuer")
            endpoints = {}
            for name in _ENDPOINTS:
                url = said.get(name)
                if not isinstance(url, str) or not is_safe_url(url.partition("?")[0]):
                    raise ProviderUnavailable(f"the identity provider's {name} is not an https URL")
                endpoints[name] = url
            keys = public_keys(_document(client, endpoints["jwks_uri"]))
        if not keys:
            raise ProviderUnavailable("the identity provider publishes no key that may sign")
        methods = said.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        in_body = "client_secret_basic" not in methods and "client_secret_post" in methods
        return Published(endpoints, in_body, keys, at)

    def _client(self, published: Published) -> OAuth2Client:
        method = "client_secret_post" if published.secret_in_body else "client_secret_basic"
        return OAuth2Client(
            self.settings.client_id,
            self._secret,
            token_endpoint_auth_method=method if self._secret else "none",
            scope=self.settings.scope,
            redirect_uri=self.settings.redirect_uri,
            code_challenge_method="S256",
            timeout=TIMEOUT_S,
            follow_redirects=False,
            transport=self._transport,
        )


def _secret(file: Path | None) -> str | None:
    return None if file is None else read_secret(file).decode().strip()


def _document(client: httpx2.Client, url: str) -> dict[str, Any]:
    try:
        with client.stream("GET", url, headers={"accept": "application/json"}) as answer:
            if answer.status_code != 200:
                raise ProviderUnavailable(f"the identity provider answered {answer.status_code}")
            pieces, size = [], 0
            for piece in answer.iter_bytes():
                size += len(piece)
                if size > MAX_DOCUMENT:
                    raise ProviderUnavailable("the identity provider's document is too large")
                pieces.append(piece)
        read = json.loads(b"".join(pieces))
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError) as error:
        raise ProviderUnavailable("the identity provider does not answer") from error
    if not isinstance(read, dict):
        raise ProviderUnavailable("the identity provider's document is not an object")
    return read
