"""Signed manifests from policy to verification: whole answers, streams, other APIs, batches of choices."""

import asyncio
import base64
import io
import json

import c2pa
import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.marks.manifest import ManifestError
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab
from tests.gateway.batches.conftest import begin, client, line, outcome

SIGNED = POLICY.replace("{art50_notice: header}", "{art50_notice: header, marking: [manifest, record]}")
SAID = "The harbour opens at six. Write to someone.else@example.org, not later than noon."


def set_up(made):
    made.tenant("acme", SIGNED)
    made.tenant("globex", POLICY)


BACKENDS = ("acme/eu-fr-par/acme-1", "globex/eu-fr-par/globex-1")


def state(made, text, store):
    root = (made.data / "ca" / "manifests.pem").read_text()
    settings = {"verify": {"verify_trust": True}, "trust": {"trust_anchors": root}}
    context = c2pa.Context(settings=c2pa.Settings.from_dict(settings))
    store = base64.b64decode(store)
    return c2pa.Reader(
        "text/plain", io.BytesIO(text.encode()), manifest_data=store, context=context
    ).get_validation_state()


def verify(made, *words):
    return asyncio.to_thread(CliRunner().invoke, app, ["mark", "verify", *words, "--json", "--data", str(made.data)])


async def test_answers_have_manifests_of_what_the_client_received(tmp_path):
    async with lab(
        tmp_path, set_up=set_up, backends={place: FakeBackend(say=SAID, pieces=9) for place in BACKENDS}
    ) as made:
        whole = await made.post(chat("hello"))
        (one,) = whole.json["c2pa"]
        assert "someone.else" not in whole.text
        assert (one["choice"], state(made, whole.text, one["manifest"])) == (0, "Trusted")
        assert state(made, whole.text + ".", one["manifest"]) == "Invalid"
        plain = await made.post({"model": "small", "prompt": "hello"}, "/v1/completions")
        assert state(made, plain.text, plain.json["c2pa"][0]["manifest"]) == "Trusted"
        for path, asked in (
            ("/v1/chat/completions", chat("hello")),
            ("/v1/completions", {"model": "small", "prompt": "x"}),
        ):
            stream = await made.post({**asked, "stream": True}, path)
            *_, last, done = stream.events
            assert done == "[DONE]" and state(made, stream.text, last["c2pa"][0]["manifest"]) == "Trusted"
            assert stream.headers["x-domicile-manifest"] == "demanded"
            assert len(last["choices"]) == 1, "clients look for one"
        used = await made.post(chat("hello", stream=True, stream_options={"include_usage": True}))
        assert used.events[-2]["usage"] and used.events[-3]["c2pa"]
        message = {"model": "small", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
        other = await made.post(message, "/v1/messages")
        assert state(made, other.json["content"][0]["text"], other.json["c2pa"][0]["manifest"]) == "Trusted"
        streamed = await made.post({**message, "stream": True}, "/v1/messages")
        assert "c2pa" not in streamed.body.decode()
        none = await made.post(chat("hello"), key="globex/main")
        assert "c2pa" not in none.json
        heads = [each.headers.get("x-domicile-manifest") for each in (whole, plain, other, streamed, none)]
        assert heads == ["signed", "signed", "signed", "format", None]
        made.backends["acme-1"].say = ""
        empty = await made.post(chat("hello"))
        assert (empty.headers["x-domicile-manifest"], "c2pa" in empty.json) == ("no_text", False)
        recorded = [each.get("manifest") for each in made.events() if each["type"] == "inference.completed"]
        assert recorded == ["signed"] * 6 + ["format", "no_text"]
        file, store, text = tmp_path / "answer.json", tmp_path / "store", tmp_path / "text"
        file.write_bytes(whole.body)
        store.write_text(one["manifest"])
        text.write_text(whole.text)
        found = await verify(made, str(file))
        assert (found.exit_code, json.loads(found.stdout)[0]["request_id"]) == (0, whole.headers["x-request-id"])
        assert (await verify(made, str(text), "--manifest", str(store))).exit_code == 0
        text.write_text(whole.text + " ")
        assert (await verify(made, str(text), "--manifest", str(store))).exit_code == 1
        assert (await verify(made, str(text))).exit_code == 2, "it has none inside"
        assert (await verify(made, str(file), "--root", str(text))).exit_code == 2
    assert made.verify().ok


@pytest.mark.parametrize("error", [ManifestError("no extra; install it"), OSError("disk")])
async def test_without_a_signer_no_answer_is_given(tmp_path, monkeypatch, error):
    def broken(self):
        raise error

    monkeypatch.setattr("gateway.installation.installation.Installation.manifest_signer", broken)
    async with lab(tmp_path, set_up=set_up, backends={place: FakeBackend(say=SAID) for place in BACKENDS}) as made:
        assert (await made.post(chat("hello"))).status == 503
        assert made.backends["acme-1"].bodies == []
        assert (await made.post(chat("hello"), key="globex/main")).status == 200


async def test_a_client_cannot_add_or_decline_one_and_a_backend_cannot_forge_one(tmp_path):
    class Forger(FakeBackend):
        def whole(self, body, is_chat):
            return {**super().whole(body, is_chat), "c2pa": [{"choice": 0, "manifest": "Zm9yZ2Vk"}]}

    async with lab(tmp_path, set_up=set_up, backends={place: Forger(say=SAID) for place in BACKENDS}) as made:
        answer = await made.post(chat("hello", c2pa=False))
        assert [state(made, answer.text, one["manifest"]) for one in answer.json["c2pa"]] == ["Trusted"]
        other = await made.post(chat("hello"), key="globex/main")
        assert "c2pa" not in other.json


async def test_results_of_a_batch_have_manifests_that_verify_from_the_file(tmp_path):
    def keeping(made):
        made.tenant("acme", SIGNED.replace("content: none", "content: 'encrypted, 7d'"))

    backends = {"acme/eu-fr-par/acme-1": FakeBackend(say=SAID)}
    async with lab(tmp_path, set_up=keeping, backends=backends) as made, client(made) as sdk:
        batch, found = await outcome(sdk, await begin(sdk, line(1), line(2)))
    assert batch.status == "completed"
    for result in found.values():
        body = result["response"]["body"]
        text = body["choices"][0]["message"]["content"]
        assert state(made, text, body["c2pa"][0]["manifest"]) == "Trusted"
