"""Agent libraries in their Responses and Anthropic modes against a gateway, unchanged. `make clients` installs them."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.fakes.lab import lab
from tests.fakes.needs import missing
from tests.fakes.tool_user import ToolUser

SCRIPT = Path(__file__).with_name("client_libraries.py")
PYTHON = Path(__file__).parents[2] / "build" / "clients" / "bin" / "python"
MAIL = "anna.schmidt@example.org"
SAID, TOLD = f"You said write to {MAIL}", f"It says: {MAIL} is out"


@pytest.mark.parametrize(
    "libraries",
    [
        {"openai_agents": "/v1/responses"},
        {"pydantic_ai_responses": "/v1/responses", "pydantic_ai_anthropic": "/v1/messages"},
        {"langchain_responses": "/v1/responses", "langchain_anthropic": "/v1/messages"},
    ],
    ids=" ".join,
)
async def test_a_library_answers_streams_and_runs_tools_unchanged(tmp_path, libraries):
    if not PYTHON.exists():
        missing("the libraries are not there: run `make clients`")
    backend = ToolUser(say=lambda body: f"You said {body['messages'][-1]['content']}")
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        config = json.dumps({"base": made.base, "key": made.key(), "mail": MAIL})
        process = await asyncio.create_subprocess_exec(
            PYTHON, SCRIPT, config, *libraries, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), 200)
        assert process.returncode == 0, err.decode()[-3000:]
        for library, line in zip(libraries, out.splitlines(), strict=True):
            assert json.loads(line) == {
                "said": SAID, "streamed": SAID, "tool": TOLD, "tool_streamed": TOLD, "about": [MAIL, MAIL],
            }, library  # fmt: skip
        assert MAIL not in backend.received
        called = {event["endpoint"] for event in made.acts() if event["type"] == "inference.accepted"}
        assert called == set(libraries.values())
