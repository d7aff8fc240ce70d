"""Which weights answer: shown by the backend, asked for by policy or pin, on record with each outcome."""

import asyncio

import pytest

from regions.fleet.health import Prober
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust
from tests.fakes.backend import FakeBackend, running
from tests.fakes.lab import POLICY, chat, lab
from tests.regions.evidence.test_model_signature import LOADED, key_of, read

WEIGHTS, OTHERS = "ab" * 32, "cd" * 32
GOOD = {
    "sha256": WEIGHTS,
    "files": LOADED,
    "signature": read("one.sig"),
    "signer_key": read("one.pub"),
}
SIGNED = POLICY + f"models: {{signed_by: ['{key_of('one.pub')}']}}\n"
FLIPPED = {**LOADED, "config.json": "0" * 64}
MISSING = {name: digest for name, digest in LOADED.items() if name != "tokenizer.json"}


@pytest.fixture(autouse=True)
def probed_often(monkeypatch):
    monkeypatch.setitem(Prober.__init__.__kwdefaults__, "interval_s", 0.02)


async def until(made, *statuses, key="acme/main"):
    """The first answer with one of these statuses."""
    async with asyncio.timeout(30):
        while (answer := await made.post(chat("hi"), key=key)).status not in statuses:
            await asyncio.sleep(0.02)
    return answer


def outcomes(made):
    return [event for event in made.events() if event["type"] in ("inference.completed", "inference.aborted")]


async def test_only_signed_weights_answer_and_the_record_says_which(tmp_path):
    server = FakeBackend(weights=503)
    backends = {"acme/eu-fr-par/acme-1": server}
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", SIGNED), backends=backends) as made:
        assert (await made.post(chat("hi"))).status == 503, "it has shown nothing yet"
        assert server.bodies == []
        server.weights = GOOD
        await until(made, 200)
        (done,) = outcomes(made)
        assert (done["weights_sha256"], done["weights_source"]) == (WEIGHTS, "computed")
        for spoiled, why in (
            ({**GOOD, "files": FLIPPED}, "config.json is not the file that was signed"),
            ({**GOOD, "files": MISSING}, "tokenizer.json was signed and is missing"),
            ({**GOOD, "signature": read("two.sig"), "signer_key": read("two.pub")}, "another key signed them"),
            ({**GOOD, "signer_key": read("two.pub")}, "not the key that model.sig names"),
            ({"sha256": WEIGHTS, "files": LOADED}, "no signature"),
            ({"sha256": None, "why": "changed"}, "does not compute"),
            ({"sha256": "no digest"}, "does not compute"),
            (404, "does not compute"),
        ):
            server.weights = spoiled
            refused = await until(made, 403)
            (reason,) = refused.error["reasons"]
            assert (reason["rule"], reason["candidate"]) == ("models.signed_by", "acme-1")
            assert why in reason["because"], spoiled
            server.weights = GOOD
            await until(made, 200)
        server.weights = 503  # started anew
        assert (await until(made, 503)).error["code"] == "backend_unavailable"
        assert made.verify() is not None


async def test_a_second_backend_with_other_weights_than_pinned_gets_nothing(tmp_path):
    first, second = FakeBackend(weights={"sha256": WEIGHTS}), FakeBackend(weights={"sha256": OTHERS}, say="swapped")
    async with (
        running(second),
        lab(tmp_path, backends={"acme/eu-fr-par/acme-1": first}) as made,
    ):
        for name, url in (("acme-1", first.url), ("acme-2", second.url)):
            identity = BackendIdentity("eu-1", "acme", "eu-fr-par", name)
            made.control.register_backend(identity, url=url, models=["small"], weights_sha256=WEIGHTS)
        await made.taken_over()
        await until(made, 200)
        first.ready = False
        refused = await until(made, 503, 403)
        assert refused.status == 503, "the first may come back"
        assert second.bodies == []
        made.control.revoke_backend("acme", "acme-1")
        await made.taken_over()
        (reason,) = (await until(made, 403)).error["reasons"]
        assert (reason["rule"], reason["candidate"]) == ("model.weights", "acme-2")
        assert (OTHERS[:16] in reason["because"], WEIGHTS[:16] in reason["because"]) == (True, True)
        second.weights = {"sha256": WEIGHTS}
        assert (await until(made, 200)).text == "swapped"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_from_other_weights_than_shown_is_not_delivered(tmp_path, stream):
    server = FakeBackend(weights={"sha256": WEIGHTS}, fingerprint=f"fp_{WEIGHTS[:16]}_00112233")
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": server}) as made:
        await until(made, 200)
        server.fingerprint = f"fp_{OTHERS[:16]}_00112233"
        answer = await made.post(chat("hi", stream=stream))
        assert answer.status == 502
        assert b"Paris" not in answer.body
        assert "weights_sha256" not in outcomes(made)[-1]
        server.fingerprint = "fp_of_another_server"
        assert (await made.post(chat("hi", stream=stream))).status == 200


async def test_a_server_of_ones_own_has_declared_weights_which_no_signature_helps(tmp_path):
    server = FakeBackend(weights=GOOD)
    async with running(server), lab(tmp_path, backends={}) as made:
        made.tenant("globex", SIGNED)
        for tenant in ("acme", "globex"):
            identity = BackendIdentity("eu-1", tenant, "eu-fr-par", f"{tenant}-v")
            made.control.register_backend(
                identity, url=server.url, models=["small"], kind="openai", trust=Trust(), weights_sha256=OTHERS
            )
        await made.taken_over()
        await until(made, 200)
        (done,) = outcomes(made)
        assert (done["weights_sha256"], done["weights_source"]) == (OTHERS, "declared")
        (reason,) = (await until(made, 403, key="globex/main")).error["reasons"]
        assert "does not compute the digest" in reason["because"]
