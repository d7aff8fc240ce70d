"""Addresses that a webhook may be sent to. Prevents server-side request forgery (SSRF, CWE-918)."""

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_UNICAST = IPv6Network("2000::/3")
"""All that IANA has allocated for global unicast. Outside of it are addresses that lead into a network in other ways:
IPv4 inside (``::/96``, NAT64 of RFC 6052 and RFC 8215), site-local ones (``fec0::/10``), SIDs (RFC 9602)."""
_NOT_PUBLIC: tuple[Network, ...] = (
    IPv6Network("3fff::/20"),  # documentation, RFC 9637
    IPv4Network("192.0.0.0/24"),  # assigned to protocols, RFC 6890
    IPv4Network("192.88.99.0/24"),  # once relays of 6to4, RFC 7526
    IPv4Network("168.63.129.16/32"),  # Azure's host, which tells a machine of itself
)


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
    if isinstance(address, IPv6Address) and (address not in _UNICAST or address.sixtofour or address.teredo):
        return False
    if any(address.version == network.version and address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast


def _plain(address: Address) -> Address:
    """Unwrap an IPv4-mapped address: ::ffff:10.0.0.1 is 10.0.0.1."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
