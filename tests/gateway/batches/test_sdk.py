"""Files and batches as the official SDK uses them, against a whole gateway."""

import openai
import pytest

from audit.log.receipt import Receipt
from tests.fakes.backend import FakeBackend
from tests.gateway.batches.conftest import (
    CHAT,
    begin,
    client,
    gateway,
    jsonl,
    keeping,
    line,
    lines_of,
    outcome,
    over,
    upload,
)


async def test_the_sdk_uploads_runs_reads_and_deletes(tmp_path):
    async with gateway(tmp_path) as made, client(made) as sdk:
        given = jsonl(*(line(number) for number in range(20)))
        file = await sdk.files.create(file=("requests.jsonl", given), purpose="batch")
        assert (file.filename, file.bytes, file.purpose, file.status) == (
            "requests.jsonl",
            len(given),
            "batch",
            "processed",
        )
        assert (await sdk.files.content(file.id)).content == given, "byte for byte"
        batch = await sdk.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"night": "1"}
        )
        assert (batch.status, batch.metadata) == ("validating", {"night": "1"})
        batch = await over(sdk, batch)
        assert batch.status == "completed", batch
        assert batch.request_counts.model_dump() == {"total": 20, "completed": 20, "failed": 0}
        assert batch.error_file_id is None
        results = await lines_of(sdk, batch.output_file_id)
        assert {each["custom_id"] for each in results} == {f"line-{number}" for number in range(20)}
        assert all(each["response"]["status_code"] == 200 and each["error"] is None for each in results)
        assert results[0]["response"]["body"]["choices"][0]["message"]["content"] == "The capital is Paris."
        completed = {e["request_id"]: e for e in made.events() if e["type"] == "inference.completed"}
        for each in results:
            proofs = each["response"]["headers"]
            assert proofs["x-domicile-region"] == "eu-fr-par"
            receipt = Receipt.parse(proofs["x-domicile-receipt"])
            assert made.events()[receipt.seq]["request_id"] == each["response"]["request_id"]
            assert each["response"]["request_id"] in completed
        listed = [each.id async for each in sdk.files.list(limit=1)]
        assert set(listed) == {file.id, batch.output_file_id}
        assert [each.id async for each in sdk.batches.list(limit=1)] == [batch.id]
        for each in listed:
            assert (await sdk.files.delete(each)).deleted
        assert [each async for each in sdk.files.list()] == []
        with pytest.raises(openai.NotFoundError):
            await sdk.files.content(file.id)
        accepted = [event for event in made.events() if event["type"] == "inference.accepted"]
        assert {event["batch_line"] for event in accepted} == set(range(1, 21))
        assert {event["batch_id"] for event in accepted} == {batch.id}
        assert {"file.stored", "file.read", "file.deleted", "batch.created", "batch.ended"} <= set(made.types())
        assert made.verify().findings == []


async def test_a_broken_line_fails_by_its_number_and_the_batch_goes_on(acme):
    content = jsonl(
        line(1),
        b"{broken",
        b"[1]",
        line(4, url="/v1/embeddings"),
        {**line(5), "method": "GET"},
        {**line(6), "body": "no"},
        line(7, stream=True),
        {**line(8), "custom_id": 8},
        b"",
        line(10, messages="no"),
        line(11, model="unknown"),
        line(12, b"\xff".decode("latin-1")),
        b'{"custom_id": "line-13", "method": "POST", "url": "/v1/chat/completions", "body": {"a": 1e999}}',
        line(14),
    )
    batch = await begin(acme.sdk, content)
    batch = await over(acme.sdk, batch)
    assert batch.status == "completed"
    assert batch.request_counts.model_dump() == {"total": 13, "completed": 3, "failed": 10}
    good = {each["custom_id"] for each in await lines_of(acme.sdk, batch.output_file_id)}
    assert good == {"line-1", "line-12", "line-14"}
    errors = await lines_of(acme.sdk, batch.error_file_id)
    by_line = {each["error"]["line"]: each["error"]["code"] for each in errors if each["error"]}
    assert by_line == {
        2: "invalid_json_line",
        3: "invalid_json_line",
        4: "mismatched_endpoint",
        5: "invalid_method",
        6: "invalid_body",
        7: "unsupported_stream",
        8: "invalid_custom_id",
        13: "invalid_body",
    }
    faults = [each["error"] for each in errors if each["error"]]
    assert all(f"Line {fault['line']}" in fault["message"] for fault in faults)
    refused = {each["custom_id"]: each["response"] for each in errors if each["response"]}
    assert refused["line-10"]["status_code"] == 400
    assert refused["line-10"]["body"]["error"]["param"] == "messages"
    assert refused["line-11"]["status_code"] == 404
    assert refused["line-11"]["body"]["error"]["code"] == "model_not_found"


