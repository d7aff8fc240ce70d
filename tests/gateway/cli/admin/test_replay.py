"""`domicile backend replay` on a running gateway's folder: what is equal, what is not, what cannot be compared."""

import asyncio
import json
import sqlite3

import pytest
from typer.testing import CliRunner

from audit.cli.app import app as audit_app
from gateway.cli.app import app
from regions.identity.identity import BackendIdentity
from tests.backend.running import Backend
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.backend import FakeBackend, running
from tests.fakes.lab import OPEN_POLICY, POLICY, chat, lab

KEEPING = OPEN_POLICY + "retention: {metadata: 12mo, content: 'encrypted, 30d'}\n"
SHELL = CliRunner()
ALICE = "alice@example.com"


def keeping(made):
    made.tenant("acme", KEEPING)


async def asked(made, **more):
    """The id of a call that was answered."""
    answer = await made.post(
        chat("Who watches the Zugspitze?", **{"seed": 7, **more}), headers={"x-domicile-subject": ALICE}
    )
    assert answer.status == 200, answer.body
    return answer.headers["x-request-id"]


async def replayed(made, request_id, *options, tenant="acme", json=True):
    line = ["backend", "replay", tenant, request_id, *options, "--data", str(made.data), *(["--json"] if json else [])]
    return await asyncio.to_thread(SHELL.invoke, app, line)


async def audit(made, *words):
    done = await asyncio.to_thread(SHELL.invoke, audit_app, [*words, "--data", str(made.data)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"temperature": 0, "seed": None}], ids=str)
async def test_the_very_body_is_sent_again_and_an_equal_answer_is_said_to_be(tmp_path, more):
    async with lab(tmp_path, set_up=keeping) as made:
        request_id = await asked(made, **more)
        done = await replayed(made, request_id)
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        assert (said["equal"], said["asked"], said["characters"], said["difference"]) == (True, "acme-1", 21, None)
        first, again = made.backends["acme-1"].bodies
        assert first == again
        sent = made.backends["acme-1"].headers
        ids = [{name.lower(): value for name, value in headers.items()}["x-request-id"] for headers in sent]
        assert ids[0] == request_id != ids[1]


async def test_who_reads_content_is_on_record_before_and_the_outcome_after(tmp_path):
    async with lab(tmp_path, set_up=keeping) as made:
        request_id = await asked(made)
        assert (await replayed(made, request_id)).exit_code == 0
        *read, compared = made.acts()[-3:]
        assert [event["type"] for event in read] == ["content.accessed"] * 2
        assert {(event["actor"], event["reason"]) for event in read} == {("cli", "replay")}
        assert [event["fields"] for event in read] == [["input", "input_original", "subject"], ["output", "subject"]]
        assert compared | {"type": "content.replayed", "request_id": request_id, "equal": True} == compared
        assert (compared["backend_id"], compared["region"], compared["seq"]) == ("acme-1", "eu-fr-par", read[0]["seq"])
        assert "Zugspitze" not in json.dumps(made.events())
        assert made.verify().ok


