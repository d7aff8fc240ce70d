"""Sessions of a user at remote installations: opened through the identity provider, renewed before expiry, closed."""

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
"""A session is renewed this long before its end, so that it does not expire during a command."""
DEVICE_LOGIN = "device-login"


def device_client(anyone: AdminApi) -> DeviceClient | None:
    """Return the gateway's client for the device flow, or None if it does not offer this login. Raises StoreError."""
    try:
        said = anyone.get(DEVICE_LOGIN)
    except (NotFound, NotLoggedIn):  # NotLoggedIn: a gateway without the route
        return None
    client = DeviceClient(str(said["issuer"]), str(said["client_id"]), str(said["scope"]))
    if not is_safe_url(client.issuer):
        raise DeviceLoginFailed("the gateway names an identity provider without https; check oidc.issuer")
    return client


def open_session(
    where: Credentials, client: DeviceClient, tenant: str | None, show: Callable[[Verification], None]
) -> Credentials:
    """Return the credentials of the person who logs in. `where`: credentials without a token. `show` is called with the
    URL and the code to enter. Raises StoreError."""
    return _exchanged(where, client, tenant, DeviceFlow(client).tokens(show))


def fresh(url: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Credentials:
    """Return the credentials for `url`, renewed if their session ends soon. Raises CredentialsError, StoreError."""
    kept = load(url)
    if kept.renewal is None or not kept.renewal.is_due(now() + EARLY):
        return kept
    with locked(url):
        kept = load(url)  # another command may have renewed it
        if kept.renewal is None or not kept.renewal.is_due(now() + EARLY):
            return kept
        if kept.renewal.refresh is None:
            raise CredentialsError(f"your session at {url} has ended; run: domicile login --url {url}")
        client = _client_of(kept.renewal)
        tokens = DeviceFlow(client).renewed(kept.renewal.refresh)
        # Store the new refresh token before using it: the old one is invalid even if a later step fails.
        save(replace(kept, renewal=replace(kept.renewal, refresh=tokens.refresh)), make_current=False)
        renewed = _exchanged(replace(kept, token=""), client, kept.renewal.tenant, tokens)
        save(renewed, make_current=False)
        return renewed


def close_session(kept: Credentials) -> list[str]:
    """End the session at the gateway and the login at the provider. Returns the failed steps as sentences."""
    if kept.renewal is None:
        return []
    undone = []
    try:
        AdminApi(kept).post("logout")
    except NotLoggedIn:
        pass  # the session has already ended
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
