"""Compressed bodies: unpacked within bytes and ratio, refused by name where they are something else."""

import gzip
import json
import tracemalloc
import zlib

import pytest

from gateway.content.encoded_body import ANY_RATIO_BYTES, coding_of, unpacked
from gateway.errors import InvalidRequest, RequestTooLarge, UnsupportedEncoding
from tests.fakes.lab import chat, lab

TEXT = json.dumps(chat("write to anna.schmidt@example.org " * 40)).encode()
MOST = 8 << 20


def raw_deflate(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKED = {"gzip": gzip.compress(TEXT), "x-gzip": gzip.compress(TEXT), "deflate": zlib.compress(TEXT)}


@pytest.mark.parametrize("coding", PACKED)
async def test_a_body_is_what_was_packed(coding):
    assert coding_of({"content-encoding": f" {coding.upper()} "}) == coding
    assert await unpacked(coding, PACKED[coding], MOST) == TEXT


async def test_deflate_without_zlibs_frame_is_read_as_some_clients_send_it():
    assert await unpacked("deflate", raw_deflate(TEXT), MOST) == TEXT


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, gzip", "gzip,", "a\nb"])
def test_another_coding_is_refused_with_those_that_are_read(coding):
    with pytest.raises(UnsupportedEncoding) as error:
        coding_of({"content-encoding": coding})
    assert (b"accept-encoding", b"gzip, deflate") in error.value.headers()


@pytest.mark.parametrize("sent", ["", "identity", " Identity "])
def test_no_coding_is_none(sent):
    assert coding_of({"content-encoding": sent}) is None


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "broken",
    [b"", b"{}", b"\x1f\x8b", lambda p: p[:-9], lambda p: p[: len(p) // 2], lambda p: p + b"x", lambda p: p + p],
)
async def test_what_is_not_whole_or_has_more_behind_it_is_refused(coding, broken):
    raw = broken(PACKED[coding]) if callable(broken) else broken
    with pytest.raises(InvalidRequest) as error:
        await unpacked(coding, raw, MOST)
    assert error.value.code == "invalid_encoding" and error.value.status == 400


async def test_a_bomb_is_refused_before_it_is_in_memory():
    bomb = gzip.compress(bytes(512 << 20), 9)
    tracemalloc.start()
    try:
        with pytest.raises(RequestTooLarge):
            await unpacked("gzip", bomb, MOST)
        assert tracemalloc.get_traced_memory()[1] < 2 * MOST
    finally:
        tracemalloc.stop()


async def test_what_shrinks_to_less_than_a_hundredth_is_bounded_by_what_was_sent():
    small = gzip.compress(bytes(ANY_RATIO_BYTES), 9)
    assert len(await unpacked("gzip", small, MOST)) == ANY_RATIO_BYTES
    with pytest.raises(RequestTooLarge):
        await unpacked("gzip", gzip.compress(bytes(2 * ANY_RATIO_BYTES), 9), MOST)
    with pytest.raises(RequestTooLarge):
        await unpacked("gzip", PACKED["gzip"], len(TEXT) - 1)
    assert await unpacked("gzip", PACKED["gzip"], len(TEXT)) == TEXT


async def test_packed_calls_are_redacted_and_recorded_as_others_are(tmp_path):
    requests = {"max_body_bytes": 100_000}
    async with lab(tmp_path, requests=requests) as made:
        for coding, body in {**PACKED, "identity": TEXT}.items():
            answer = await made.post(None, raw=body, headers={"content-encoding": coding})
            assert answer.status == 200, answer.body
        backend = made.backends["acme-1"]
        assert len(backend.bodies) == 4 and "anna" not in backend.received
        sizes = [event["bytes_in"] for event in made.acts() if event["type"] == "inference.accepted"]
        assert sizes == [len(TEXT)] * 4
        streamed = gzip.compress(json.dumps(chat("hi", stream=True)).encode())

        async def pieces():
            packed = gzip.compress(json.dumps({**chat("hi"), "max_tokens": 5}).encode())
            yield packed[:9]
            yield packed[9:]

        headers = {"authorization": f"Bearer {made.key()}", "content-encoding": "gzip"}
        chunked = await made.http.post(made.base + "/v1/messages", data=pieces(), headers=headers, compress=None)
        assert chunked.status == 200
        assert (await made.post(None, raw=streamed, headers={"content-encoding": "gzip"})).events[-1] == "[DONE]"
        for raw, coding, status, code in (
            (TEXT, "br", 415, "unsupported_encoding"),
            (TEXT, "gzip", 400, "invalid_encoding"),
            (gzip.compress(bytes(200_000)), "gzip", 413, "request_too_large"),
            (gzip.compress(b"{"), "gzip", 400, "invalid_json"),
        ):
            refused = await made.post(None, raw=raw, headers={"content-encoding": coding})
            assert (refused.status, refused.error["code"]) == (status, code)
            assert (refused.headers.get("accept-encoding") == "gzip, deflate") == (status == 415)
        assert (await made.post(None, raw=b"x", headers={"content-encoding": "gzip"}, key="dom_live_x")).status == 401
        for coding, status in (("gzip", 200), ("br", 415)):
            packed = gzip.compress(b'{"model": "small"}')
            shown = await made.post(None, "/api/show", raw=packed, headers={"content-encoding": coding})
            assert shown.status == status
