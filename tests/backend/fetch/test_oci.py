"""A model of an OCI registry on loopback that asks for tokens as registries do."""

import base64
import hashlib
import json
import logging
import random

import pytest

from backend.errors import FetchError
from backend.fetch.fetch import fetched

WEIGHTS = random.Random(3).randbytes(3 << 20)
MODEL = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}", "model.safetensors": WEIGHTS}
REPOSITORY = "models/small"


def name_of(registry, rest=":1"):
    return f"oci://{registry.host}/{REPOSITORY}{rest}"


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def blob(content):
    return f"/v2/{REPOSITORY}/blobs/sha256:{hashlib.sha256(content).hexdigest()}"


def log_in(tmp_path, monkeypatch, registry, user):
    auth = base64.b64encode(user.encode()).decode()
    (tmp_path / "docker").mkdir(exist_ok=True)
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))


@pytest.mark.parametrize("annotation", ["org.opencontainers.image.title", "org.cncf.model.filepath"])
def test_layers_of_oras_and_of_modelpack_are_files(registry, how, annotation):
    digest = registry.push(REPOSITORY, {**MODEL, "README.md": b"#", "run.py": b"import os"}, annotation=annotation)
    found = fetched(name_of(registry), how())
    assert contents(found.path) == MODEL
    assert found.name == "small"
    assert found.kept.manifest.source == f"oci://{registry.host}/{REPOSITORY}@{digest}"
    scopes = [path for path, _ in registry.asked if path.startswith("/token")]
    assert all("scope=repository%3Amodels%2Fsmall%3Apull&" in path for path in scopes)  # never to push


def test_a_digest_is_held_against_what_the_registry_answers(registry, how):
    digest = registry.push(REPOSITORY, MODEL)
    assert contents(fetched(name_of(registry, f"@{digest}"), how()).path) == MODEL
    registry.asked.clear()
    fetched(name_of(registry, f"@{digest}"), how())
    assert registry.asked == []
    other = registry.push(REPOSITORY, {**MODEL, "config.json": b"{}"}, tag="2")
    path = f"/v2/{REPOSITORY}/manifests/{other}"
    registry.files[path] = registry.files[f"/v2/{REPOSITORY}/manifests/{digest}"]
    with pytest.raises(FetchError, match=f"answers with another manifest than {other}"):
        fetched(name_of(registry, f"@{other}"), how())


def test_a_tag_that_moved_leads_to_the_new_model_and_its_pin_refuses(registry, how):
    registry.push(REPOSITORY, MODEL)
    first = fetched(name_of(registry), how()).kept.manifest
    registry.push(REPOSITORY, {**MODEL, "config.json": b'{"a": 2}'})
    assert fetched(name_of(registry), how()).kept.manifest.sha256 != first.sha256
    with pytest.raises(FetchError, match="has the weights"):
        fetched(name_of(registry), how(sha256="1" * 64))


def test_a_blob_of_other_bytes_is_refused(registry, how):
    registry.push(REPOSITORY, MODEL)
    registry.files[blob(WEIGHTS)] = WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1])
    with pytest.raises(FetchError, match="is not what its digest says"):
        fetched(name_of(registry), how())


def test_a_cut_blob_is_continued_with_a_new_token_where_the_old_one_expired(registry, how):
    registry.push(REPOSITORY, MODEL)
    registry.cuts[blob(WEIGHTS)] = [1 << 20]
    ask, seen = registry.body, []

    def body(path, query, headers, raw):
        if path == blob(WEIGHTS) and "range" in headers and not seen:
            seen.append(registry.expired.add(headers["authorization"]))
        return ask(path, query, headers, raw)

    registry.body = body
    assert contents(fetched(name_of(registry), how()).path) == MODEL
    assert registry.issued > 1


