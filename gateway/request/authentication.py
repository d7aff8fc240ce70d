"""Authentication of API calls: from the API key or machine token in the headers to a principal.

For an unknown key, the error says only that it does not work.
"""

from collections.abc import Mapping
from types import TracebackType

from gateway.directory.directory import Address, Directory, DirectoryStale
from gateway.directory.web_origins import WebOrigins
from gateway.errors import DirectoryUnavailable, IdentityUnavailable, NotAuthenticated
from gateway.identity.jwt import looks_like_jwt, reason_of
from gateway.identity.keys import KeyElsewhere, KeyExpired, KeyRefused, KeyRevoked
from gateway.identity.login import ProviderUnavailable
from gateway.identity.machines import Machines
from gateway.identity.principal import Principal
from gateway.openai.asgi_client import Client
from gateway.openai.endpoints import Endpoint
from gateway.request.stages import Authenticated
from gateway.request.telemetry import Telemetry

BEARER = "bearer "


class Authenticator:
    """Authenticates callers.

    `machines`: machine identities of the identity provider, if they may call models. `origins`: web origins that may
    call.
    """

    def __init__(
        self,
        directory: Directory,
        telemetry: Telemetry,
        machines: Machines | None = None,
        origins: WebOrigins | None = None,
    ) -> None:
        self._origins = origins or WebOrigins()
        self._directory = directory
        self._machines = machines
        self._refusals = _Refusals(telemetry)

    async def admit(self, endpoint: Endpoint, client: Client) -> Authenticated:
        """Authenticate a call. Raises as `authenticate`.

        Also accepts the key in the header that clients of the endpoint's API use.
        """
        header = endpoint.format.key_header
        if header is not None and "authorization" not in client.headers and header in client.headers:
            client.headers["authorization"] = BEARER + client.headers[header]
        if "origin" in client.headers:
            client.shared = self._origins.headers(client.headers["origin"])
        return Authenticated(endpoint, client, await self.principal_of(client))

    async def principal_of(self, client: Client) -> Principal:
        """Return the current principal of a call: from its headers or, for a batch line, from the batch's key.

        Raises as `authenticate`.
        """
        line = client.batch
        if line is None:
            principal = await self.authenticate(client.headers, client.address)
            if client.server is not None:
                client.server.caller = principal.tenant
            return principal
        with self._refusals:
            return await self._directory.authenticate_stored(line.key_id)

    async def stored(self, key_id: str) -> Principal:
        """Return the principal of a stored key, for work submitted with it. Raises as `Directory.stored`."""
        return await self._directory.authenticate_stored(key_id)

    async def authenticate(self, headers: Mapping[str, str], address: Address | None) -> Principal:
        """Return the principal of the key or token in the `authorization` header of a call from `address`.

        Raises NotAuthenticated or OriginNotAllowed, and DirectoryUnavailable or IdentityUnavailable if its validity
        cannot be checked now.
        """
        bearer = _bearer(headers.get("authorization", ""))
        with self._refusals:
            if self._machines is not None and looks_like_jwt(bearer):
                principal = await self._directory.authenticate_machine(await self._machines.identify(bearer))
            else:
                principal = await self._directory.authenticate(bearer, address)
        if "origin" in headers:
            self._origins.check(principal, headers["origin"])
        return principal

    def is_current(self, principal: Principal) -> bool:
        """Return whether `authenticate` would return the same principal now. Compares identities only."""
        return self._directory.is_current(principal)


class _Refusals:
    """A block whose errors of the directory and the identity provider become errors for clients. One for all calls,
    since a generator for each would cost more than the check."""

    __slots__ = ("_telemetry",)

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, KeyRefused):
            reason = reason_of(error)
            self._telemetry.auth_failures.labels(reason).inc()
            raise NotAuthenticated(
                _sentence(error), code=_code(error), reason=reason, key_id=error.key_id, tenant=error.tenant
            ) from None
        if isinstance(error, DirectoryStale):
            raise DirectoryUnavailable(
                "Keys and policies cannot be checked now, so no request is processed", retry_after_s=2
            ) from error
        if isinstance(error, ProviderUnavailable):
            raise IdentityUnavailable(
                "The identity provider does not answer, so its tokens cannot be checked now", retry_after_s=10
            ) from error


def _bearer(authorization: str) -> str:
    return authorization[len(BEARER) :].strip() if authorization[: len(BEARER)].lower() == BEARER else ""


def _sentence(error: KeyRefused) -> str:
    said = str(error)
    return said[:1].upper() + said[1:]


def _code(error: KeyRefused) -> str | None:
    """Return the error code of a key that is or was valid, whose owner may know why it fails; None for other keys."""
    codes = {KeyExpired: "expired_api_key", KeyRevoked: "revoked_api_key", KeyElsewhere: "api_key_address"}
    return codes.get(type(error))
