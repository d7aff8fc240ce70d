"""The AI SDK against a running gateway, unchanged: its default for OpenAI (Responses), chats, and Anthropic's Messages.
`make node-sdk` installs it."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.fakes.lab import POLICY
from tests.fakes.needs import missing
from tests.fakes.tool_user import ToolUser
from tests.gateway.batches.conftest import KEEPING, gateway

SCRIPT = Path(__file__).with_name("ai_sdk.mjs")
MODULES = Path(__file__).parents[2] / "build" / "ai-sdk" / "node_modules"
MAIL = "anna.schmidt@example.org"
SAID, TOLD = f"You said write to {MAIL}", f"It says: {MAIL} is out"
CITY = {"city": "Paris", "population": 2100000}
NOT_KEPT = [404, "input.1.id", True]


@pytest.fixture
def node():
    found = shutil.which("node")
    lacking = "Node is not installed" if found is None else "the AI SDK is not there: run `make node-sdk`"
    if found is None or not (MODULES / "ai" / "package.json").is_file():
        missing(lacking)
    return found


async def drive(node, made, **config):
    config = {"modules": MODULES.as_uri(), "base": made.base, "key": made.key(), "mail": MAIL, **config}
    process = await asyncio.create_subprocess_exec(
        node, SCRIPT, json.dumps(config), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0, err.decode()[-3000:]
    return json.loads(out)


def serving(policy):
    backend = ToolUser(say=lambda body: f"You said {body['messages'][-1]['content']}")
    return {"set_up": lambda made: made.tenant("acme", policy), "backends": {"acme/eu-fr-par/acme-1": backend}}


async def test_its_defaults_work_where_the_policy_keeps_content(node, tmp_path):
    async with gateway(tmp_path, **serving(KEEPING)) as made:
        seen = await drive(node, made, provider="openai")
        assert seen == {
            "said": SAID, "streamed": SAID, "tool": TOLD, "second": f"You said to {MAIL}", "resumed": "You said two",
            "object": CITY, "about": [MAIL],
        }  # fmt: skip
        assert MAIL not in made.backends["acme-1"].received
        calls = [event for event in made.acts() if event["type"] == "inference.accepted"]
        assert {event["endpoint"] for event in calls} == {"/v1/responses"}


async def test_where_nothing_is_kept_each_call_works_and_names_of_items_are_refused_with_the_setting_to_change(
    node, tmp_path
):
    async with gateway(tmp_path, **serving(POLICY)) as made:
        named, whole = await asyncio.gather(
            drive(node, made, provider="openai"), drive(node, made, provider="openai", store=False)
        )
        assert named == {
            "said": SAID, "streamed": SAID, "toolError": NOT_KEPT, "secondError": NOT_KEPT, "object": CITY,
            "about": [MAIL],
        }  # fmt: skip
        assert whole == {
            "said": SAID, "streamed": SAID, "tool": TOLD, "second": f"You said to {MAIL}", "object": CITY,
            "about": [MAIL],
        }  # fmt: skip


async def test_chats_and_anthropics_messages_work(node, tmp_path):
    async with gateway(tmp_path, **serving(POLICY)) as made:
        told = {"said": SAID, "streamed": SAID, "tool": TOLD, "second": f"You said to {MAIL}", "about": [MAIL]}
        seen = await asyncio.gather(*(drive(node, made, provider=provider) for provider in ("chat", "anthropic")))
        assert seen == [{**told, "object": CITY}, told]
        called = {event["endpoint"] for event in made.acts() if event["type"] == "inference.accepted"}
        assert called == {"/v1/chat/completions", "/v1/messages"}
        assert MAIL not in made.backends["acme-1"].received