def test_user_and_password_are_those_of_the_file_of_logins(registry, how, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    registry.user = "robot:s3cret"
    registry.push(REPOSITORY, MODEL)
    with pytest.raises(FetchError, match=r"refuses \(401\); give credentials"):
        fetched(name_of(registry), how())
    log_in(tmp_path, monkeypatch, registry, "robot:other")
    with pytest.raises(FetchError, match=r"refuses \(401\)"):
        fetched(name_of(registry), how())
    log_in(tmp_path, monkeypatch, registry, "robot:s3cret")
    assert contents(fetched(name_of(registry), how()).path) == MODEL
    assert "s3cret" not in caplog.text
    assert base64.b64encode(b"robot:s3cret").decode() not in caplog.text


def test_a_registry_that_takes_passwords_without_tokens_is_served(registry, how, tmp_path, monkeypatch):
    registry.user, registry.scheme = "robot:s3cret", "Basic"
    registry.push(REPOSITORY, MODEL)
    with pytest.raises(FetchError, match=r"refuses \(401\)"):
        fetched(name_of(registry), how())
    log_in(tmp_path, monkeypatch, registry, "robot:s3cret")
    assert contents(fetched(name_of(registry), how()).path) == MODEL


def test_logins_of_another_host_are_not_sent(registry, how, tmp_path, monkeypatch):
    auth = base64.b64encode(b"robot:s3cret").decode()
    (tmp_path / "logins").write_text(json.dumps({"auths": {"registry.example": {"auth": auth}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "logins"))
    registry.push(REPOSITORY, MODEL)
    fetched(name_of(registry), how())
    assert not [headers for _, headers in registry.asked if auth in headers.get("authorization", "")]


@pytest.mark.parametrize("text", ["{", '{"auths": 3}', '{"auths": {"HOST": {"auth": "%%"}}}', '{"auths": {"HOST": 1}}'])
def test_a_file_of_logins_that_is_none_is_named_without_its_content(registry, how, tmp_path, monkeypatch, text):
    (tmp_path / "logins").write_text(text.replace("HOST", registry.host))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "logins"))
    registry.push(REPOSITORY, MODEL)
    with pytest.raises(FetchError, match="holds no logins that can be read; log in again"):
        fetched(name_of(registry), how())


def test_blobs_may_lie_elsewhere_and_no_token_goes_there(registry, cdn, how):
    registry.push(REPOSITORY, MODEL)
    cdn.files["/there"] = WEIGHTS
    registry.redirects[blob(WEIGHTS)] = f"{cdn.url}/there?signature=SIGNED"
    assert contents(fetched(name_of(registry), how()).path) == MODEL
    assert [headers.get("authorization") for _, headers in cdn.asked] == [None]


@pytest.mark.parametrize("realm", ["http://192.0.2.1/token", "file:///etc/passwd", "https://192.0.2.1/token"])
def test_passwords_are_sent_to_no_realm_of_another_kind(registry, how, realm, tmp_path, monkeypatch):
    from tests.fakes.model_places import Answer

    log_in(tmp_path, monkeypatch, registry, "robot:s3cret")

    def body(*_):
        raise Answer(401, www_authenticate=f'Bearer realm="{realm}",service="x"')

    registry.body = body
    with pytest.raises(FetchError, match=r"without TLS|do not use that registry"):
        fetched(name_of(registry), how())


@pytest.mark.parametrize(
    "media", ["application/vnd.cncf.model.weight.v1.tar", "application/vnd.oci.image.layer.v1.tar+gzip"]
)
def test_archives_are_refused_with_what_to_do(registry, how, media):
    registry.push(REPOSITORY, MODEL, media=media)
    with pytest.raises(FetchError, match=r"packed in archives .*; push them as they are"):
        fetched(name_of(registry), how())


@pytest.mark.parametrize("title", ["../evil.json", "/evil.json", "a/b/evil.json", "..", "evil/../../x.json"])
def test_titles_that_lead_out_of_the_folder_write_nothing(registry, how, title, tmp_path):
    registry.push(REPOSITORY, {**MODEL, title: b"evil"})
    try:
        assert contents(fetched(name_of(registry), how()).path) == MODEL
    except FetchError as error:
        assert "is no file of a model; do not use it" in str(error)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"evil"]


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.update(digest="sha512:" + "0" * 128),
        lambda layer: layer.update(digest="sha256:../../x"),
        lambda layer: layer.update(size="9"),
        lambda layer: layer.update(size=True),
        lambda layer: layer.pop("digest"),
    ],
)
def test_a_layer_without_a_digest_and_a_size_is_refused(registry, how, change):
    digest = registry.push(REPOSITORY, MODEL)
    manifest = json.loads(registry.files[f"/v2/{REPOSITORY}/manifests/{digest}"])
    change(manifest["layers"][0])
    registry.put(REPOSITORY, manifest, "1")
    with pytest.raises(FetchError, match=r"says no SHA-256 and size of 'config.json'; push it again"):
        fetched(name_of(registry), how())


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"layers": [3]}', b'{"layers": {}}'])
def test_what_is_no_manifest_is_refused(registry, how, body):
    registry.files[f"/v2/{REPOSITORY}/manifests/1"] = body
    with pytest.raises(FetchError, match="; name an artifact that oras or modctl pushed"):
        fetched(name_of(registry), how())


def test_an_index_of_one_is_followed_and_of_several_has_to_be_named_by_digest(registry, how):
    one, two = (registry.push(REPOSITORY, {**MODEL, "config.json": text}, tag=text.hex()) for text in (b"{}", b"[]"))
    index = "application/vnd.oci.image.index.v1+json"
    registry.put(REPOSITORY, {"mediaType": index, "manifests": [{"digest": one}]}, "one")
    registry.put(REPOSITORY, {"mediaType": index, "manifests": [{"digest": one}, {"digest": two}]}, "both")
    assert contents(fetched(name_of(registry, ":one"), how()).path)["config.json"] == b"{}"
    with pytest.raises(FetchError, match="is an index of 2 manifests; name one of them by its digest"):
        fetched(name_of(registry, ":both"), how())


def test_a_tag_that_there_is_not_is_said(registry, how):
    registry.push(REPOSITORY, MODEL)
    with pytest.raises(FetchError, match=r"does not have it \(404\); check the name"):
        fetched(name_of(registry, ":9"), how())
