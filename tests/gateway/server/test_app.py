"""HTTP as clients of the whole gateway see it: wrong methods and paths, large bodies, numbers that JSON lacks."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.lab import OPEN_POLICY, POLICY, chat, lab


async def raw(made, sent, within=5.0):
    """What the gateway answers to these bytes until it closes, or `within` seconds are over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(made.base.rpartition(":")[2]))
    writer.write(sent)
    said = b""
    try:
        async with asyncio.timeout(within):
            while piece := await reader.read(1 << 16):
                said += piece
                if b"\r\n\r\n" in said and b"100 Continue" not in said:
                    break
    except TimeoutError:
        pass
    writer.close()
    return said


async def test_no_path_is_redirected_to_the_host_that_the_request_names(tmp_path):
    async with lab(tmp_path) as made:
        for path in ("/v1/chat/completions/", "/v1/models/", "/healthz/", "/admin/v1", "/admin/v1/tenants/",
                     "/admin/v1/me/", "/cells/v1/bundle/", "/metrics/"):  # fmt: skip
            for method in ("GET", "POST"):
                head = f"{method} {path} HTTP/1.1\r\nhost: evil.example\r\nx-forwarded-proto: https\r\n"
                said = await raw(made, f"{head}content-length: 0\r\nconnection: close\r\n\r\n".encode())
                assert said.split()[1] in (b"404", b"405", b"401"), (method, path, said)
                assert b"location" not in said.lower() and b"evil" not in said


METHODS = [
    ("GET", "/v1/chat/completions", "POST"),
    ("TRACE", "/v1/completions", "POST"),
    ("OPTIONS", "/v1/embeddings", "POST"),
    ("POST", "/v1/models", "GET, HEAD"),
    ("DELETE", "/healthz", "GET, HEAD"),
    ("PUT", "/v1/files", "GET, HEAD, POST"),
    ("PATCH", "/v1/files/file-1", "DELETE, GET, HEAD"),
    ("DELETE", "/v1/batches", "GET, HEAD, POST"),
    ("DELETE", "/console/sign-in", "GET, HEAD, POST"),
    ("PATCH", "/admin/v1/me", "GET"),
    ("PUT", "/admin/v1/tenants", "GET, POST"),
    ("GET", "/cells/v1/bundle", "POST"),
]


async def test_a_method_that_is_not_offered_is_told_which_are(tmp_path):
    async with lab(tmp_path) as made:
        for method, path, allow in METHODS:
            async with made.http.request(method, made.base + path) as answer:
                assert (answer.status, answer.headers.getall("allow")) == (405, [allow]), path


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/admin/v1/tenants"])
@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"])
async def test_a_body_that_is_too_large_by_its_length_is_refused_before_it_is_sent(tmp_path, path, expect):
    async with lab(tmp_path) as made:
        token = made.key() if path.startswith("/v1") else operator(made)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
        said = await raw(made, head.encode() + expect + b"content-length: 99999999\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 413 "), said
        assert (b"connection: close" in said) == bool(expect) or path.startswith("/admin")


def operator(made):
    person = made.control.create_person(None, "Olga", ("operator",))
    return made.control.create_token(None, person.id, expires_at=datetime.now(UTC) + timedelta(hours=1))[1].token


NUMBERS = ("NaN", "Infinity", "-Infinity", "1e400", "-1e999", "9" * 400 + ".0")


async def test_a_number_that_json_does_not_have_is_refused_and_goes_nowhere(tmp_path):
    async with lab(tmp_path) as made:
        for number in NUMBERS:
            for place in ('"x":{"y":[1,%s]}', '"temperature":%s', '"logit_bias":{"1":%s}'):
                whole = json.dumps(chat("hi Infinity NaN 1e400"))[:-1] + "," + place % number + "}"
                answer = await made.post(None, raw=whole.encode())
                assert answer.status == 400 and number not in answer.error["message"], (number, place)
        assert made.backends["acme-1"].bodies == []
        assert (await made.post(chat("NaN, Infinity and 1e400 are words here"))).status == 200


@pytest.mark.parametrize("policy", [POLICY, OPEN_POLICY], ids=["filtered", "as it is"])
@pytest.mark.parametrize("number", ["NaN", "Infinity"])
async def test_a_backend_that_answers_with_what_is_not_json_is_a_bad_gateway(tmp_path, policy, number):
    class Odd(FakeBackend):
        @property
        def more(self):
            return {"x": float(number)}

    backends = {"acme/eu-fr-par/acme-1": Odd()}
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", policy), backends=backends) as made:
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (502, "backend_error")
        stream = await made.post(chat("hi", stream=True))
        assert number not in stream.body.decode() and "[DONE]" not in stream.body.decode()
