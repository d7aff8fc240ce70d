"""Client address behind a trusted proxy, from the header that the proxy writes.

Only connections from the configured networks are trusted, and only the part of the header that trusted proxies wrote:
the header is read from its end to the first address that is not a trusted proxy's. Only the configured header is read,
because a proxy may pass on the other one from a client.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from itertools import islice
from typing import Literal

from starlette.types import ASGIApp, Receive, Scope, Send

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
ProxyHeader = Literal["x-forwarded-for", "forwarded"]

MOST_HOPS = 32
"""Most addresses read from a header; a chain of trusted proxies is shorter."""


class TrustedProxies:
    """ASGI middleware for proxies in `networks`. It sets `scope["client"]` to the client that they name, or to None if
    they name none or the header is invalid, so that a proxy's own address permits nothing."""

    def __init__(self, app: ASGIApp, networks: Sequence[Network], header: ProxyHeader) -> None:
        self._app = app
        self._networks = tuple(networks)
        self._name = header.encode()
        self._hops: Callable[[str], Iterator[Address]] = forwarded_for if header == "forwarded" else x_forwarded_for

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (peer := _peer(scope)) is not None and self._trusts(peer):
            scope = {**scope, "client": self._client(scope["headers"])}
        await self._app(scope, receive, send)

    def _client(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, int] | None:
        value = ",".join(value.decode("latin-1") for name, value in headers if name == self._name)
        client: Address | None = None
        try:
            for client in islice(self._hops(value), MOST_HOPS):
                if not self._trusts(client):
                    break
        except ValueError:
            return None
        return (str(client), 0) if client is not None else None

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def x_forwarded_for(value: str) -> Iterator[Address]:
    """Yield the addresses of an ``X-Forwarded-For`` header, nearest first. Raises ValueError at an invalid address."""
    return (_address(part.strip()) for part in reversed(value.split(",")) if part.strip())


def forwarded_for(value: str) -> Iterator[Address]:
    """Yield the ``for`` addresses of a ``Forwarded`` header (RFC 7239 §4), nearest first. Raises ValueError at an
    element without an address, such as one with an obfuscated name (``unknown``, ``_hidden``)."""
    for element in _elements_from_the_end(value):
        named = [
            words.strip().strip('"')
            for name, _, words in (pair.partition("=") for pair in element.split(";"))
            if name.strip().lower() == "for"
        ]
        if len(named) != 1:
            raise ValueError("not one address")
        yield _address(named[0])


def _elements_from_the_end(value: str) -> Iterator[str]:
    """Yield the elements between unquoted commas, last first. Quotes are counted from the end, so that an unclosed
    quote from the client, at the beginning, cannot hide elements that a proxy appended."""
    end, quoted = len(value), False
    for at in range(len(value) - 1, -1, -1):
        if value[at] == '"':
            quoted = not quoted
        elif value[at] == "," and not quoted:
            if element := value[at + 1 : end].strip():
                yield element
            end = at
    if element := value[:end].strip():
        yield element


def _address(written: str) -> Address:
    """Parse an address with or without a port: ``192.0.2.1``, ``192.0.2.1:80``, ``2001:db8::1``, ``[2001:db8::1]:80``.
    An IPv4-mapped IPv6 address becomes IPv4. Raises ValueError."""
    if bracketed := re.fullmatch(r"\[([0-9A-Fa-f:.]+)\](?::\d{1,5})?", written):
        written = bracketed[1]
    elif written.count(":") == 1:
        written, _, port = written.partition(":")
        if not port.isdecimal():
            raise ValueError("not a port")
    address = ip_address(written)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _peer(scope: Scope) -> Address | None:
    try:
        return _address(scope["client"][0])
    except (KeyError, TypeError, ValueError):
        return None
