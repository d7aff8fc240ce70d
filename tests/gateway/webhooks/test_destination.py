from ipaddress import ip_address, ip_network

import pytest

from gateway.webhooks.destination import is_public, reachable


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fd00:ec2::254", "ff02::1", "::ffff:169.254.169.254",
        "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001::1", "192.0.2.1", "198.18.0.1",
        "::127.0.0.1", "::10.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::a00:1", "fec0::1", "5f00::1", "3fff::1",
        "100:0:0:1::1", "4000::1", "ff0e::1", "0.1.2.3", "240.0.0.1", "192.0.0.8", "192.88.99.1", "168.63.129.16",
    ],
)  # fmt: skip
def test_what_is_inside_is_not_public(address):
    assert not is_public(ip_address(address))
    assert not reachable(())(ip_address(address))


@pytest.mark.parametrize("address", ["193.99.144.80", "2a00:1450:4001:82b::200e", "::ffff:193.99.144.80"])
def test_what_is_outside_is(address):
    assert is_public(ip_address(address)) and reachable(())(ip_address(address))


def test_where_networks_are_named_nothing_else_is_reached():
    check = reachable((ip_network("10.1.0.0/16"), ip_network("fd00::/8")))
    assert check(ip_address("10.1.2.3")) and check(ip_address("fd00::1")) and check(ip_address("::ffff:10.1.2.3"))
    assert not check(ip_address("10.2.0.1")) and not check(ip_address("193.99.144.80"))
