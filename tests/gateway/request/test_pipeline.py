"""The ten steps, through a real server, a real store and a real log."""

import asyncio
import json
import resource
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.disk import bytes_under
from tests.fakes.lab import OPEN_POLICY, POLICY, chat, lab

IBAN = "DE89 3704 0044 0532 0130 00"
MAIL = "anna.schmidt@example.org"


def echo(body):
    return body["messages"][-1]["content"]


async def test_an_answer_carries_where_it_ran_what_allowed_it_and_a_receipt(tmp_path):
    async with lab(tmp_path) as made:
        answer = await made.post(chat("What is the capital of France?"))
        assert (answer.status, answer.text) == (200, "The capital is Paris.")
        assert answer.json["usage"]["total_tokens"] == 12
        assert answer.headers["x-domicile-region"] == "eu-fr-par"
        assert answer.headers["x-domicile-decision"] == "allow test-default@1"
        assert answer.headers["x-domicile-notice-art50"]
        assert answer.headers["x-domicile-receipt"].startswith("acme/")
        assert made.types()[-2:] == ["inference.accepted", "inference.completed"]
        accepted, completed = made.acts()[-2:]
        assert accepted["inference_country"] == accepted["storage_country"] == accepted["operator_hq"] == "FR"
        assert accepted["transfer_basis"] == "intra_eea"
        assert (completed["tokens_in"], completed["tokens_out"], completed["finish_reason"]) == (7, 5, "stop")


async def test_a_stream_says_the_same_as_the_whole_answer_and_ends_with_done(tmp_path):
    async with lab(tmp_path) as made:
        answer = await made.post(chat("hi", stream=True, stream_options={"include_usage": True}))
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.text == "The capital is Paris."
        assert answer.events[-1] == "[DONE]"
        assert answer.events[-2]["choices"] == []
        assert answer.events[-2]["usage"]["total_tokens"] == 12
        assert answer.headers["x-domicile-receipt"]
        assert made.types()[-1] == "inference.completed"


async def test_usage_is_metered_and_not_shown_to_a_client_that_did_not_ask(tmp_path):
    async with lab(tmp_path) as made:
        answer = await made.post(chat("hi", stream=True))
        assert all("usage" not in event or event["usage"] is None for event in answer.events[:-1])
        assert made.backends["acme-1"].bodies[0]["stream_options"]["include_usage"] is True
        assert made.acts()[-1]["tokens_out"] == 5


async def test_completions_work_as_chat_does(tmp_path):
    async with lab(tmp_path) as made:
        for stream in (False, True):
            body = {"model": "small", "prompt": f"My mail is {MAIL}", "stream": stream}
            answer = await made.post(body, "/v1/completions")
            assert answer.text == "The capital is Paris."
        assert MAIL not in made.backends["acme-1"].received