async def test_two_lines_of_one_custom_id_fail_the_batch_and_nothing_is_sent(acme):
    batch = await begin(acme.sdk, line(1), line(2), line(1), line(2))
    batch = await over(acme.sdk, batch)
    assert batch.status == "failed"
    assert [(each.code, each.line, each.param) for each in batch.errors.data] == [
        ("duplicate_custom_id", 3, "custom_id"),
        ("duplicate_custom_id", 4, "custom_id"),
    ]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert acme.backends["acme-1"].bodies == []


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"model": "small", "prompt": "a"}),
        ("/v1/embeddings", {"model": "small", "input": "a"}),
    ],
)
async def test_every_inference_route_runs_as_a_batch(acme, endpoint, body):
    asked = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    _, found = await outcome(acme.sdk, await begin(acme.sdk, asked, endpoint=endpoint))
    assert found["a"]["response"]["status_code"] == 200
    assert found["a"]["response"]["body"]["usage"]["prompt_tokens"] == 7


async def test_responses_run_as_a_batch_in_their_own_form(acme):
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "small", "input": "hi"}},
        {"custom_id": "b", "method": "POST", "url": "/v1/responses", "body": {"model": "small", "input": 7}},
    ]
    _, found = await outcome(acme.sdk, await begin(acme.sdk, *lines, endpoint="/v1/responses"))
    good, bad = found["a"]["response"], found["b"]["response"]
    assert (good["status_code"], good["body"]["object"], good["body"]["usage"]["input_tokens"]) == (200, "response", 7)
    assert (bad["status_code"], bad["body"]["error"]["param"]) == (400, "input")


@pytest.mark.parametrize("endpoint", ["/v1/messages", "/v1/messages/count_tokens", "/v1/models"])
async def test_a_route_of_another_api_is_not_batched(acme, endpoint):
    with pytest.raises(openai.BadRequestError, match=r"use one of: .*/v1/responses"):
        await begin(acme.sdk, {"custom_id": "a", "method": "POST", "url": endpoint, "body": {}}, endpoint=endpoint)


async def test_a_batch_is_cancelled_and_keeps_what_was_done(tmp_path):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(delay_s=0.1)}
    async with gateway(tmp_path, backends=backends) as made, client(made) as sdk:
        batch = await begin(sdk, *(line(number) for number in range(400)))
        while (await sdk.batches.retrieve(batch.id)).request_counts.completed < 8:
            pass
        said = await sdk.batches.cancel(batch.id)
        assert said.status == "cancelling"
        assert said.cancelling_at
        batch = await over(sdk, batch)
        assert (batch.status, batch.request_counts.total) == ("cancelled", 400)
        done = batch.request_counts.completed
        assert 8 <= done < 400
        assert len(await lines_of(sdk, batch.output_file_id)) == done
        with pytest.raises(openai.ConflictError):
            await sdk.batches.cancel(batch.id)
        assert len(made.backends["acme-1"].bodies) == done, "what had begun was finished, nothing else was sent"


async def test_lists_are_paged_in_both_orders(acme):
    ids = [(await upload(acme.sdk, line(number))).id for number in range(5)]
    assert [each.id async for each in acme.sdk.files.list(limit=2, order="asc")] == ids
    assert [each.id async for each in acme.sdk.files.list(limit=2)] == ids[::-1]
    page = await acme.sdk.files.list(limit=2, order="asc", after=ids[1])
    assert ([each.id for each in page.data], page.has_more) == (ids[2:4], True)
    assert (await acme.sdk.files.list(purpose="batch_output")).data == []
    batches = [(await begin(acme.sdk, line(1))).id for _ in range(3)]
    assert [each.id async for each in acme.sdk.batches.list(limit=2)] == batches[::-1]


async def test_a_file_that_a_batch_reads_is_not_deleted_under_it(tmp_path):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(delay_s=0.2)}
    async with gateway(tmp_path, backends=backends) as made, client(made) as sdk:
        batch = await begin(sdk, *(line(number) for number in range(30)))
        with pytest.raises(openai.ConflictError):
            await sdk.files.delete(batch.input_file_id)
        await over(sdk, batch)
        assert (await sdk.files.delete(batch.input_file_id)).deleted


async def test_output_files_can_be_asked_to_expire_sooner(acme):
    file = await upload(acme.sdk, line(1), expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.expires_at - file.created_at == 3600
    batch = await acme.sdk.batches.create(
        input_file_id=file.id,
        endpoint=CHAT,
        completion_window="24h",
        extra_body={"output_expires_after": {"anchor": "created_at", "seconds": 7200}},
    )
    batch = await over(acme.sdk, batch)
    result = await acme.sdk.files.retrieve(batch.output_file_id)
    assert 7198 <= result.expires_at - result.created_at <= 7200


async def test_a_batch_of_another_projects_file_is_not_made(tmp_path):
    async with gateway(tmp_path, set_up=keeping) as made, client(made) as sdk, client(made, "acme/other") as other:
        file = await upload(sdk, line(1))
        with pytest.raises(openai.NotFoundError):
            await other.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
