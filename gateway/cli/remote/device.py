"""Login from the command line through the identity provider: device flow (RFC 8628), renewal and revocation.

The command contacts the provider directly, as the public client that the gateway names. The gateway receives only ID
tokens, each once.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from audit.external_service import Breaker, ExternalAnswer, ExternalService, ExternalUnavailable
from gateway.configuration.settings import is_safe_url
from gateway.database.errors import StoreError

DEADLINE_S = 15.0
INTERVAL_S = 5.0
"""Default polling interval in seconds, and the increase after `slow_down` (RFC 8628 §3.5)."""
LONGEST_S = 1800.0
"""Longest time in seconds for a person to log in, even if the provider allows more."""
GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class DeviceLoginFailed(StoreError):
    """The identity provider issued no token."""


@dataclass(frozen=True, slots=True)
class DeviceClient:
    """The OIDC client that the gateway names (``GET /admin/v1/device-login``)."""

    issuer: str
    client_id: str
    scope: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens from the provider. `refresh`: None if the provider issues none; the login then ends with its session."""

    id_token: str
    refresh: str | None


@dataclass(frozen=True, slots=True)
class Verification:
    """URL that a person opens, and the code to enter there."""

    uri: str
    code: str
    complete_uri: str | None


class DeviceFlow:
    """The device flow with one provider. `wait` and `monotonic`: the clock. Every method raises DeviceLoginFailed."""

    def __init__(
        self,
        client: DeviceClient,
        *,
        wait: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._wait, self._monotonic = client, wait, monotonic
        self._service = ExternalService(
            f"the identity provider {client.issuer}", deadline_s=DEADLINE_S, breaker=Breaker(failures=1 << 30)
        )
        self._metadata: Mapping[str, Any] | None = None

    def tokens(self, show: Callable[[Verification], None]) -> Tokens:
        """Return the tokens of the person who logs in. `show` is called with the URL and the code to enter."""
        asked = {"client_id": self._client.client_id, "scope": self._client.scope}
        status, said = self._post("device_authorization_endpoint", asked)
        try:
            if status != 200:
                raise _refused(said)
            complete = said.get("verification_uri_complete")
            uris = [str(said["verification_uri"]), *([str(complete)] if complete else [])]
            if not all(is_safe_url(uri.partition("?")[0]) and uri.isprintable() for uri in uris):
                raise DeviceLoginFailed("the identity provider names no https URL to log in at; ask its administrators")
            shown = Verification(uris[0], str(said["user_code"]), uris[1] if complete else None)
            code, ends_in = str(said["device_code"]), min(float(said["expires_in"]), LONGEST_S)
            interval = max(0.0, float(said.get("interval", INTERVAL_S)))
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceLoginFailed(
                "the identity provider's answer is none of the device flow; see that it offers RFC 8628"
            ) from error
        if not shown.code.isprintable() or len(shown.code) > 64:
            raise DeviceLoginFailed("the identity provider's code cannot be shown; ask its administrators")
        show(shown)
        return self._polled(code, self._monotonic() + ends_in, interval)

    def renewed(self, refresh: str) -> Tokens:
        """Return new tokens for a refresh token, which may become invalid by this."""
        asked = {"grant_type": "refresh_token", "refresh_token": refresh, "client_id": self._client.client_id}
        status, said = self._post("token_endpoint", asked)
        if status != 200:
            raise _refused(said)
        return _tokens(said, refresh)

    def revoke(self, refresh: str) -> bool:
        """Revoke a refresh token (RFC 7009). Returns whether the provider supports it."""
        if "revocation_endpoint" not in self._published():
            return False
        asked = {"token": refresh, "token_type_hint": "refresh_token", "client_id": self._client.client_id}
        status, said = self._post("revocation_endpoint", asked)
        if status != 200:
            raise _refused(said)
        return True

    def _polled(self, code: str, ends_at: float, interval: float) -> Tokens:
        asked = {"grant_type": GRANT, "device_code": code, "client_id": self._client.client_id}
        while self._monotonic() < ends_at:
            self._wait(interval)
            try:
                status, said = self._post("token_endpoint", asked)
            except _Silent:
                interval *= 2  # RFC 8628 §3.5
                continue
            if status == 200:
                return _tokens(said, None)
            match said.get("error"):
                case "authorization_pending":
                    pass
                case "slow_down":
                    interval += INTERVAL_S
                case _:
                    raise _refused(said)
        raise DeviceLoginFailed("the login was not completed in time; run `domicile login` again")

    def _published(self) -> Mapping[str, Any]:
        if self._metadata is None:
            said = self._object(
                self._ask("GET", f"{self._client.issuer.rstrip('/')}/.well-known/openid-configuration", None)
            )
            if said.get("issuer") != self._client.issuer:
                raise DeviceLoginFailed("the identity provider's metadata name another issuer; check oidc.issuer")
            self._metadata = said
        return self._metadata

    def _post(self, endpoint: str, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        url = self._published().get(endpoint)
        if not isinstance(url, str) or not is_safe_url(url):
            raise DeviceLoginFailed(
                f"the identity provider publishes no https {endpoint}; let it offer the device flow, or log in with "
                "--token-file"
            )
        answer = self._ask("POST", url, urlencode(form).encode())
        return answer.status, {} if answer.status == 200 and not answer.content else self._object(answer)

    def _ask(self, method: str, url: str, content: bytes | None) -> ExternalAnswer:
        headers = {"accept": "application/json"}
        if content is not None:
            headers["content-type"] = "application/x-www-form-urlencoded"
        try:
            return self._service.request(method, url, content=content, headers=headers)
        except ExternalUnavailable as error:
            raise _Silent(f"{error}; try again") from None

    def _object(self, answer: ExternalAnswer) -> Mapping[str, Any]:
        try:
            said = json.loads(answer.content)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise DeviceLoginFailed(
                f"the identity provider answered {answer.status} without an object; check oidc.issuer"
            )
        return said


class _Silent(DeviceLoginFailed):
    """The provider does not respond at present."""


def _tokens(said: Mapping[str, Any], before: str | None) -> Tokens:
    """Return the tokens in a response. before: refresh token that stays valid if no new one is issued (RFC 6749 §6)."""
    id_token, refresh = said.get("id_token"), said.get("refresh_token", before)
    if not isinstance(id_token, str) or not isinstance(refresh, str | None):
        raise DeviceLoginFailed("the identity provider gave no ID token; let it give one for the scope openid")
    return Tokens(id_token, refresh)


_WORDS = {
    "access_denied": "the login was refused at the identity provider; run `domicile login` again",
    "expired_token": "the login was not completed in time; run `domicile login` again",
    "invalid_grant": "the login has ended at the identity provider; run `domicile login` again",
    "invalid_client": "the identity provider does not know this client; check oidc.device_client_id",
    "unauthorized_client": "the client may not use the device flow; allow it at the identity provider",
}


def _refused(said: Mapping[str, Any]) -> DeviceLoginFailed:
    """Return the error for a refusal. The provider's own text is left out, because it may quote the request."""
    error = said.get("error")
    known = _WORDS.get(error) if isinstance(error, str) else None
    return DeviceLoginFailed(known or "the identity provider refused the request; ask its administrators")