@pytest.mark.parametrize("stream", [False, True])
async def test_personal_data_reaches_the_model_as_placeholders_and_comes_back_restored(tmp_path, stream):
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": FakeBackend(say=echo, pieces=40)}) as made:
        said = f"Write to {MAIL} about {IBAN}, please."
        answer = await made.post(chat(said, stream=stream))
        assert answer.text == said
        assert MAIL not in made.backends["acme-1"].received
        assert "3704" not in made.backends["acme-1"].received
        assert made.acts()[-2]["redaction"]["counts_by_type"] == {"email": 1, "iban": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_personal_data_that_the_model_brings_up_itself_is_masked(tmp_path, stream):
    backend = FakeBackend(say=f"Ask {MAIL}, account {IBAN}.", pieces=50)
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        answer = await made.post(chat("Whom may I ask?", stream=stream))
        assert MAIL not in answer.text
        assert "3704" not in answer.text
        assert made.acts()[-1]["redaction"]["counts_by_type"] == {"email": 1, "iban": 1}


async def test_a_blocked_class_of_data_is_refused_recorded_and_never_sent(tmp_path):
    async with lab(tmp_path) as made:
        answer = await made.post(chat("use AKIAIOSFODNN7EXAMPLE to log in, and ghp_" + "a1B2" * 9))
        assert (answer.status, answer.error["code"]) == (422, "redaction_blocked")
        assert "AKIA" not in answer.body.decode()
        assert made.backends["acme-1"].bodies == []
        assert made.types()[-1] == "inference.denied"


async def test_token_ids_cannot_be_inspected_so_they_are_refused(tmp_path):
    async with lab(tmp_path) as made:
        answer = await made.post({"model": "small", "prompt": [1, 2, 3]}, "/v1/completions")
        assert answer.status == 422
        assert made.backends["acme-1"].bodies == []


async def test_who_the_user_is_stays_on_this_side(tmp_path):
    async with lab(tmp_path) as made:
        await made.post(chat("hi", user="u-4711", metadata={"ward": "7"}), headers={"cookie": "session=1", "x-me": "2"})
        backend = made.backends["acme-1"]
        assert not {"user", "metadata"} & backend.bodies[0].keys()
        sent = {name.lower() for name in backend.headers[0]}
        assert sent == {"host", "content-type", "content-length", "x-request-id", "accept", "x-domicile-project"}
        assert made.key() not in json.dumps(backend.headers)


async def test_a_prompt_of_a_megabyte_passes(tmp_path):
    async with lab(tmp_path) as made:
        assert (await made.post(chat("word " * 200_000))).status == 200
        assert len(made.backends["acme-1"].bodies[0]["messages"][0]["content"]) == 1_000_000


async def test_each_project_has_a_prefix_cache_of_its_own_also_if_a_client_salts_it(tmp_path):
    def two_projects(made):
        made.tenant("acme")
        made.project("acme", "other")

    async with lab(tmp_path, set_up=two_projects) as made:
        await made.post(chat("hi"))
        await made.post(chat("hi", cache_salt="main"), key="acme/other")
        first, second = (body["cache_salt"] for body in made.backends["acme-1"].bodies)
        assert (first, second) == ("main:", "other:main")


async def test_unknown_parameters_reach_the_backend_as_they_are(tmp_path):
    async with lab(tmp_path) as made:
        asked = {
            "top_k": 5, "chat_template_kwargs": {"x": 1}, "bad_words": ["no"], "allowed_token_ids": [5, 6],
            "truncate_prompt_tokens": 9, "skip_special_tokens": False, "add_generation_prompt": True,
            "reasoning_effort": "low", "tool_choice": {"type": "allowed_tools"}, "structured_outputs": {"regex": "a"},
        }  # fmt: skip
        await made.post(chat("hi", **asked))
        assert made.backends["acme-1"].bodies[0].items() >= asked.items()


async def test_what_left_for_the_backend_is_shown_to_its_own_caller_on_request(tmp_path):
    async with lab(tmp_path) as made:
        answer = await made.post(chat(f"My mail is {MAIL}"), headers={"x-domicile-debug": "upstream"})
        assert answer.json["domicile"]["upstream_request"] == made.backends["acme-1"].bodies[0]
        assert MAIL not in json.dumps(answer.json["domicile"])


US_BACKEND = {"acme/us-east/acme-us": FakeBackend}


@pytest.mark.parametrize("attempt", range(3))
async def test_no_backend_outside_the_decision_ever_receives_a_byte(tmp_path, attempt):
    backend = FakeBackend()
    async with lab(tmp_path, backends={"acme/us-east/acme-us": backend}) as made:
        answer = await made.post(chat("hi", stream=bool(attempt % 2)))
        assert answer.status == 403
        rules = {reason["rule"] for reason in answer.error["reasons"]}
        assert {"residency.process_in", "residency.operator.ultimate_parent"} <= rules
        assert "parent is in US" in answer.error["message"]
        assert backend.bodies == []
        assert made.types()[-1] == "inference.denied"
        assert made.acts()[-1]["decision"]["reasons"][0]["rule"] == answer.error["reasons"][0]["rule"]


async def test_when_the_european_backend_is_down_the_other_one_is_still_not_asked(tmp_path):
    home, abroad = FakeBackend(status=503, error={"message": "no"}), FakeBackend()
    places = {"acme/eu-fr-par/acme-1": home, "acme/us-east/acme-us": abroad}
    async with lab(tmp_path, backends=places) as made:
        for _ in range(5):
            answer = await made.post(chat("hi"))
            assert (answer.status, answer.error["code"]) == (503, "backend_unavailable")
            assert answer.headers["retry-after"]
        assert abroad.bodies == []


async def test_a_call_moves_to_the_next_allowed_backend_before_its_first_byte(tmp_path):
    down, up = FakeBackend(status=503, error={"message": "no"}), FakeBackend()
    places = {"acme/eu-fr-par/acme-1": down, "acme/eu-de-fra/acme-2": up}
    async with lab(tmp_path, backends=places) as made:
        answers = [await made.post(chat(f"question {n}")) for n in range(8)]
        assert {answer.status for answer in answers} == {200}
        assert {answer.headers["x-domicile-region"] for answer in answers} == {"eu-de-fra"}
        assert down.bodies, "the prefix's favourite was asked first at least once"
        moved = next(event for event in made.events() if event["type"] == "routing.decision")
        assert (moved["region"], moved["fallback_index"]) == ("eu-de-fra", 1)
        assert made.types().count("inference.completed") == 8


async def test_a_tenant_cannot_name_a_model_of_another_tenant(tmp_path):
    def two(made):
        made.tenant("acme")
        made.tenant("globex")

    theirs = FakeBackend(model="theirs")
    async with lab(tmp_path, set_up=two, backends={"globex/eu-fr-par/globex-1": theirs}) as made:
        answer = await made.post({**chat("hi"), "model": "theirs"})
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert theirs.bodies == []
        assert (await made.post({**chat("hi"), "model": "theirs"}, key="globex/main")).status == 200
        assert (await made.get("/v1/models")).json["data"] == []
        assert [entry["id"] for entry in (await made.get("/v1/models", "globex/main")).json["data"]] == ["theirs"]


async def test_a_project_may_be_stricter_than_its_tenant(tmp_path):
    def strict_project(made):
        made.tenant("acme", OPEN_POLICY.replace("process_in: EEA", "process_in: [FR, DE]"))
        made.project("acme", "patients", "policy: patients\nversion: 1\nresidency: {process_in: [DE]}\n")

    async with lab(tmp_path, set_up=strict_project) as made:
        assert (await made.post(chat("hi"))).status == 200
        refused = await made.post(chat("hi"), key="acme/patients")
        assert (refused.status, refused.error["code"]) == (403, "residency_denied")


async def test_no_policy_is_no_permission(tmp_path):
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", policy=None)) as made:
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (403, "policy.unknown")
        assert made.backends["acme-1"].bodies == []
        assert made.types()[-1] == "inference.denied"


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("", "invalid_api_key"),
        ("sk-something", "invalid_api_key"),
        ("dom_live_00000000_" + "0" * 49, "invalid_api_key"),
    ],
)
async def test_a_key_that_does_not_work_opens_nothing(tmp_path, key, code):
    async with lab(tmp_path) as made:
        answer = await made.post(chat("hi"), key=key)
        assert (answer.status, answer.error["code"]) == (401, code)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert made.backends["acme-1"].bodies == []