async def test_another_answer_is_told_with_the_place_where_they_part_and_on_record(tmp_path):
    backend = FakeBackend()
    async with lab(tmp_path, set_up=keeping, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        request_id = await asked(made, stream=True)
        backend.say = "The capital is Rome."
        done = await replayed(made, request_id)
        assert done.exit_code == 1
        said = json.loads(done.stdout)
        assert said["difference"] == {
            "choice": 0, "field": "content", "at": 15, "was": "The capital is Paris.", "now": "The capital is Rome.",
        }  # fmt: skip
        assert made.acts()[-1]["equal"] is False
        told = (await replayed(made, request_id, json=False)).output
        assert "different: choice 0, content, behind 15 characters" in told
        assert "--batch-invariant" in told


async def test_a_server_on_this_host_can_be_asked_instead_of_the_one_that_answered(tmp_path):
    async with lab(tmp_path, set_up=keeping) as made, running(FakeBackend()) as other:
        request_id = await asked(made)
        done = await replayed(made, request_id, "--url", other.url)
        assert (done.exit_code, len(other.bodies)) == (0, 1), done.output
        assert "backend_id" not in made.acts()[-1]
        await asyncio.to_thread(made.control.revoke_backend, "acme", "acme-1")
        gone = await replayed(made, request_id)
        assert gone.exit_code == 2
        assert "acme has no backend acme-1 in service" in gone.output


async def test_what_the_record_says_of_the_model_since_then_is_told_beside_a_difference(tmp_path):
    backend = FakeBackend()
    async with lab(tmp_path, set_up=keeping, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        line = ["model", "record", "acme", "--model", "small", "--what"]
        await asked(made)  # a tenant of whom nothing is on record is taken for a typing error
        await audit(made, *line, "guardrails")
        request_id = await asked(made)
        await audit(made, *line, "weights")
        backend.say = "The capital is Rome."
        done = await replayed(made, request_id, json=False)
        seq = len(made.events()) - 1 - made.types()[::-1].index("model.changed")
        assert f"the model is another: weights, by record {seq}." in done.output
        assert "guardrails" not in done.output


OURS, THEIRS = "fp_00112233445566aa", "fp_00112233445566ab"


@pytest.mark.parametrize(
    ("stream", "kept", "now", "same"),
    [
        (True, f"{OURS}_00000000", f"{OURS}_00000000", True),
        (False, f"{OURS}_00000000", f"{OURS}_11111111", True),  # computed in another way, from the same weights
        (True, f"{OURS}_00000000", f"{THEIRS}_00000000", False),
        (False, "fp_44709d6fcb", "fp_44709d6fcb", True),  # another server's
        (True, "fp_44709d6fcb", "fp_50cad350e4", None),
        (False, None, f"{OURS}_00000000", None),
        (True, f"{OURS}_00000000", None, None),
        (False, "a sentence, perhaps of the prompt", "a sentence, perhaps of the prompt", None),
        (True, 5, 5, None),
    ],
)
async def test_whether_the_weights_are_the_same_is_told_and_recorded_though_the_answers_are(
    tmp_path, stream, kept, now, same
):
    backend = FakeBackend(fingerprint=kept)
    async with lab(tmp_path, set_up=keeping, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        request_id = await asked(made, stream=stream)
        completed = next(e for e in made.events() if e["type"] == "inference.completed")
        one_word = isinstance(kept, str) and " " not in kept
        assert completed.get("fingerprint") == (kept if one_word else None)
        backend.fingerprint = now
        done = await replayed(made, request_id)
        said = json.loads(done.stdout)
        assert (said["equal"], said["same_weights"]) == (True, same)
        assert made.acts()[-1].get("same_weights") == same
        told = (await replayed(made, request_id, json=False)).output
        assert {True: "from the same weights.", False: "different weights", None: "is not known"}[same] in told


@pytest.mark.parametrize("url", ["http://192.0.2.7:8000", "https://127.0.0.1:1", "http://example.org", "127.0.0.1:80"])
async def test_kept_content_is_sent_to_no_server_off_this_host_that_no_region_vouches_for(tmp_path, url):
    async with lab(tmp_path, set_up=keeping) as made:
        request_id = await asked(made)
        done = await replayed(made, request_id, "--url", url)
        assert done.exit_code == 2
        assert "--url is for a server on this host" in done.output
        assert "content.accessed" not in made.types()


async def test_kept_content_does_not_leave_the_region_that_answered(tmp_path):
    there, away = FakeBackend(), FakeBackend(model="other")
    backends = {"acme/eu-fr-par/acme-1": there, "acme/eu-de-fra/acme-2": away}
    async with lab(tmp_path, set_up=keeping, backends=backends) as made:
        done = await replayed(made, await asked(made), "--backend", "acme-2")
        assert done.exit_code == 2
        assert "acme-2 is in eu-de-fra, and the call was answered in eu-fr-par" in done.output
        assert away.bodies == []


async def test_a_call_of_another_tenant_is_not_found(tmp_path):
    def set_up(made):
        keeping(made)
        made.tenant("other", KEEPING)

    async with lab(tmp_path, set_up=set_up) as made:
        done = await replayed(made, await asked(made), tenant="other")
        assert done.exit_code == 2
        assert "no record of other is of req-" in done.output


@pytest.mark.parametrize(
    ("policy", "more", "because"),
    [
        (OPEN_POLICY, {}, "no content of req-"),
        (KEEPING, {"seed": None}, "sampled without a `seed`"),
        (KEEPING, {"seed": None, "temperature": 0.1}, "sampled without a `seed`"),
    ],
)
async def test_what_cannot_come_out_the_same_is_refused_with_a_sentence(tmp_path, policy, more, because):
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", policy)) as made:
        done = await replayed(made, await asked(made, **more))
        assert done.exit_code == 2
        assert because in done.output
        assert len(made.backends["acme-1"].bodies) == 1


async def test_a_call_whose_values_were_hidden_is_not_compared(tmp_path):
    policy = POLICY.replace("content: none", "content: 'encrypted, 30d'")
    backend = FakeBackend(say=lambda body: f"I read {body['messages'][0]['content']}")
    backends = {"acme/eu-fr-par/acme-1": backend}
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", policy), backends=backends) as made:
        answer = await made.post(chat("Write to anna@example.org", seed=1))
        done = await replayed(made, answer.headers["x-request-id"])
        assert done.exit_code == 2
        assert "was redacted" in done.output
        assert "content.accessed" not in made.types()
        plain = await made.post(chat("Write to nobody", seed=1))
        assert (await replayed(made, plain.headers["x-request-id"])).exit_code == 0


async def test_what_was_erased_restricted_or_is_over_its_time_is_neither_read_nor_sent(tmp_path):
    async with lab(tmp_path, set_up=keeping) as made:
        request_id = await asked(made)
        whose = ["acme", "--subject", ALICE]
        await audit(made, "restrict", *whose)
        done = await replayed(made, request_id)
        assert (done.exit_code, "are restricted" in done.output) == (2, True)
        await audit(made, "restrict", *whose, "--lift")
        with sqlite3.connect(made.data / "audit" / "side.db") as db:
            (expires,) = db.execute("select distinct expires from value").fetchone()
            db.execute("update value set expires = 1")
        done = await replayed(made, request_id)
        assert (done.exit_code, "is over its time" in done.output) == (2, True)
        with sqlite3.connect(made.data / "audit" / "side.db") as db:
            db.execute("update value set expires = ?", (expires,))
        assert (await replayed(made, request_id)).exit_code == 0
        await audit(made, "erase", *whose, "--yes")
        done = await replayed(made, request_id)
        assert (done.exit_code, "was erased (certificate " in done.output) == (2, True)
        assert len(made.backends["acme-1"].bodies) == 2


async def test_calls_that_were_refused_broke_off_or_never_were_have_their_sentences(tmp_path):
    policy = POLICY.replace("content: none", "content: 'encrypted, 30d'")
    backend = FakeBackend()
    backends = {"acme/eu-fr-par/acme-1": backend}
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", policy), backends=backends) as made:
        refused = await made.post(chat("My key is AKIAIOSFODNN7EXAMPLE and sk_live_4eC39HqLyjWDarjtT1zdp7dc", seed=1))
        assert refused.status == 422
        backend.die_after = 1
        broken = await made.post(chat("Go on", stream=True, seed=1))
        for request_id, because in (
            (refused.headers["x-request-id"], "was refused"),
            (broken.headers["x-request-id"], "has no whole answer"),
            ("req-000000000000000000000000", "no record of acme is of"),
        ):
            done = await replayed(made, request_id)
            assert (done.exit_code, because in done.output) == (2, True), done.output


@pytest.mark.parametrize("fault", [{"die_after": 1}, {"die_after": 1, "fail_inside": True}, {"status": 500}])
async def test_an_answer_that_does_not_come_to_its_end_is_no_difference(tmp_path, fault):
    backend = FakeBackend()
    async with lab(tmp_path, set_up=keeping, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        request_id = await asked(made, stream=True)
        for name, value in fault.items():
            setattr(backend, name, value)
        done = await replayed(made, request_id)
        assert done.exit_code == 2
        assert "there is no answer to compare" in done.output
        assert "content.replayed" not in made.types()


async def test_a_folder_that_holds_no_installation_is_a_sentence(tmp_path):
    done = SHELL.invoke(app, ["backend", "replay", "acme", "req-1", "--data", str(tmp_path)])
    assert (done.exit_code, "holds no installation" in done.output) == (2, True)


def engine(tmp_path, seed):
    folder = write_folder(tmp_path / f"model-{seed}", tiny_model(seed))
    return Backend(
        tmp_path / f"{seed}.log", "--model", str(folder), "--served-name", "small", "--no-prefix-cache"
    )  # from a cached prefix it would compute in other pieces, which may cost the last bit


async def test_our_engine_gives_the_same_tokens_and_log_probabilities_again_and_other_weights_do_not(tmp_path):
    with engine(tmp_path, 1) as ours, engine(tmp_path, 2) as other:

        def set_up(made):
            keeping(made)
            identity = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1")
            made.control.register_backend(identity, url=ours.url, models=["small"])

        for backend in (ours, other):
            while "fingerprint fp_" not in backend.log:  # it is read beside the first requests
                await asyncio.sleep(0.05)
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            options = {"max_tokens": 24, "temperature": 0.8, "logprobs": True, "top_logprobs": 2, "ignore_eos": True}
            for stream in (False, True):
                request_id = await asked(made, stream=stream, **options)
                done = await replayed(made, request_id)
                assert done.exit_code == 0, done.output
                said = json.loads(done.stdout)
                assert (said["exact"], said["tokens"], said["same_weights"]) == (True, 24, True)
                done = await replayed(made, request_id, "--url", other.url, "--tolerance", "0.01")
                said = json.loads(done.stdout)
                assert (done.exit_code, said["difference"]["field"], said["same_weights"]) == (1, "logprobs", False)
