"""Header of the PROXY protocol, versions 1 and 2: pure functions over bytes.

Source: "The PROXY protocol", Versions 1 & 2, haproxy.org (doc/proxy-protocol.txt), 2020-03-05. Section numbers refer to
it.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
"""The first 12 bytes of version 2 (§2.2)."""
FIXED = 16
"""Bytes of a version 2 header before the addresses."""
MAX_LINE = 107
"""Most bytes of a version 1 line, line end included (§2.1)."""
MAX_BYTES = 4096
"""Most bytes of a version 2 header: at most 216 for addresses, and the proxy's TLS information."""
_LINE = re.compile(rb"PROXY (TCP4|TCP6) ([0-9A-Fa-f:.]{2,39}) ([0-9A-Fa-f:.]{2,39}) (0|[1-9]\d{0,4}) (0|[1-9]\d{0,4})")
_BEGINS = b"PROXY "
_BYTES_OF_FAMILY = {1: 12, 2: 36, 3: 216}
_LOCAL, _PROXY = 0, 1
_INET, _INET6 = 1, 2


class ProxyHeaderError(ValueError):
    """These bytes are not the beginning of a PROXY header."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """A parsed header. `source`: address and port of the client; None if the proxy names none (version 1 UNKNOWN,
    version 2 LOCAL, or a family other than IP over streams). `length`: bytes of the header."""

    source: tuple[str, int] | None
    length: int


def parse(data: bytes) -> ProxyHeader | None:
    """Parse the header at the beginning of `data`. Returns None while it is incomplete. Later bytes are ignored.

    Raises ProxyHeaderError as soon as `data` cannot become one.
    """
    if data.startswith(SIGNATURE):
        return _version_2(data)
    if data.startswith(_BEGINS):
        return _version_1(data)
    if SIGNATURE.startswith(data) or _BEGINS.startswith(data):
        return None
    raise ProxyHeaderError("the connection does not begin with a PROXY header")


def _version_1(data: bytes) -> ProxyHeader | None:
    line, end, _ = data[:MAX_LINE].partition(b"\r\n")
    if not end:
        if len(data) >= MAX_LINE:
            raise ProxyHeaderError(f"the line of version 1 is longer than {MAX_LINE} bytes")
        return None
    length = len(line) + len(end)
    if line == b"PROXY UNKNOWN" or line.startswith(b"PROXY UNKNOWN "):  # the rest of the line must be ignored (§2.1)
        return ProxyHeader(None, length)
    if (found := _LINE.fullmatch(line)) is None:
        raise ProxyHeaderError("the line of version 1 is not PROXY, a family, two addresses and two ports")
    kind = IPv4Address if found[1] == b"TCP4" else IPv6Address
    try:
        source, _ = (kind(found[place].decode()) for place in (2, 3))
    except ValueError:
        raise ProxyHeaderError("the line of version 1 has an address that is not of its family") from None
    if max(int(found[4]), int(found[5])) > 65535:
        raise ProxyHeaderError("the line of version 1 has a port above 65535")
    return ProxyHeader(_as_client(source, int(found[4])), length)


def _version_2(data: bytes) -> ProxyHeader | None:
    if len(data) < FIXED:
        return None
    version, command, family, transport = data[12] >> 4, data[12] & 15, data[13] >> 4, data[13] & 15
    length = FIXED + int.from_bytes(data[14:FIXED])
    if version != 2 or command not in (_LOCAL, _PROXY):
        raise ProxyHeaderError("the header has another version than 2, or a command that is not known")
    if family > 3 or transport > 2:
        raise ProxyHeaderError("the header has an address family or a transport that is not known")
    if length > MAX_BYTES:
        raise ProxyHeaderError(f"the header is longer than {MAX_BYTES} bytes")
    if command == _PROXY and length - FIXED < _BYTES_OF_FAMILY.get(family, 0):
        raise ProxyHeaderError("the header is shorter than the addresses of its family")
    if len(data) < length:
        return None
    if command == _LOCAL or transport != 1 or family not in (_INET, _INET6):
        return ProxyHeader(None, length)
    if family == _INET:
        return ProxyHeader(_as_client(IPv4Address(data[16:20]), int.from_bytes(data[24:26])), length)
    return ProxyHeader(_as_client(IPv6Address(data[16:32]), int.from_bytes(data[48:50])), length)


def _as_client(address: IPv4Address | IPv6Address, port: int) -> tuple[str, int]:
    """Return address and port. An IPv4-mapped IPv6 address becomes IPv4, so that IPv4 networks apply to it."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address), port
