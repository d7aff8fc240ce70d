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
        {"ollama": "/api/chat"},
    ],
    ids=" ".join,
)
async def test_a_library_answers_streams_and_runs_tools_unchanged(tmp_path, libraries):
    need("ollama" if "ollama" in libraries else "openai")
    backend = ToolUser(say=lambda body: f"You said {body['messages'][-1]['content']}")
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        for library, line in zip(libraries, await driven(made, *libraries), strict=True):
            assert json.loads(line) == {
                "said": SAID, "streamed": SAID, "tool": TOLD, "tool_streamed": TOLD, "about": [MAIL, MAIL],
            }, library  # fmt: skip
        assert MAIL not in backend.received
        called = {event["endpoint"] for event in made.acts() if event["type"] == "inference.accepted"}
        assert called - {"/api/generate", "/api/embed"} == set(libraries.values())


async def test_langchains_embeddings_are_told_how_to_send_text(tmp_path):
    """By default it sends what OpenAI's tokenizer makes of a text: lists of token ids, as here."""
    need("langchain_openai")
    async with lab(tmp_path) as made:
        refused = await made.post({"model": "small", "input": [[9906, 1917]]}, "/v1/embeddings")
        assert refused.status == 422
        assert "langchain-openai sends it with check_embedding_ctx_length=False" in refused.error["message"]
        [seen] = map(json.loads, await driven(made, "langchain_embeddings"))
        assert seen == {"vectors": [[0.5, -1.0]], "query": [0.5, -1.0], "about": []}
        assert len(made.backends["acme-1"].bodies) == 2 and MAIL not in made.backends["acme-1"].received


def need(module):
    """Skips where the libraries are not there."""
    if not PYTHON.exists() or not list((PYTHON.parents[1] / "lib").glob(f"python*/site-packages/{module}")):
        missing("the libraries are not there: remove build/clients and run `make clients`")


async def driven(made, *libraries):
    """What the script prints of each."""
    config = json.dumps({"base": made.base, "key": made.key(), "mail": MAIL})
    process = await asyncio.create_subprocess_exec(
        PYTHON, SCRIPT, config, *libraries, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 200)
    assert process.returncode == 0, err.decode()[-3000:]
    return out.splitlines()
