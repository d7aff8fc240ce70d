"""Files and batches as the official SDK uses them, against a whole gateway."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import openai
import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, lab

KEEPING = POLICY.replace("content: none", "content: 'encrypted, 7d'")
CHAT = "/v1/chat/completions"


def line(number, content="hi", url=CHAT, **body):
    asked = {"model": "small", "messages": [{"role": "user", "content": content}], **body}
    return {"custom_id": f"line-{number}", "method": "POST", "url": url, "body": asked}


def jsonl(*lines):
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in lines)


def keeping(made):
    made.tenant("acme", KEEPING)
    made.project("acme", "other")
    made.tenant("globex", KEEPING)


@asynccontextmanager
async def running(tmp_path, set_up=keeping, **more):
    async with lab(tmp_path, set_up=set_up, **more) as made:
        yield made


def client(made, key="acme/main"):
    return openai.AsyncOpenAI(base_url=f"{made.base}/v1", api_key=made.key(key), max_retries=0)


async def over(sdk, batch, within_s=60):
    async with asyncio.timeout(within_s):
        while (batch := await sdk.batches.retrieve(batch.id)).status not in (
            "completed",
            "failed",
            "expired",
            "cancelled",
        ):
            await asyncio.sleep(0.05)
    return batch


async def lines_of(sdk, file):
    content = await sdk.files.content(file)
    return [json.loads(each) for each in content.text.splitlines()]


async def test_the_sdk_uploads_runs_reads_and_deletes(tmp_path):
    async with running(tmp_path) as made, client(made) as sdk:
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
