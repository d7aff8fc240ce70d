"""What may stand where a key is expected, and that it is told no more than that it does not work."""

import asyncio

import pytest

from gateway.identity.keys import generate_key
from tests.fakes.issuer import Issuer
from tests.fakes.lab import chat, lab

STRANGE = {
    "sql": "' OR '1'='1",
    "sql in the id": "dom_live_' OR 1=1--_" + "0" * 49,
    "wildcard": "dom_live_%%%%%%%%_" + "_" * 49,
    "format": "%s%n{0}{{7*7}}${jndi:ldap://x}",
    "path": "../../secrets/pepper",
    "look-alike": "d\u043em_live_00000000_" + "0" * 49,
    "full-width": "\uff44om_live_00000000_" + "0" * 49,
    "huge": "dom_live_" + "0" * 7000,
    "made up": generate_key().token,
    "of the other door": generate_key(kind="admin").token,
    "of a machine": Issuer().token(),
    "unsigned": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.",
    "nothing": "",
}


@pytest.mark.parametrize("bearer", STRANGE.values(), ids=STRANGE)
async def test_what_is_no_key_opens_nothing_and_is_not_repeated(tmp_path, bearer):
    async with lab(tmp_path) as made:
        for method, path, body in (("POST", "/v1/chat/completions", chat("hi")), ("GET", "/v1/models", None)):
            headers = {"authorization": f"Bearer {bearer}"}
            async with made.http.request(method, made.base + path, json=body, headers=headers) as answer:
                assert answer.status == 401
                said = await answer.text() + str(answer.headers)
            assert not bearer or bearer[:20] not in said
        assert made.backends["acme-1"].bodies == []


async def raw(made, *lines, line="GET /v1/models"):
    """An answer to bytes that no client library would send."""
    port = int(made.base.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\r\n".join([f"{line} HTTP/1.1".encode(), b"host: x", b"connection: close", *lines, b"", b"{}"]))
    answer = await reader.read()
    writer.close()
    return answer


async def test_line_breaks_in_a_header_neither_open_nor_add_anything(tmp_path):
    async with lab(tmp_path) as made:
        key = made.key().encode()
        good = await raw(made, b"authorization: Bearer " + key)
        assert good.startswith(b"HTTP/1.1 200")
        for broken in (b"\r", b"\n", b"\r\n ", b"\0", b"\x0b", b"%0d%0a", b"\\r\\n"):
            answer = await raw(made, b"authorization: Bearer " + key[:20] + broken + b"x-injected: yes" + key[20:])
            assert answer[9:12] in {b"400", b"401"}, broken
            assert b"x-injected" not in answer
            assert key[:20] not in answer


async def test_of_two_authorization_headers_none_is_hidden_behind_the_other(tmp_path):
    """A proxy that judges one of them and a gateway that judges the other would be a way in."""
    async with lab(tmp_path) as made:
        mine, other = b"authorization: Bearer " + made.key().encode(), b"authorization: Bearer x"
        for line in ("GET /v1/models", "POST /v1/chat/completions"):
            for pair in ((mine, other), (other, mine), (mine, mine)):
                answer = await raw(made, *pair, b"content-length: 2", line=line)
                assert answer[9:12] == b"401", (line, pair)
            assert (await raw(made, mine, b"content-length: 2", line=line))[9:12] in {b"200", b"400"}
