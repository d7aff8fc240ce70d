"""Whose mark and weights are told where an answer is not of the first backend that was asked, or comes again."""

import asyncio

from backend.models.checkpoints.checkpoint import Checkpoint
from regions.fleet.deployment import Deployment
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.backend import FakeBackend, running
from tests.fakes.lab import POLICY, chat, lab
from tests.fakes.small_engines import small_engines
from tests.gateway.test_marks import BASE, words_of

MARKED = POLICY.replace("{art50_notice: header}", "{art50_notice: header, marking: [watermark, manifest]}")
THEIRS, OTHERS = "cd" * 32, "ef" * 32
PATH = "/v1/completions"
FULL = {"status": 503, "error": {"message": "full", "type": "server_error"}}


def register(made, name, server, kind, weights, model="small"):
    made.control.register_backend(
        BackendIdentity("eu-1", "acme", "eu-fr-par", name),
        url=server.url,
        models=[model],
        kind="openai",
        trust=Trust(watermark=kind),
        weights_sha256=weights,
    )


async def asked_until(made, backend, body, path="/v1/chat/completions"):
    """The first answer for which this backend was asked."""
    for number in range(60):
        before = len(backend.bodies)
        answer = await made.post({**body, "user": f"person-{number}"}, path)
        if len(backend.bodies) > before:
            return answer
    raise AssertionError("it was never asked")


def record_of(made, answer):
    return [event for event in made.events() if event.get("request_id") == answer.headers["x-request-id"]]


async def test_a_second_server_is_asked_in_its_own_words_and_its_weights_and_mark_are_told(tmp_path):
    first, second = FakeBackend(**FULL), FakeBackend(say="the answer of the second")
    set_up = {"set_up": lambda made: made.tenant("acme", MARKED), "backends": {}}
    async with running(first), running(second), lab(tmp_path, **set_up) as made:
        register(made, "acme-1", first, "vllm", THEIRS)
        register(made, "acme-2", second, "sglang", OTHERS)
        await made.taken_over()
        answer = await asked_until(made, first, chat("hello", watermarking=False, watermark={"enabled": False}))
        events = record_of(made, answer)
        stream = await asked_until(made, first, chat("hello", stream=True))
        of_stream = record_of(made, stream)
    assert first.bodies[0]["watermarking"] is True and "watermark" not in first.bodies[0]
    assert second.bodies[-1]["watermark"] == {"enabled": True} and "watermarking" not in second.bodies[-1]
    assert (answer.status, answer.headers["x-domicile-watermark"]) == (200, "requested")
    assert [one["choice"] for one in answer.json["c2pa"]] == [0]
    assert stream.headers["x-domicile-watermark"] == "requested"
    for one in (events, of_stream):
        (moved,) = [event for event in one if event["type"] == "routing.decision"]
        (done,) = [event for event in one if event["type"] == "inference.completed"]
        assert (moved["backend_id"], moved["reason"]) == ("acme-2", "backend_unavailable")
        assert (done["backend_id"], done["fallback_index"]) == ("acme-2", 1)
        assert (done["weights_sha256"], done["weights_source"]) == (OTHERS, "declared")
        assert (done["watermark"], done["manifest"], "mark_period" in done) == ("requested", "signed", False)


async def test_where_our_engine_answers_after_a_full_server_its_digest_mark_and_month_are_told(tmp_path):
    models = tmp_path / "models"
    (models / "writer").mkdir(parents=True)
    write_folder(models / "writer", tiny_model())
    long = {**BASE, "allowed_token_ids": words_of(Checkpoint(models / "writer").text)}
    full = FakeBackend(model="writer", **FULL)

    def set_up(made):
        made.tenant("acme", MARKED)
        register(made, "acme-9", full, "vllm", THEIRS, "writer")
        made.control.create_deployment(
            Deployment(
                tenant="acme",
                id="writer",
                model="writer",
                weights="writer",
                regions=("eu-fr-par",),
                wait_s=200,
                min_replicas=1,
            )
        )

    with small_engines():
        async with running(full), lab(tmp_path, set_up=set_up, backends={}, fleet={"models": str(models)}) as made:
            async with asyncio.timeout(60):  # while the engine starts, the full server is the one to ask
                while (answer := await made.post(long, PATH)).status != 200:
                    assert answer.status == 503, answer.body
                    await asyncio.sleep(0.1)
            assert full.bodies
            events = record_of(made, answer)
            made.control.revoke_backend("acme", "acme-9")
            await made.taken_over()
            await one_choice_ends_early(made, long)
            await the_same_again(made, long)
    (done,) = [event for event in events if event["type"] == "inference.completed"]
    assert (answer.status, answer.headers["x-domicile-watermark"], done["watermark"]) == (200, "marked", "marked")
    assert done["weights_source"] == "computed" and done["weights_sha256"] not in (THEIRS, OTHERS)
    assert done["mark_period"] and done["backend_id"] != "acme-9"


async def one_choice_ends_early(made, long):
    """Each of four choices says what came of its mark; header and record say what is not as demanded."""
    four = {**long, "n": 4, "seed": 11, "max_tokens": 90}
    texts = [choice["text"] for choice in (await made.post(four, PATH)).json["choices"]]
    stops = [
        " ".join(("", *words))
        for choice in range(4)
        for words in zip(texts[choice].split()[8:20], texts[choice].split()[9:20], strict=False)
        if sum(" ".join(("", *words)) in text for text in texts) == 1
    ]
    for stop in stops:  # which of them ends a choice is not sure: prompts that are cached may be rounded otherwise
        ended = await made.post({**four, "stop": [stop]}, PATH)
        said = [choice["watermark"] for choice in ended.json["choices"]]
        if "short" in said:
            break
    assert sorted(said) == ["marked", "marked", "marked", "short"], ended.body
    assert ended.headers["x-domicile-watermark"] == "short"
    (done,) = [event for event in record_of(made, ended) if event["type"] == "inference.completed"]
    assert done["watermark"] == "short"
    assert [one["choice"] for one in ended.json["c2pa"]] == [0, 1, 2, 3]


async def the_same_again(made, long):
    """A key of idempotency is for changes of the admin API: a call that is made twice has two answers, each marked."""
    again = {"idempotency-key": "one-and-the-same"}
    answers = [await made.post(long, PATH, headers=again) for _ in range(2)]
    assert answers[0].text != answers[1].text
    for answer in answers:
        (done,) = [event for event in record_of(made, answer) if event["type"] == "inference.completed"]
        assert (answer.headers["x-domicile-watermark"], done["watermark"]) == ("marked", "marked")
