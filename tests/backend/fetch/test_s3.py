"""A model of an S3 bucket, from a server on loopback that checks signatures, and by the vectors of AWS."""

import logging
import random
from datetime import UTC, datetime

import pytest

from backend.errors import FetchError
from backend.fetch.fetch import fetched
from backend.fetch.s3 import Keys, Signed

WEIGHTS = random.Random(4).randbytes(3 << 20)
MODEL = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}
NAME = "s3://models/llm/small"
FILE = "/models/llm/small/model.safetensors"


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("url", "headers", "signature"),
    [
        ("/test.txt", {"range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("/?lifecycle=", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_are_those_that_aws_publishes(url, headers, signature):
    keys = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    signed = Signed(keys, "us-east-1", lambda: datetime(2013, 5, 24, tzinfo=UTC))
    made = signed.headers(f"https://examplebucket.s3.amazonaws.com{url}", headers)
    assert made["authorization"].endswith(f"Signature={signature}")


def test_the_objects_under_a_prefix_are_a_model(bucket, how, caplog):
    caplog.set_level(logging.DEBUG)
    bucket.put({**MODEL, "README.md": b"#", "run.py": b"import os"})
    bucket.put({"config.json": b"{}"}, prefix="llm/small-2")
    found = fetched(NAME, how())
    assert contents(found.path) == MODEL
    assert (found.name, found.kept.manifest.source) == ("small", NAME)
    assert "S3CRET" not in caplog.text
    assert "Signature=" not in caplog.text


def test_a_long_list_comes_in_pages(bucket, how):
    bucket.put(MODEL)
    bucket.page = 1
    assert contents(fetched(NAME, how()).path) == MODEL


def test_one_gguf_file_is_named_by_its_key(bucket, how):
    bucket.put({"small.Q4_0.gguf": b"GGUF4", "small.Q8_0.gguf": b"GGUF8"})
    assert fetched(f"{NAME}/small.Q8_0.gguf", how()).path.read_bytes() == b"GGUF8"
    with pytest.raises(FetchError, match="several GGUF files"):
        fetched(NAME, how())


@pytest.mark.parametrize("character", "+ =@()'!*")
def test_keys_are_signed_whatever_characters_they_have(bucket, how, character):
    bucket.put(MODEL, prefix=f"a{character}b")
    assert contents(fetched(f"s3://models/a{character}b", how()).path) == MODEL


def test_a_cut_object_is_continued_by_a_signed_range(bucket, how):
    bucket.put(MODEL)
    bucket.cuts[FILE] = [1 << 20, 1 << 20]
    assert contents(fetched(NAME, how()).path) == MODEL
    assert [headers.get("range") for path, headers in bucket.asked if path == FILE] == [
        None,
        "bytes=1048576-",
        "bytes=2097152-",
    ]


def test_an_object_that_was_replaced_between_two_parts_is_not_mixed(bucket, how):
    bucket.put(MODEL)
    bucket.cuts[FILE] = [1 << 20]
    check = bucket.check

    def replace(headers, raw):
        check(headers, raw)
        if "range" in headers:
            bucket.files[FILE] = WEIGHTS[::-1]

    bucket.check = replace
    with pytest.raises(FetchError, match="was replaced at 127.0.0.1 meanwhile; run it again".replace(".", r"\.")):
        fetched(NAME, how())
    bucket.check = check
    assert contents(fetched(NAME, how()).path) == {**MODEL, "model.safetensors": WEIGHTS[::-1]}


def test_a_pin_refuses_what_the_bucket_has_by_now(bucket, how):
    bucket.put(MODEL)
    digest = fetched(NAME, how()).kept.manifest.sha256
    bucket.put({"config.json": b'{"a": 2}'})
    assert fetched(NAME, how(sha256=digest)).kept.manifest.sha256 == digest
    with pytest.raises(FetchError, match="has the weights"):
        fetched(NAME, how(sha256="0" * 64))


def test_keys_may_stand_in_a_file_by_profile(bucket, how, tmp_path, monkeypatch):
    bucket.put(MODEL)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(FetchError, match="AWS_ACCESS_KEY_ID is missing; set both parts"):
        fetched(NAME, how())
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(FetchError, match=r"refuses \(403\)"):
        fetched(NAME, how())
    (tmp_path / "aws").write_text(f"[ci]\naws_access_key_id = AKID\naws_secret_access_key = {bucket.secret}\n")
    monkeypatch.setenv("AWS_PROFILE", "ci")
    assert contents(fetched(NAME, how()).path) == MODEL
    (tmp_path / "aws").write_text("S3CRET")
    with pytest.raises(FetchError, match=r"holds no credentials that can be read; write") as refused:
        fetched(NAME, how())
    assert "S3CRET" not in str(refused.value)


@pytest.mark.parametrize(("name", "value"), [("AWS_SECRET_ACCESS_KEY", "S3CRETT"), ("AWS_REGION", "eu-west-1")])
def test_another_key_or_region_is_refused(bucket, how, monkeypatch, name, value):
    bucket.put(MODEL)
    monkeypatch.setenv(name, value)
    with pytest.raises(FetchError, match=r"refuses \(403\); give credentials"):
        fetched(NAME, how())


def test_a_temporary_key_sends_its_token(bucket, how, monkeypatch):
    bucket.put(MODEL)
    bucket.session = "temporary"
    monkeypatch.setenv("AWS_SESSION_TOKEN", "temporary")
    assert contents(fetched(NAME, how()).path) == MODEL


def test_a_redirect_to_another_server_carries_no_signature(bucket, cdn, how):
    bucket.put(MODEL)
    cdn.files["/there"] = WEIGHTS
    bucket.redirects[FILE] = f"{cdn.url}/there"
    assert contents(fetched(NAME, how()).path) == MODEL
    sent = cdn.asked[0][1]
    assert not {"authorization", "x-amz-date", "x-amz-security-token"} & sent.keys()


@pytest.mark.parametrize("key", ["../evil.json", "a/b/../../evil.json", "/evil.json", ".evil.json"])
def test_keys_that_lead_out_of_the_folder_write_nothing(bucket, how, key, tmp_path):
    bucket.put({**MODEL, key: b"evil"})
    try:
        assert contents(fetched(NAME, how()).path) == MODEL
    except FetchError as error:
        assert "is no file of a model; do not use it" in str(error)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"evil"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"<Error><Code>x</Code></Error>",
        b"<ListBucketResult><Contents><Size>x</Size></Contents></ListBucketResult>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><ListBucketResult>&b;</ListBucketResult>',
    ],
)
def test_what_is_no_list_of_objects_is_refused(bucket, how, body):
    bucket.listed = lambda query: body
    with pytest.raises(FetchError, match="answers with no list of objects; check the endpoint"):
        fetched(NAME, how())


def test_a_list_without_an_end_is_given_up(bucket, how):
    bucket.listed = lambda query: (
        b"<ListBucketResult><NextContinuationToken>1</NextContinuationToken></ListBucketResult>"
    )
    with pytest.raises(FetchError, match="more than 20 pages of objects are there; name a prefix"):
        fetched(NAME, how())


def test_another_server_is_not_asked_without_tls(how, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://192.0.2.1")
    with pytest.raises(FetchError, match=r"would be asked without TLS"):
        fetched(NAME, how())
