"""IP addresses (RFC 791, RFC 4291) that may identify a person.

Unspecified, loopback, multicast, documentation and well-known addresses are excluded.
"""

import ipaddress
import re
from collections.abc import Iterator

from policy.redact.text.normalise import lowered

_IPV4 = re.compile(
    r"[0-9](?<![A-Za-z0-9_.][0-9])[0-9]{0,2}\.(?:[0-9]{1,3}\.){2}[0-9]{1,3}(?![A-Za-z0-9_]|\.[0-9]"
    r"|-[A-Za-z]{2,16}\.[0-9])"
)
_VERSION = re.compile(
    r"(?:versions?(?: from| to)?|release|build|revision|section|chapter|firmware|kernel|patch|clause|abschnitt|kapitel"
    r"|paragraph"
    r"|upgraded? to|v)"
    r"[\"']?\s{0,2}[:= ]{0,2}\s{0,2}[\"'v]?\Z"
)
_OBJECT_ID = re.compile(r"(?<![a-z])(?:oid|object ?id)s?(?![a-z])|(?<![0-9.])[012](?:\.[0-9]{1,6}){5,}")  # ITU-T X.660
_PRODUCT = re.compile(r"(?:^|[ ;(])[A-Z][A-Za-z]{2,24}/\Z")  # `Chrome/120.0.0.0`
_REQUIRED = re.compile(r"(?:>=|<=|~=|~>)[ \"']{0,2}\Z")  # `xextproto >= 7.0.99.1`
_FILE_OF_A_VERSION = re.compile(
    r"(?:\.tar)?\.(?:zip|t?gz|t?bz2|t?xz|whl|jar|exe|msi|deb|rpm|dmg|dll|so|apk|nupkg)(?![A-Za-z0-9])"
)
_HOST = re.compile(r"\b(?:ip|ipv4|host|server|addr|dns|gateway|client|peer|remote|proxy|login|from|ping|ssh|via)")
_BEFORE = 32
_ARCS = frozenset("012")  # with which an object identifier begins
_SMALL = "32"
_DOT_DIGIT = re.compile(r"\.[0-9]")
_IPV6 = re.compile(
    r"(?<![A-Za-z0-9_:.])(?=[^.\s]{0,45}[0-9])(?:(?:[0-9A-Fa-f]{0,4}:){2,7}"
    r"(?:(?:[0-9]{1,3}\.){3}[0-9]{1,3}|[0-9A-Fa-f]{1,4})?(?![A-Za-z0-9_:])"
    r"|(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}(?=:[0-9]{2,5}(?![0-9A-Fa-f:])))"  # a port after a complete address
)
_IPV6_GROUP, _IPV6_DIGITS = re.compile(":[0-9A-Fa-f]{0,4}:"), 4
_LOOPBACK_PORT = re.compile("::1:[0-9]{2,5}")  # `http://::1:8000`
_WRITTEN_GROUP = re.compile("[0-9A-Fa-f]{3}|[.]")  # part of an address in use: `fe80::1`, `::ffff:192.0.2.1`
# Inside the brackets of an index: `a[100::200]`, `x[..., 1::2]`. In a URL, the bracket follows a slash or an at sign.
_INDEX_BEFORE = re.compile(r"[A-Za-z0-9_)\]]\[[^\[\]\n]{0,24}\Z")
_PREFIX_LENGTH = re.compile(r"/([0-9]{1,3})(?![0-9])")
_WIDEST_HOST_BITS = 8  # a network with fewer hosts may belong to one household
# Documentation addresses (RFC 5737, RFC 3849, RFC 9637) count only if the text presents them as a person's.
_DOCUMENTATION = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
    )
)
_CALLED_A_PERSONS = re.compile(
    r"(?<![^\W_])(?:ip(?:v[46])?(?![^\W\d_])[^0-9\n.;]{0,24}|(?:client|remote(?:[_ ]addr)?|r?host|user|peer|visitor"
    r"|login"
    r"|from|von|aus|depuis|desde|da|van|fran|fra|od|z|src|source|x-forwarded-for)(?:[\"'`:=>,(/ \t*\[]"
    r"|\bis\b){1,8})\[?\Z"
)
_CALLED_REACH, _RECORD_REACH = 40, 64
# Public resolvers: Google, Cloudflare, Quad9, OpenDNS, AdGuard, DNS.SB.
_PUBLIC_RESOLVERS = frozenset(
    map(
        ipaddress.ip_address,
        [
            "8.8.8.8",
            "8.8.4.4",
            "2001:4860:4860::8888",
            "2001:4860:4860::8844",
            "1.1.1.1",
            "1.0.0.1",
            "1.1.1.2",
            "1.0.0.2",
            "1.1.1.3",
            "1.0.0.3",
            "2606:4700:4700::1111",
            "2606:4700:4700::1001",
            "9.9.9.9",
            "149.112.112.112",
            "9.9.9.10",
            "149.112.112.10",
            "2620:fe::fe",
            "2620:fe::9",
            "208.67.222.222",
            "208.67.220.220",
            "94.140.14.14",
            "94.140.15.15",
            "185.222.222.222",
            "45.11.45.11",
        ],
    )
)
_METADATA_SERVICE = ipaddress.ip_address("169.254.169.254")  # of a virtual machine in a cloud
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def find_ips(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of addresses from `start` on that `ipaddress` accepts and that may identify a person."""
    if _DOT_DIGIT.search(text, start):
        for match in _IPV4.finditer(text, start):
            address = _parsed(match[0])
            if address and not _is_version(text, match) and _may_be_somebodys(text, match, address):
                yield match.span()
    if text.count(":", start) > 1 and (group := _IPV6_GROUP.search(text, start)):
        for match in _IPV6.finditer(text, max(start, group.start() - _IPV6_DIGITS)):
            if not _WRITTEN_GROUP.search(match[0]) or _LOOPBACK_PORT.fullmatch(match[0]) or _is_index(text, match):
                continue
            address = _parsed(match[0])
            if address and _may_be_somebodys(text, match, address):
                yield match.span()


def _parsed(written: str) -> _Address | None:
    try:
        return ipaddress.ip_address(written)
    except ValueError:
        return None


def _is_index(text: str, match: re.Match[str]) -> bool:
    """Return whether the match is the slice of an index: at most two plain numbers in brackets after a name."""
    groups = [group for group in match[0].split(":") if group]
    if len(groups) > 2 or not all(map(str.isdigit, groups)):
        return False
    return _INDEX_BEFORE.search(text, max(0, match.start() - _BEFORE), match.start()) is not None


def _is_everybodys(address: _Address) -> bool:
    """Return whether the address is not one host's or means the same everywhere.

    These are loopback, unspecified, netmask, multicast, public resolver and metadata service addresses.
    """
    if address.is_loopback or address.is_unspecified or address.is_multicast or address in _PUBLIC_RESOLVERS:
        return True
    return address == _METADATA_SERVICE or (address.version == 4 and address.packed[0] in (0, 255))


def _may_be_somebodys(text: str, match: re.Match[str], address: _Address) -> bool:
    """Return whether the address identifies one host and is not a well-known address or a network."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if _is_everybodys(address):
        return False
    prefix = _PREFIX_LENGTH.match(text, match.end())
    if prefix and _is_network(address, int(prefix[1])):
        return False
    if any(address.version == network.version and address in network for network in _DOCUMENTATION):
        before = lowered(text[max(0, match.start() - _CALLED_REACH) : match.start()])
        return _CALLED_A_PERSONS.search(before) is not None or _stands_in_a_record(text, match)
    return True


def _is_network(address: _Address, length: int) -> bool:
    """Return whether `address` is the first of a network with that prefix length, too large for one household."""
    host_bits = address.max_prefixlen - length
    return host_bits >= _WIDEST_HOST_BITS and int(address) % (1 << host_bits) == 0


def _stands_in_a_record(text: str, match: re.Match[str]) -> bool:
    """Return whether the address is in a column of addresses, or follows another finding on its line."""
    columns = getattr(text, "columns", ())
    if any(
        _HOST.search(lowered(text[column.start : column.end]))
        for column in columns
        if any(first <= match.start() < last for first, last in column.cells)
    ):
        return True
    line = max(text.rfind("\n", 0, match.start()) + 1, match.start() - _RECORD_REACH)
    return any(line <= start < match.start() for start, _, _ in getattr(text, "taken", ()))


def _is_version(text: str, match: re.Match[str]) -> bool:
    """Return whether the match is a version or section number.

    True if the words before it say so, or if it is four small numbers that are not called a host.
    """
    written = text[max(0, match.start() - _BEFORE) : match.start()]
    before = lowered(written)
    if _VERSION.search(before) or _PRODUCT.search(written):
        return True
    if _REQUIRED.search(written) or _FILE_OF_A_VERSION.match(text, match.end()):
        return True
    parts = match[0].split(".")
    if parts[0] in _ARCS and _OBJECT_ID.search(lowered(text[max(0, match.start() - _CALLED_REACH) : match.start()])):
        return True
    return (
        all(len(part) == 1 or part < _SMALL for part in parts if len(part) < 3)
        and max(map(len, parts)) < 3
        and parts[0] != "10"
        and len(set(parts)) > 1
        and not _HOST.search(before)
    )
