"""OpenAI's own Node SDK against a running gateway, unchanged. `make node-sdk` installs it."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.fakes.backend import USAGE, FakeBackend
from tests.fakes.lab import POLICY, lab
from tests.fakes.needs import missing
from tests.fakes.tool_user import ToolUser

SCRIPT = Path(__file__).with_name("openai_node.mjs")
RESPONSES = SCRIPT.with_name("openai_node_responses.mjs")
KEPT = SCRIPT.with_name("openai_node_kept.mjs")
SDK = Path(__file__).parents[2] / "build" / "node" / "node_modules" / "openai" / "index.mjs"
SAID = "The capital is Paris."


@pytest.fixture
def node():
    """The Node program. Where it or the SDK is absent the test is skipped; in CI it has to be there."""
    found = shutil.which("node")
    lacking = "Node is not installed" if found is None else "the SDK is not there: run `make node-sdk`"
    if found is None or not SDK.is_file():
        missing(lacking)
    return found


async def drive(node, made, script=SCRIPT, **config):
    config = {"sdk": SDK.as_uri(), "baseURL": f"{made.base}/v1", **config}
    process = await asyncio.create_subprocess_exec(
        node, str(script), json.dumps(config), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def two_tenants(made):
    made.tenant("acme", POLICY + "limits: {rpm: 100, tpm: 100000}\n")
    made.tenant("globex")


async def test_the_node_sdk_works_unchanged(node, tmp_path):
    backends = {
        "acme/eu-fr-par/acme-1": FakeBackend(),
        "acme/eu-fr-par/acme-slow": FakeBackend(model="slow", pieces=21, delay_s=0.5),
        "acme/eu-fr-par/acme-failing": FakeBackend(model="failing", status=500, error={"message": "x"}),
        "globex/us-east/globex-1": FakeBackend(),
    }
    async with lab(tmp_path, set_up=two_tenants, backends=backends) as made:
        seen = await drive(
            node,
            made,
            key=made.key(),
            denied=made.key("globex/main"),
            wrongKey="dom_live_00000000_" + "0" * 49,
            model="small",
            slow="slow",
            failing="failing",
        )
        request_id = seen["answer"].pop("requestId")
        assert seen.pop("errors") == {
            "wrongKey": ["AuthenticationError", 401, "invalid_api_key"],
            "denied": ["PermissionDeniedError", 403, "residency_denied"],
            "unknownModel": ["NotFoundError", 404, "model_not_found"],
            "outOfRange": ["BadRequestError", 400, "invalid_type"],
            "blocked": ["UnprocessableEntityError", 422, "redaction_blocked"],
            "tooMuch": ["RateLimitError", 429, "request_exceeds_limit"],
            "failing": ["InternalServerError", 502, "backend_error"],
            "timeout": ["APIConnectionTimeoutError", None, None],
            "nobodyThere": ["APIConnectionError", None, None],
        }
        assert seen == {
            "answer": {"content": SAID, "finish": "stop", "usage": USAGE, "region": "eu-fr-par"},
            "stream": {"content": SAID, "roles": ["assistant"], "chunksWithUsage": [{"choices": 0, "total": 12}]},
            "accumulated": SAID,
            "completion": SAID,
            "completionStream": SAID,
            "models": ["failing", "slow", "small"],
            "model": "small",
            "chunksBeforeLeaving": 3,
        }
        for _ in range(100):
            ends = [event["reason"] for event in made.events() if event["type"] == "inference.aborted"]
            if ends.count("client_disconnected") == 2:
                break
            await asyncio.sleep(0.05)
        assert sorted(ends) == ["backend_error", "client_disconnected", "client_disconnected"]
        assert await backends["acme/eu-fr-par/acme-slow"].abandoned(2)
        assert request_id in {event.get("request_id") for event in made.events()}
    assert made.verify().ok


async def test_the_node_sdks_responses_work_unchanged(node, tmp_path):
    mail = "anna.schmidt@example.org"
    backend = ToolUser(say=lambda body: f"You said {body['messages'][-1]['content']}")
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        seen = await drive(node, made, RESPONSES, key=made.key(), model="small", mail=mail)
        assert mail not in backend.received
        types = seen.pop("types")
        assert (types[0], types[-1]) == ("response.created", "response.completed")
        assert "response.reasoning_text.delta" in types
        said = f"You said write to {mail}"
        assert seen == {
            "text": said, "status": "completed", "total": 12, "numbered": True, "deltas": said, "accumulated": said,
            "about": mail, "second": f"It says: {mail} is out", "parsed": {"city": "Paris", "population": 2100000},
            "errors": {
                "stored": ["PermissionDeniedError", 403, "retention.content", None],
                "gone": ["NotFoundError", 404, "previous_response_not_found", "previous_response_id"],
                "hosted": ["BadRequestError", 400, "unsupported_parameter", "tools.0.type"],
                "unknownModel": ["NotFoundError", 404, "model_not_found", "model"],
            },
        }  # fmt: skip


async def test_responses_that_are_kept_work_unchanged(node, tmp_path):
    mail = "anna.schmidt@example.org"
    backend = ToolUser(say=lambda body: f"You said {body['messages'][-1]['content']}", thought="")
    policy = POLICY.replace("content: none", "content: 'encrypted, 7d'")
    set_up = {"set_up": lambda made: made.tenant("acme", policy)}
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}, **set_up) as made:
        seen = await drive(node, made, KEPT, key=made.key(), model="small", mail=mail)
        assert mail not in backend.received
        assert seen == {
            "store": True, "same": True, "second": "You said and?",
            "items": [f"I am {mail}", f"You said I am {mail}", "and?"],
            "queued": "queued", "later": ["completed", "You said later"], "cancelled": "completed",
            "errors": {
                "deleted": ["NotFoundError", 404, "not_found", "id"],
                "broken": ["NotFoundError", 404, "previous_response_not_found", "previous_response_id"],
                "notInBackground": ["BadRequestError", 400, "invalid_value", "id"],
                "replay": ["BadRequestError", 400, "unsupported_parameter", "stream"],
            },
        }  # fmt: skip