async def test_a_revoked_key_stops_working_once_the_gateway_has_heard_of_it(tmp_path):
    async with lab(tmp_path) as made:
        assert (await made.post(chat("hi"))).status == 200
        made.control.revoke_key("acme", made.key().split("_")[2])
        await made.taken_over()
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (401, "revoked_api_key")


async def test_a_key_stops_working_when_it_expires(tmp_path, monkeypatch):
    async with lab(tmp_path) as made:
        soon = datetime.now(UTC) + timedelta(hours=1)
        made.keys["short"] = made.control.create_key("acme", "main", expires_at=soon)[1].token
        assert (await made.post(chat("hi"), key="short")).status == 200
        monkeypatch.setattr(made.gateway.directory, "_now", lambda: soon)
        answer = await made.post(chat("hi"), key="short")
        assert (answer.status, answer.error["code"]) == (401, "expired_api_key")
        assert len(made.backends["acme-1"].bodies) == 1


async def test_a_key_made_while_the_gateway_runs_works_at_once(tmp_path):
    async with lab(tmp_path) as made:
        made.project("acme", "later")
        assert (await made.post(chat("hi"), key="acme/later")).status == 200


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b'{"model": "small", "messages": [', 400, "invalid_json"),
        (b"", 400, "invalid_json"),
        (b'{"model": "small", "messages": "hi"}', 400, "invalid_type"),
        (b'{"model": "small"}', 400, "missing_required_parameter"),
        (b'{"model": "small", "messages": [{"role": "user", "content": "\xff\xfe"}]}', 400, "invalid_json"),
        (b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}', 404, "model_not_found"),
        (
            b'{"model":"small","messages":[{"role":"user","content":"' + b"x" * (10 << 20) + b'"}]}',
            413,
            "request_too_large",
        ),
    ],
    ids=["cut", "empty", "wrong type", "missing", "not utf-8", "unknown model", "10 MB"],
)
async def test_bad_input_is_a_clear_error_and_nothing_is_sent_or_recorded(tmp_path, raw, status, code):
    async with lab(tmp_path) as made:
        before = len(made.events())
        answer = await made.post(None, raw=raw)
        assert (answer.status, answer.error["code"]) == (status, code)
        assert answer.error["message"]
        assert made.backends["acme-1"].bodies == []
        assert len(made.events()) == before


