"""Which IP addresses lead to somebody, and which are nobody's."""

import pytest

from policy.redact.detectors.detectors import DETECTORS, find_spans
from policy.redact.text.reading import Reading


def found(text: str) -> list[str]:
    return [text[span.start : span.end] for span in find_spans(Reading(text), 0, DETECTORS) if span.label == "ip"]


@pytest.mark.parametrize("text", [
    "rev = a[::-1]; ev = a[::2]", "x[1::2, ::3]", "b[100::200]", "out[..., 10::20]", "a::b::1", "t[0::5] = u[::10]",
])  # fmt: skip
def test_slices_and_scopes_are_no_addresses(text):
    assert found(text) == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.1.1", "0.0.0.0", "::1", "::", "255.255.255.0", "255.255.255.240", "224.0.0.251"]
)
@pytest.mark.parametrize("frame", ["Open http://{}:8000/", "bind {} now", "client ip: {}", "[{}]:80"])
def test_addresses_of_no_host_or_of_this_machine_are_nobodys(host, frame):
    assert found(frame.format(host)) == []


@pytest.mark.parametrize("host", ["8.8.8.8", "1.1.1.1", "9.9.9.9", "2606:4700:4700::1111", "2001:4860:4860::8888"])
def test_public_resolvers_are_nobodys(host):
    assert found(f"set the client's DNS server ip to {host}") == []


@pytest.mark.parametrize("host", ["8.8.8.9", "1.1.1.10", "85.214.132.117", "2606:4700:4700::1112"])
def test_an_address_beside_a_public_resolver_is_somebodys(host):
    assert found(f"set the client's DNS server ip to {host}") == [host]


@pytest.mark.parametrize("host", ["192.0.2.7", "198.51.100.23", "203.0.113.255", "2001:db8::7", "3fff::1"])
def test_an_address_of_documentation_counts_only_where_it_is_called_somebodys(host):
    assert found(f"The manual's example calls {host} in step 2.") == []
    assert found(f"login of user from {host}") == [host]
    assert found(f'{{"client_ip": "{host}"}}') == [host]


@pytest.mark.parametrize(("text", "hosts"), [
    ("route 10.0.0.0/8 via 10.1.2.3", ["10.1.2.3"]), ("192.168.0.0/16", []), ("85.214.132.117/32", ["85.214.132.117"]),
    ("85.214.132.117/24", ["85.214.132.117"]), ("2a01:4f8::/32", []),
])  # fmt: skip
def test_a_network_is_no_host(text, hosts):
    assert found(text) == hosts


def test_an_address_in_the_brackets_of_a_url_is_found():
    assert found("GET http://[2a01:4f8:1:2::3]:8080/v1") == ["2a01:4f8:1:2::3"]
