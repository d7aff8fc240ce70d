"""A gateway whose tenants keep content, and what tests ask it by."""

import asyncio
import json
from contextlib import asynccontextmanager

import openai
import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, lab

KEEPING = POLICY.replace("content: none", "content: 'encrypted, 7d'")
CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


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
async def gateway(tmp_path, set_up=keeping, backends=None, **more):
    """Each tenant has a backend, unless `backends` says otherwise."""
    if backends is None:
        backends = {"acme/eu-fr-par/acme-1": FakeBackend(), "globex/eu-fr-par/globex-1": FakeBackend()}
    async with lab(tmp_path, set_up=set_up, backends=backends, **more) as made:
        yield made


def client(made, key="acme/main", base=None):
    return openai.AsyncOpenAI(base_url=f"{base or made.base}/v1", api_key=made.key(key), max_retries=0)


async def upload(sdk, *lines, **more):
    content = lines[0] if len(lines) == 1 and isinstance(lines[0], bytes) else jsonl(*lines)
    return await sdk.files.create(file=("requests.jsonl", content), purpose="batch", **more)


async def begin(sdk, *lines, endpoint=CHAT):
    file = await upload(sdk, *lines)
    return await sdk.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


async def over(sdk, batch, within_s=60):
    async with asyncio.timeout(within_s):
        while (batch := await sdk.batches.retrieve(batch.id)).status not in ENDED:
            await asyncio.sleep(0.05)
    return batch


async def lines_of(sdk, file):
    content = await sdk.files.content(file)
    return [json.loads(each) for each in content.text.splitlines()]


async def outcome(sdk, batch):
    """Results and errors of a batch, by custom_id."""
    batch = await over(sdk, batch)
    files = [file for file in (batch.output_file_id, batch.error_file_id) if file]
    found = [each for file in files for each in await lines_of(sdk, file)]
    return batch, {each["custom_id"]: each for each in found}


@pytest.fixture
async def acme(tmp_path):
    async with gateway(tmp_path) as made, client(made) as sdk:
        made.sdk = sdk
        yield made
