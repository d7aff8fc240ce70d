import pytest

from backend.errors import FetchError
from backend.fetch.model_references import HubName, OciName, S3Name, remote_name

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("acme/small", HubName("acme/small")),
        ("acme/small@v1.0", HubName("acme/small", "v1.0")),
        ("acme/small@refs/pr/1", HubName("acme/small", "refs/pr/1")),
        ("hf://acme/small", HubName("acme/small")),
        ("acme/small-GGUF/small.Q4_0.gguf@main", HubName("acme/small-GGUF", "main", "small.Q4_0.gguf")),
        ("oci://registry.example/models/small", OciName("registry.example", "models/small")),
        ("oci://localhost:5000/small:1.0", OciName("localhost:5000", "small", "1.0")),
        (f"oci://registry.example/small@{DIGEST}", OciName("registry.example", "small", "latest", DIGEST)),
        (f"oci://[::1]:5000/small:1@{DIGEST}", OciName("[::1]:5000", "small", "1", DIGEST)),
        ("s3://models/llm/small/", S3Name("models", "llm/small")),
        ("s3://models/small.gguf", S3Name("models", "small.gguf")),
    ],
)
def test_a_name_says_what_place_it_is_of(text, name):
    assert remote_name(text) == name
    assert str(remote_name(str(name))) == str(name)


@pytest.mark.parametrize(
    "text", ["demo", "small.gguf", "./small", "/models/small", "~/small", "models/small.gguf", "a/b/c", "a/b/"]
)
def test_a_path_is_none(text):
    assert remote_name(text) is None


def test_a_path_that_is_here_comes_before_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert remote_name("acme/small") == HubName("acme/small")
    (tmp_path / "acme").mkdir()
    assert remote_name("acme/smal") is None  # a slip in a path is no reason to ask a hub
    assert remote_name("hf://acme/small") == HubName("acme/small")


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com/small", "file:///etc/passwd", "hf://small", "hf://acme/../small", "hf://acme/small@../x",
        "oci://registry.example", "oci://user:pw@registry.example/small", "oci://registry.example/Small",
        "oci://registry.example/small@sha256:00", "oci://registry.example/../small", "s3://models", "s3://models/",
        "s3://../small", "s3://models/a/../b", "s3://models/a?b", "hf://acme/small\n", "oci://h/small:1\n",
    ],
)  # fmt: skip
def test_what_begins_as_a_name_and_is_none_is_refused_without_being_repeated(text):
    with pytest.raises(FetchError, match="that names no model; write s3://bucket/prefix") as refused:
        remote_name(text)
    assert "pw" not in str(refused.value)
