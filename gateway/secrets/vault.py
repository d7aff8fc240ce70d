"""HashiCorp Vault's HTTP API, as far as the transit engine needs it (developer.hashicorp.com/vault/api-docs).

    VaultError              a KeyProviderError: what needs the key fails closed
    ├── VaultUnreachable    no answer in time, or no trusted one
    ├── VaultSealed         503: it holds the keys but cannot use them until an operator unseals it
    ├── VaultDenied         403: the token is wrong, has ended, or may not do this
    ├── VaultMissing        404
    └── VaultRefused        400: what was asked makes no sense to it; `errors` has its words

Messages contain neither the token nor anything that was sent.
"""

import json
import logging
import time
from collections.abc import Mapping
from hmac import compare_digest
from pathlib import Path
from threading import Lock
from typing import Any

from audit.errors import KeyProviderError, KeyRefused
from audit.external_service import Breaker, ExternalAnswer, ExternalService, ExternalUnavailable
from gateway.configuration.settings import Vault

logger = logging.getLogger("domicile.secrets")

RETRIED = frozenset({412, 429, 500, 502, 503, 504})
"""Statuses that may pass: behind on replication, limited, failing for now, sealed or standby."""
MAX_ANSWER_BYTES = 1 << 20
FAILURES, PAUSE_S = 12, 1.0
"""Calls in a row, retries included, after which Vault is left alone for so long."""
_SAID = 200  # characters of Vault's own words that a message carries


class VaultError(KeyProviderError):
    """Vault did not do what it was asked."""


class VaultUnreachable(VaultError):
    """No answer in time, or none that could be trusted."""


class VaultSealed(VaultError):
    """It cannot use its keys until it is unsealed."""


class VaultDenied(VaultError, KeyRefused):
    """The token does not allow it."""


class VaultMissing(VaultError, KeyRefused):
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
            raise KeyProviderError(
                "secrets.provider is vault, and its address or token is missing; set secrets.vault.address and "
                "secrets.vault.token_file"
            )
        self.address = settings.address
        self.mount = settings.mount
        self._retries = settings.retries
        self._backoff_s = backoff_s
        self._token = _TokenFile(settings.token_file)
        self._token.read()
        self._headers = {"x-vault-request": "true"}
        if settings.namespace:
            self._headers["x-vault-namespace"] = settings.namespace
        self._base = f"{settings.address.rstrip('/')}/v1/{settings.mount}/"
        try:
            self._service = ExternalService(
                f"Vault at {self.address}",
                deadline_s=settings.timeout_s,
                max_bytes=MAX_ANSWER_BYTES,
                tls=_trust(settings.ca_file),
                breaker=Breaker(failures=FAILURES, pause_s=PAUSE_S, longest_s=PAUSE_S),
            )
        except OSError as error:
            raise KeyProviderError(
                f"secrets.vault.ca_file cannot be used: {error}; name a readable file in PEM"
            ) from error

    def get(self, path: str) -> dict[str, Any]:
        """The `data` of the answer. Raises VaultError."""
        return self._call("GET", path, None, self._retries)

    def post(self, path: str, body: Mapping[str, Any], *, repeatable: bool = True) -> dict[str, Any]:
        """As `get`. What is not `repeatable` is sent once: whether it took effect is not known after a time-out."""
        return self._call("POST", path, body, self._retries if repeatable else 0)

    def close(self) -> None:
        self._service.close()

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
        content = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "x-vault-token": token, "content-type": "application/json"}
        try:
            answer = self._service.request(method, self._base + path, content=content, headers=headers)
        except ExternalUnavailable as error:
            if "its answer is" in str(error):
                return VaultUnreachable(f"what answered is not Vault: {error}"), False
            return VaultUnreachable(str(error)), True
        if answer.status in (200, 204):
            return _data(answer)
        place = f"Vault at {self.address}, {method} {path}"
        return _failure(answer.status, _errors(answer), place), answer.status in RETRIED


class _TokenFile:
    """The token, read again when its file has changed: an agent replaces it before it expires.

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
                        raise VaultDenied(f"others than its owner may touch {self._path}; run chmod o-rwx on it")
                    token = self._path.read_text(encoding="ascii").strip()
                    if not token or not token.isprintable():
                        raise VaultDenied(f"there is no token in {self._path}; write one there")
                    self._seen, self._token = seen, token
                return self._token
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise VaultDenied(f"the token in {self._path} cannot be read: {why}; let this process read it") from error


def _trust(ca_file: Path | None) -> Any:
    """What the server's certificate is judged by: the file alone, else the system's store."""
    import ssl

    return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))


def _data(answer: ExternalAnswer) -> tuple[dict[str, Any] | VaultError, bool]:
    if answer.status == 204 or not answer.content:
        return {}, False
    try:
        data = json.loads(answer.content).get("data") or {}
        if not isinstance(data, dict):
            raise ValueError
    except (ValueError, AttributeError, RecursionError):
        return VaultUnreachable("what answered is not Vault: its answer is not of the API"), False
    return data, False


def _errors(answer: ExternalAnswer) -> tuple[str, ...]:
    try:
        reasons = json.loads(answer.content)["errors"]
        return tuple(str(each)[:_SAID] for each in reasons) if isinstance(reasons, list) else ()
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()


def _failure(status: int, errors: tuple[str, ...], what: str) -> VaultError:
    reasons = "".join(char if char.isprintable() else "?" for char in "; ".join(errors))[:_SAID]
    sentence = f"{what}: {status}" + (f" ({reasons})" if reasons else "")
    if status == 503:
        return VaultSealed(f"{sentence}: it is sealed, on standby or down for maintenance; name an active node")
    if status == 403:
        return VaultDenied(f"{sentence}: the token may not do this; give the gateway a token whose policy allows it")
    if status == 404:
        return VaultMissing(f"{sentence}: there is no such key or engine; check secrets.vault.key and mount")
    if status == 400:
        return VaultRefused(f"{sentence}; check the key in Vault, and its type", errors)
    if 300 <= status < 400:
        return VaultError(f"{sentence}: it redirects; name the active node or a balancer in secrets.vault.address")
    return VaultError(f"{sentence}; see Vault's log")
