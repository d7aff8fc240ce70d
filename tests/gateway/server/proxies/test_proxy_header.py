from ipaddress import IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.proxies.proxy_header import (
    MAX_BYTES,
    MAX_LINE,
    SIGNATURE,
    ProxyHeader,
    ProxyHeaderError,
    parse,
)


def v2(command=0x21, family=0x11, body=b""):
    return SIGNATURE + bytes([command, family]) + len(body).to_bytes(2) + body


def addresses(source, target, source_port=4711, target_port=443):
    """The addresses of a header of version 2."""
    packed = ip_address(source).packed + ip_address(target).packed
    return packed + source_port.to_bytes(2) + target_port.to_bytes(2)


FOUR = addresses("203.0.113.7", "10.0.0.1")
SIX = addresses("2001:db8::7", "2001:db8::1")


@pytest.mark.parametrize(
    "header, source",
    [
        (b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 443\r\n", ("203.0.113.7", 4711)),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n", ("2001:db8::7", 4711)),
        (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", ("255.255.255.255", 65535)),
        (b"PROXY TCP6 ::ffff:203.0.113.7 ::1 0 443\r\n", ("203.0.113.7", 0)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
        (v2(body=FOUR), ("203.0.113.7", 4711)),
        (v2(body=FOUR + b"\x04\x00\x03abc"), ("203.0.113.7", 4711)),
        (v2(family=0x21, body=SIX), ("2001:db8::7", 4711)),
        (v2(family=0x21, body=addresses("::ffff:203.0.113.7", "::1")), ("203.0.113.7", 4711)),
        (v2(command=0x20, family=0x00), None),
        (v2(command=0x20, body=FOUR), None),
        (v2(family=0x00), None),
        (v2(family=0x12, body=FOUR), None),
        (v2(family=0x31, body=bytes(216)), None),
    ],
)
def test_a_header_is_read_to_its_end_and_no_byte_further(header, source):
    assert parse(header) == ProxyHeader(source, len(header))
    assert parse(header + b"GET / HTTP/1.1\r\n") == ProxyHeader(source, len(header))
    assert [parse(header[:cut]) for cut in range(len(header))] == [None] * len(header)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"proxy TCP4 203.0.113.7 10.0.0.1 4711 443\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 4711\r\n",
        b"PROXY TCP4 203.0.113.7  10.0.0.1 4711 443\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 443 \r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 04711 443\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 65536 443\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 -1\r\n",
        b"PROXY TCP4 203.0.113.256 10.0.0.1 4711 443\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::1 4711 443\r\n",
        b"PROXY TCP6 203.0.113.7 10.0.0.1 4711 443\r\n",
        b"PROXY TCP4 203.0.113.7 2001:db8::1 4711 443\r\n",
        b"PROXY UDP4 203.0.113.7 10.0.0.1 4711 443\r\n",
        b"PROXY UNKNOWNS\r\n",
        b"PROXY UNKNOWN " + b"x" * MAX_LINE,
        b"PROXY \r\n",
        v2(command=0x11, body=FOUR),
        v2(command=0x22, body=FOUR),
        v2(family=0x41, body=FOUR),
        v2(family=0x13, body=FOUR),
        v2(body=FOUR[:-1]),
        v2(family=0x21, body=FOUR),
        v2(family=0x31, body=bytes(215)),
        v2(body=bytes(MAX_BYTES - 15)),
    ],
)
def test_what_is_no_header_is_refused(data):
    with pytest.raises(ProxyHeaderError):
        parse(data)


NEARLY = st.text("PROXYTC46UNKW 0123456789.:abf\r\n", max_size=80)


@given(
    st.binary(max_size=80)
    | st.binary(max_size=60).map(lambda data: SIGNATURE + data)
    | NEARLY.map(lambda text: b"PROXY " + text.encode())
)
def test_any_bytes_are_a_header_an_incomplete_one_or_refused_and_the_rest_never_changes_that(data):
    try:
        header = parse(data)
    except ProxyHeaderError:
        for more in (b"\r\n", b"x"):
            with pytest.raises(ProxyHeaderError):
                parse(data + more)
        return
    if header is not None:
        assert 0 < header.length <= len(data)
        assert parse(data + b"x") == header
        assert parse(data[: header.length]) == header
        assert parse(data[: header.length - 1]) is None


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, 65535))
def test_both_versions_say_the_same_of_one_connection(source, port, other):
    target = "10.0.0.1" if source.version == 4 else "2001:db8::1"
    line = f"PROXY TCP{source.version} {source} {target} {port} {other}\r\n".encode()
    binary = v2(family=0x11 if source.version == 4 else 0x21, body=addresses(str(source), target, port, other))
    mapped = source.ipv4_mapped if isinstance(source, IPv6Address) else None
    expected = (str(mapped or source), port)
    assert parse(line).source == parse(binary).source == expected
