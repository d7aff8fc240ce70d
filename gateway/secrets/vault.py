"""HashiCorp Vault's HTTP API, as far as the transit engine needs it (developer.hashicorp.com/vault/api-docs).

    VaultError              a KeyProviderError: what needs the key fails closed
    ├── VaultUnreachable    no answer in time, or no trusted one
    ├── VaultSealed         503: it holds the keys but cannot use them until somebody unseals it
    ├── VaultDenied         403: the token is wrong, has ended, or may not do this
    ├── VaultMissing        404
    └── VaultRefused        400: what was asked makes no sense to it; `errors` has its words

Neither the token nor anything that was sent stands in a message.
"""

import logging
import time
import weakref
from collections.abc import Mapping
from hmac import compare_digest
from pathlib import Path
from threading import Lock
from typing import Any

import httpx2

from audit.errors import KeyProviderError
from gateway.settings import Vault

logger = logging.getLogger("domicile.secrets")

RETRIED = frozenset({412, 429, 500, 502, 503, 504})
"""Statuses that may pass: behind on replication, limited, failing for now, sealed or standby."""
MAX_ANSWER_BYTES = 1 << 20
_SAID = 200  # characters of Vault's own words that a message carries


class VaultError(KeyProviderError):
    """Vault did not do what it was asked."""


class VaultUnreachable(VaultError):
    """No answer in time, or none that could be trusted."""


class VaultSealed(VaultError):
    """It cannot use its keys until it is unsealed."""


class VaultDenied(VaultError):
    """The token does not allow it."""


class VaultMissing(VaultError):
    """There is nothing of that name, or the token may not see it."""


class VaultRefused(VaultError):
    """`errors` are Vault's own words."""

    def __init__(self, message: str, errors: tuple[str, ...]) -> None:
        super().__init__(message)
        self.errors = errors


class VaultClient:
    """Calls of one mount of the transit engine. Any thread may use it."""

    def __init__(self, settings: Vault, *, backoff_s: float = 0.1) -> None:
        """Raises KeyProviderError if the token or the CA file cannot be read."""
        if settings.address is None or settings.token_file is None:
            raise KeyProviderError("secrets.provider is vault: set secrets.vault.address and secrets.vault.token_file")
        self.address = settings.address
        self.mount = settings.mount
        self._retries = settings.retries
        self._backoff_s = backoff_s
        self._token = _TokenFile(settings.token_file)
        self._token.read()
        headers = {"x-vault-request": "true"}
        if settings.namespace:
            headers["x-vault-namespace"] = settings.namespace
        try:
            self._http = httpx2.Client(
                base_url=f"{settings.address.rstrip('/')}/v1/{settings.mount}/",
                headers=headers,
                timeout=settings.timeout_s,
                verify=_trust(settings.ca_file),
                trust_env=False,  # no proxy of the environment gets to see the token
                follow_redirects=False,  # nor does whatever a redirect names
            )
        except OSError as error:
            raise KeyProviderError(f"secrets.vault.ca_file cannot be used: {error}") from error
        self._closing = weakref.finalize(self, self._http.close)  # it lives as long as the installation that asks it

    def get(self, path: str) -> dict[str, Any]:
        """The `data` of the answer. Raises VaultError."""
        return self._call("GET", path, None, self._retries)

    def post(self, path: str, body: Mapping[str, Any], *, repeatable: bool = True) -> dict[str, Any]:
        """As `get`. What is not `repeatable` is sent once: whether it took effect is not known after a time-out."""
        return self._call("POST", path, body, self._retries if repeatable else 0)

    def close(self) -> None:
        self._closing()

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None, retries: int) -> dict[str, Any]:
        token = self._token.read()
        for attempt in range(retries + 1):
            failure, again = self._once(method, path, body, token)
            if isinstance(failure, dict):
                return failure
            if isinstance(failure, VaultDenied) and not compare_digest(renewed := self._token.read(), token):
                token = renewed  # it was replaced while we asked; the refusal took no effect
                failure, again = self._once(method, path, body, token)
                if isinstance(failure, dict):
                    return failure
            if not again or attempt == retries:
                raise failure
            logger.warning("vault: %s; trying again", failure)
            time.sleep(self._backoff_s * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, token: str
    ) -> tuple[dict[str, Any] | VaultError, bool]:
        """The data, or what went wrong and whether it may pass."""
        try:
            response = self._http.request(method, path, json=body, headers={"x-vault-token": token})
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return VaultUnreachable(f"Vault at {self.address} cannot be reached: {type(error).__name__}"), True
        status = response.status_code
        if status in (200, 204):
            return _data(response)
        return _failure(status, _errors(response), f"Vault at {self.address}, {method} {path}"), status in RETRIED


class _TokenFile:
    """The token, read anew when the file is another than before: an agent replaces it before it ends.

    Unlike our own secrets it may be a link or another user's (so agents and Kubernetes write it), but not the world's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    def read(self) -> str:
        """Raises VaultDenied if there is no token in it."""
        try:
            with self._lock:
                found = self._path.stat()
                seen = found.st_ino, found.st_mtime_ns, found.st_size
                if seen != self._seen:
                    if found.st_mode & 0o007:
                        raise VaultDenied(f"{self._path} can be touched by everybody: run chmod o-rwx on it")
                    token = self._path.read_text(encoding="ascii").strip()
                    if not token or not token.isprintable():
                        raise VaultDenied(f"there is no token in {self._path}")
                    self._seen, self._token = seen, token
                return self._token
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise VaultDenied(f"the token in {self._path} cannot be read: {why}") from error


def _trust(ca_file: Path | None) -> Any:
    """What the server's certificate is judged by: the file alone, else the system's store."""
    import ssl

    return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))


def _data(response: httpx2.Response) -> tuple[dict[str, Any] | VaultError, bool]:
    if response.status_code == 204 or not response.content:
        return {}, False
    try:
        if len(response.content) > MAX_ANSWER_BYTES:
            raise ValueError
        data = response.json().get("data") or {}
        if not isinstance(data, dict):
            raise ValueError
    except (ValueError, AttributeError):
        return VaultUnreachable("what answered is not Vault: its answer is not of the API"), False
    return data, False


def _errors(response: httpx2.Response) -> tuple[str, ...]:
    try:
        said = response.json()["errors"]
        return tuple(str(each)[:_SAID] for each in said) if isinstance(said, list) else ()
    except (ValueError, KeyError, TypeError):
        return ()


def _failure(status: int, errors: tuple[str, ...], what: str) -> VaultError:
    said = "".join(char if char.isprintable() else "?" for char in "; ".join(errors))[:_SAID]
    sentence = f"{what}: {status}" + (f" ({said})" if said else "")
    if status == 503:
        return VaultSealed(f"{sentence}: it is sealed, on standby or down for maintenance")
    if status == 403:
        return VaultDenied(f"{sentence}: the token may not do this")
    if status == 404:
        return VaultMissing(sentence)
    if status == 400:
        return VaultRefused(sentence, errors)
    if 300 <= status < 400:
        return VaultError(f"{sentence}: it redirects; name the active node or a balancer in secrets.vault.address")
    return VaultError(sentence)
