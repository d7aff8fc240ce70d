import asyncio
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.proxies.forwarded import TrustedProxies, forwarded_for, x_forwarded_for

TRUSTED = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
PROXY, CLIENT = "10.0.0.1", "203.0.113.7"


def client_of(*values, header="x-forwarded-for", peer=PROXY, sent_as=None):
    """Whom the application sees, after so many headers of that name."""
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["client"])

    scope = {
        "type": "http",
        "client": (peer, 4711) if peer else None,
        "headers": [((sent_as or header).encode(), value.encode("latin-1")) for value in values],
    }
    asyncio.run(TrustedProxies(app, TRUSTED, header)(scope, None, None))
    return seen[0] and seen[0][0]


@pytest.mark.parametrize(
    "values, client",
    [
        ([CLIENT], CLIENT),
        ([f"1.2.3.4, {CLIENT}"], CLIENT),
        ([f"1.2.3.4, {CLIENT}, 10.9.9.9"], CLIENT),
        (["1.2.3.4", f"{CLIENT}, 10.9.9.9"], CLIENT),
        ([f"{CLIENT}:1234"], CLIENT),
        (["2001:db8::1"], "2001:db8::1"),
        (["[2001:db8::1]:443"], "2001:db8::1"),
        ([f"::ffff:{CLIENT}"], CLIENT),
        ([f"nonsense, unknown, {CLIENT}"], CLIENT),
        (["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
    ],
)
def test_the_client_is_the_last_address_that_no_trusted_proxy_has(values, client):
    assert client_of(*values) == client


@pytest.mark.parametrize("values", [[], [""], [" , "], ["unknown"], [f"{CLIENT}, what"], ["1.2.3.4:http"], ["1.2.3"]])
def test_where_a_trusted_proxy_names_no_address_the_client_is_unknown(values):
    assert client_of(*values) is None


def test_nobody_else_is_believed():
    assert client_of(CLIENT, peer="192.0.2.1") == "192.0.2.1"
    assert client_of(CLIENT, peer=None) is None


def test_a_header_that_is_not_the_configured_one_is_not_read():
    assert client_of(f"for={CLIENT}", sent_as="forwarded") is None
    assert client_of(CLIENT, header="forwarded", sent_as="x-forwarded-for") is None


@pytest.mark.parametrize(
    "values, client",
    [
        ([f"for={CLIENT}"], CLIENT),
        ([f"For={CLIENT};proto=https;by=10.0.0.1"], CLIENT),
        ([f"proto=http; for={CLIENT}, for=10.0.0.9"], CLIENT),
        (['for="[2001:db8:cafe::17]:4711"'], "2001:db8:cafe::17"),
        ([f'for="{CLIENT}:80"'], CLIENT),
        (["for=1.2.3.4", f"for={CLIENT}"], CLIENT),
        ([f"for=unknown, for={CLIENT}"], CLIENT),
        ([f'for="1.2.3.4, for={CLIENT}'], CLIENT),
        ([f'for="a,b", for={CLIENT};host="x,y"'], CLIENT),
    ],
)
def test_forwarded_is_read_as_rfc_7239_writes_it(values, client):
    assert client_of(*values, header="forwarded") == client


@pytest.mark.parametrize(
    "value", ["for=unknown", "for=_hidden", "proto=https", f"for={CLIENT};for=1.2.3.4", f"for={CLIENT}, by=x", "for="]
)
def test_a_forwarded_without_one_address_leaves_the_client_unknown(value):
    assert client_of(value, header="forwarded") is None


@given(st.text(st.characters(max_codepoint=255), max_size=60), st.ip_addresses())
def test_what_a_client_writes_never_changes_what_the_proxy_adds(written, address):
    """Each proxy adds its own element behind what came."""
    assert next(x_forwarded_for(f"{written}, {address}")) == plain(address)
    shown = f'"[{address}]"' if address.version == 6 else str(address)
    assert next(forwarded_for(f"{written}, for={shown}")) == plain(address)


def plain(address):
    return ip_address(str(getattr(address, "ipv4_mapped", None) or address))


def test_other_scopes_pass_untouched():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope)

    scope = {"type": "lifespan"}
    asyncio.run(TrustedProxies(app, TRUSTED, "forwarded")(scope, None, None))
    assert seen == [scope]
