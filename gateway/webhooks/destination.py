"""Addresses that a webhook may be sent to. Prevents server-side request forgery (SSRF, CWE-918)."""

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address inside, which may be a private one


def reachable(networks: Sequence[Network]) -> Callable[[Address], bool]:
    """Return whether an address may be contacted: one in `networks` if any are given, otherwise public ones only."""

    def check(address: Address) -> bool:
        address = _plain(address)
        if networks:
            return any(address in network for network in networks)
        return is_public(address)

    return check


def is_public(address: Address) -> bool:
    """Return whether an address is public: not loopback, private, link-local (cloud metadata) or multicast."""
    address = _plain(address)
    if isinstance(address, IPv6Address) and (address in _NAT64 or address.sixtofour or address.teredo):
        return False
    return address.is_global and not address.is_multicast


def _plain(address: Address) -> Address:
    """Unwrap an IPv4-mapped address: ::ffff:10.0.0.1 is 10.0.0.1."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