async def test_a_wrong_method_or_path_is_an_openai_error(tmp_path):
    async with lab(tmp_path) as made:
        assert (await made.get("/v1/chat/completions")).error["code"] == "method_not_allowed"
        assert (await made.get("/v1/nothing")).error["code"] == "unknown_url"


async def test_the_backends_refusal_is_passed_on_in_its_own_words(tmp_path):
    error = {
        "message": "too long",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
        "param": "messages",
    }
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": FakeBackend(status=400, error=error)}) as made:
        answer = await made.post(chat("hi"))
        assert answer.status == 400
        assert answer.error == error
        assert made.acts()[-1]["type"] == "inference.aborted"


async def test_too_many_requests_at_the_backend_are_asked_once_and_keep_their_retry_after(tmp_path):
    backend = FakeBackend(status=429, error={"message": "busy"}, retry_after="7")
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        answer = await made.post(chat("hi", stream=True))
        assert (answer.status, answer.headers["retry-after"]) == (429, "7")
        assert len(backend.bodies) == 1


@pytest.mark.parametrize("inside", [False, True])
async def test_a_stream_that_breaks_ends_with_an_error_and_without_done(tmp_path, inside):
    backend = FakeBackend(die_after=2, pieces=5, fail_inside=inside)
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        answer = await made.post(chat("hi", stream=True))
        assert answer.status == 200
        assert "error" in answer.events[-1]
        assert "[DONE]" not in answer.events
        assert "The capital is Paris.".startswith(answer.text)
        assert made.acts()[-1]["type"] == "inference.aborted"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_call_at_the_backend_and_on_record(tmp_path, stream):
    backend = FakeBackend(delay_s=0.3, pieces=20)
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        timeout = aiohttp.ClientTimeout(total=0.15)
        headers = {"authorization": f"Bearer {made.key()}"}
        with pytest.raises(TimeoutError):
            async with made.http.post(
                made.base + "/v1/chat/completions", json=chat("hi", stream=stream), headers=headers, timeout=timeout
            ) as response:
                await response.read()
        assert await backend.abandoned(1)
        for _ in range(200):  # its record may come a little later
            if made.acts()[-1]["type"] == "inference.aborted":
                break
            await asyncio.sleep(0.05)
        assert made.acts()[-1]["reason"] == "client_disconnected"


