"""HTTP for what comes from elsewhere: TLS off this host, redirects one by one, and credentials for one origin only.

Synchronous, because nothing else runs yet. Addresses are never in messages: a redirect's holds a signature.
"""

import ipaddress
import logging
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Protocol, Self
from urllib.parse import urljoin, urlsplit

import httpx2

from backend.errors import FetchError
from backend.fetch.patience import Patience

HOPS = 8
MAX_DOCUMENT = 16 << 20
"""Bytes of a listing or a manifest."""
REDIRECTS = (301, 302, 303, 307, 308)


class Interrupted(Exception):
    """The transfer ended early, or could not begin for now; another attempt may do. It says in words what was."""


class Access(Protocol):
    """Credentials for one origin."""

    def headers(self, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """What a GET of `url` with `headers` has to carry besides."""
        ...

    def renew(self, response: httpx2.Response) -> bool:
        """The answer was 401: whether another attempt with other credentials makes sense."""
        ...


class Anonymous:
    """No credentials."""

    def headers(self, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        return {}

    def renew(self, response: httpx2.Response) -> bool:
        return False


class Bearer(Anonymous):
    """A fixed token."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def headers(self, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self._token}"} if self._token else {}


@cache
def tls_context() -> ssl.SSLContext:
    """One for the process, since it takes a tenth of a second to make."""
    return httpx2.create_ssl_context()


class Transport:
    """One pool of connections. Takes proxies and certificate authorities from the environment, as other clients do."""

    def __init__(self, patience: Patience) -> None:
        for name in ("httpx2", "httpcore2"):  # at INFO they log addresses, with signatures in them
            logging.getLogger(name).setLevel(logging.WARNING)
        timeout = httpx2.Timeout(patience.stall_s, connect=min(30.0, patience.stall_s))
        self._patience = patience
        self._client = httpx2.Client(verify=tls_context(), follow_redirects=False, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @contextmanager
    def stream(self, url: str, headers: Mapping[str, str], access: Access) -> Iterator[httpx2.Response]:
        """Return the answer to a GET before its body is read, with any status except a redirect. Credentials
        go to the origin of `url` alone. Raises Interrupted, and FetchError for a redirect that is not followed."""
        origin, renewed = origin_of(url), False
        require_tls(url)
        for _ in range(HOPS):
            own = access.headers(url, headers) if origin_of(url) == origin else {}
            sent = {"accept-encoding": "identity", "user-agent": "domicile", **headers, **own}
            response = self._sent(url, sent)
            try:
                if response.status_code in REDIRECTS and "location" in response.headers:
                    url = _target(url, response.headers["location"])
                elif (
                    response.status_code == 401 and not renewed and origin_of(url) == origin and access.renew(response)
                ):
                    renewed = True
                else:
                    yield response
                    return
            finally:
                response.close()
        raise FetchError(f"{host_of(url)} redirects in circles; name where the model is now")

    def document(self, url: str, headers: Mapping[str, str], access: Access) -> tuple[bytes, httpx2.Response]:
        """A body that fits memory, with status 200; asked for as often as `Patience` says. Raises FetchError."""
        failures = 0
        while True:
            try:
                return self._document(url, headers, access)
            except Interrupted as error:
                failures += 1
                if failures >= self._patience.attempts:
                    raise FetchError(f"{error}; try again, or use --offline if the model was fetched before") from None
                time.sleep(self._patience.pause(failures))

    def _document(self, url: str, headers: Mapping[str, str], access: Access) -> tuple[bytes, httpx2.Response]:
        with self.stream(url, headers, access) as response:
            refuse_status(response, host_of(url))
            body = b""
            try:
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > MAX_DOCUMENT:
                        raise FetchError(f"{host_of(url)} lists more than {MAX_DOCUMENT} bytes; name a smaller folder")
            except httpx2.HTTPError as error:
                raise Interrupted(f"{host_of(url)}: {type(error).__name__}") from None
            return body, response

    def _sent(self, url: str, headers: Mapping[str, str]) -> httpx2.Response:
        try:
            return self._client.send(self._client.build_request("GET", url, headers=dict(headers)), stream=True)
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL):
            raise FetchError("that address cannot be used; check the name and the endpoint") from None
        except httpx2.HTTPError as error:
            raise Interrupted(f"{host_of(url)} cannot be reached ({type(error).__name__})") from None


def refuse_status(response: httpx2.Response, host: str) -> None:
    """Nothing for 200 and 206. Raises Interrupted where trying again may help, else FetchError."""
    status = response.status_code
    if status in (200, 206):
        return
    if status in (408, 425, 429) or status >= 500:
        raise Interrupted(f"{host} answered {status}")
    if status in (401, 403):
        raise FetchError(f"{host} refuses ({status}); give credentials that may read the model (docs/models.md)")
    if status == 404:
        raise FetchError(f"{host} does not have it (404); check the name, and that your credentials may see it")
    raise FetchError(f"{host} answered {status}; check the name and the endpoint")


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def host_of(url: str) -> str:
    """For messages."""
    return urlsplit(url).hostname or "the host"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_tls(url: str) -> None:
    """Raises FetchError for plain HTTP to another host."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise FetchError(f"{host_of(url)} would be asked without TLS; use https:// off this host")


def _target(url: str, location: str) -> str:
    """Raises FetchError where the redirect leads out of TLS, or from another host back into this one."""
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
        inside = is_loopback(parts.hostname or "") and not is_loopback(host_of(url))
    except ValueError:
        raise FetchError(f"{host_of(url)} redirects to no address; check the name and the endpoint") from None
    if inside or parts.username is not None or (parts.scheme != "https" and urlsplit(url).scheme == "https"):
        raise FetchError(f"{host_of(url)} redirects out of TLS or into this host; check the name and the endpoint")
    require_tls(target)
    return target
