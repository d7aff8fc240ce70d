"""Sessions of a user at installations elsewhere: opened by the identity provider, renewed before they end, closed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.cli.remote.api import AdminApi, NotLoggedIn
from gateway.cli.remote.credentials import Credentials, CredentialsError, Renewal, load, locked, save
from gateway.cli.remote.device import DeviceClient, DeviceFlow, DeviceLoginFailed, Tokens, Verification
from gateway.configuration.settings import is_safe_url
from gateway.database.errors import NotFound, StoreError

EARLY = timedelta(minutes=1)
"""Before its end a session is renewed, so that a command does not lose it half-way."""
DEVICE_LOGIN = "device-login"


def device_client(anyone: AdminApi) -> DeviceClient | None:
    """Of the gateway that is asked; None where it offers no login by device. Raises StoreError."""
    try:
        said = anyone.get(DEVICE_LOGIN)
    except (NotFound, NotLoggedIn):  # the latter of a gateway that does not know the route
        return None
    client = DeviceClient(str(said["issuer"]), str(said["client_id"]), str(said["scope"]))
    if not is_safe_url(client.issuer):
        raise DeviceLoginFailed("the gateway names an identity provider without https; check oidc.issuer")
    return client


def open_session(
    where: Credentials, client: DeviceClient, tenant: str | None, show: Callable[[Verification], None]
) -> Credentials:
    """Those of a person who logs in where `show` says. `where`: without a token. Raises StoreError."""
    return _exchanged(where, client, tenant, DeviceFlow(client).tokens(show))


def fresh(url: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Credentials:
    """The credentials for `url`, renewed where their session is about to end. Raises CredentialsError, StoreError."""
    kept = load(url)
    if kept.renewal is None or not kept.renewal.is_due(now() + EARLY):
        return kept
    with locked(url):
        kept = load(url)  # another command may have been faster
        if kept.renewal is None or not kept.renewal.is_due(now() + EARLY):
            return kept
        if kept.renewal.refresh is None:
            raise CredentialsError(f"your session at {url} has ended; run: domicile login --url {url}")
        client = _client_of(kept.renewal)
        tokens = DeviceFlow(client).renewed(kept.renewal.refresh)
        # Kept before it is used: the refresh token before is spent, whatever becomes of the rest.
        save(replace(kept, renewal=replace(kept.renewal, refresh=tokens.refresh)), make_current=False)
        renewed = _exchanged(replace(kept, token=""), client, kept.renewal.tenant, tokens)
        save(renewed, make_current=False)
        return renewed


def close_session(kept: Credentials) -> list[str]:
    """End the session at the gateway and the login at the provider; what of it could not be done, as sentences."""
    if kept.renewal is None:
        return []
    undone = []
    try:
        AdminApi(kept).post("logout")
    except NotLoggedIn:
        pass  # it has ended
    except StoreError as error:
        undone.append(f"the session at {kept.url} goes on until {kept.renewal.expires_at}: {error}")
    try:
        if kept.renewal.refresh is not None:
            DeviceFlow(_client_of(kept.renewal)).revoke(kept.renewal.refresh)
    except StoreError as error:
        undone.append(f"the login at {kept.renewal.issuer} goes on: {error}")
    return undone


def _exchanged(where: Credentials, client: DeviceClient, tenant: str | None, tokens: Tokens) -> Credentials:
    body: dict[str, Any] = {"id_token": tokens.id_token, "tenant": tenant}
    said = AdminApi(where).post(DEVICE_LOGIN, body=body)
    renewal = Renewal(said["expires_at"], client.issuer, client.client_id, client.scope, tenant, tokens.refresh)
    return replace(where, token=said["token"], renewal=renewal)


def _client_of(renewal: Renewal) -> DeviceClient:
    return DeviceClient(renewal.issuer, renewal.client_id, renewal.scope)