async def test_a_limit_of_the_policy_holds_and_says_when_to_come_back(tmp_path):
    def limited(made):
        made.tenant("acme", POLICY + "limits: {rpm: 3, tpm: 100000}\n")

    async with lab(tmp_path, set_up=limited) as made:
        statuses = [(await made.post(chat("hi", max_tokens=5))).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert int((await made.post(chat("hi"))).headers["retry-after"]) >= 1


async def test_a_budget_without_a_price_is_refused_not_ignored(tmp_path):
    def budget(made):
        made.tenant("acme", POLICY + "limits: {eur_per_month: 5}\n")

    async with lab(tmp_path, set_up=budget) as made:
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (403, "limits.eur_per_month")
    price = {"small": {"input_eur_per_million": 1, "output_eur_per_million": 2}}
    (tmp_path / "again").mkdir()
    async with lab(tmp_path / "again", set_up=budget, prices=price) as made:
        assert (await made.post(chat("hi"))).status == 200


async def test_the_log_verifies_after_all_kinds_of_ends(tmp_path):
    backend = FakeBackend(say=echo, pieces=9)
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        answers = await asyncio.gather(
            *(made.post(chat(f"mail {MAIL} number {n}", stream=bool(n % 2))) for n in range(30))
        )
        assert [answer.error for answer in answers if answer.status != 200] == []
        await made.post(chat("key AKIAIOSFODNN7EXAMPLE"))
        backend.status, backend.error = 500, {"message": "boom"}
        assert (await made.post(chat("hi"))).error["code"] == "backend_error"
    report = made.verify()
    assert report.ok, report.findings
    tree = next(tree for tree in report.trees if tree.tenant == "acme")
    assert tree.open_requests == ()
    types = made.types()
    assert (
        types.count("inference.accepted") == types.count("inference.completed") + types.count("inference.aborted") == 31
    )


async def test_no_text_of_a_prompt_or_answer_and_no_key_is_in_any_log_metric_or_record(tmp_path, caplog):
    caplog.set_level("DEBUG")
    backend = FakeBackend(say="Xylophone answer")
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        await made.post(chat(f"Zeppelin question of {MAIL}"))
        await made.post(chat("Zeppelin", temperature="Zeppelin"))
        await made.post(None, raw=b'{"model":"Zeppelin","messages":[{"role":"user","content":"Zeppelin"}]}')
        backend.die_after = 0
        await made.post(chat("Zeppelin", stream=True))
        metrics = (await made.get("/metrics")).body.decode()
    everywhere = caplog.text + metrics + json.dumps(made.events()) + json.dumps(made.events("_system"))
    for secret in ("Zeppelin", "Xylophone", MAIL, made.key().split("_")[3]):
        assert secret not in everywhere
    for file, content in bytes_under(tmp_path / "data").items():
        assert b"Zeppelin" not in content and b"Xylophone" not in content, file
        assert made.key().encode() not in content, file


async def test_strangers_see_neither_metrics_nor_which_backends_there_are(tmp_path):
    async with lab(tmp_path, listen={"operations_from": ["192.0.2.0/24"]}) as made:
        assert (await made.get("/metrics")).status == 404
        assert (await made.get("/readyz")).json == {"ready": True}
    (tmp_path / "again").mkdir()
    async with lab(tmp_path / "again") as made:
        assert b"domicile_requests" in (await made.get("/metrics")).body
        assert list((await made.get("/readyz")).json["backends"]) == ["acme-1"]


@contextmanager
def no_file_may_grow():
    """What a full or broken disk does to whoever writes: every write beyond a file's first bytes fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_when_the_record_cannot_be_written_nothing_is_forwarded_and_no_answer_is_called_whole(tmp_path):
    backend = FakeBackend(delay_s=0.3, pieces=3)
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        running = asyncio.create_task(made.post(chat("hi", stream=True)))
        while "inference.accepted" not in made.types():
            await asyncio.sleep(0.02)
        with no_file_may_grow():
            for stream in (False, True):
                refused = await made.post(chat("hi", stream=stream))
                assert (refused.status, refused.error["code"]) == (503, "audit_unavailable")
                assert refused.headers["retry-after"]
            assert (await made.get("/readyz")).json["parts"]["audit"]["status"] == "failed"
            broken = await running
            assert broken.events[-1]["error"]["code"] == "audit_unavailable"
            assert "[DONE]" not in broken.events
        assert len(backend.bodies) == 1
        for _ in range(100):
            if (await made.post(chat("hi"))).status == 200:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the gateway did not recover when it could write again")
    assert made.verify().ok
    outcomes = [event for event in made.events() if event["type"] == "inference.aborted"]
    assert [event["reason"] for event in outcomes] == ["unrecorded"]
