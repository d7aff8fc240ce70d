"""The configurations of docs/clients, run as they stand against one gateway, with its address and key in them."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.fakes.lab import POLICY
from tests.fakes.needs import missing
from tests.fakes.tool_user import ToolUser
from tests.gateway.batches.conftest import gateway

TREE = Path(__file__).parents[2]
PAGES, BUILD = TREE / "docs" / "clients", TREE / "build"
SAID = "The capital is Paris."
AGENTS = BUILD / "agents" / "node_modules" / ".bin"
PYTHON = {
    "openai-sdks": Path(sys.executable),
    "anthropic-sdk": Path(sys.executable),
    "langchain": BUILD / "clients" / "bin" / "python",
    "llamaindex": BUILD / "llama-index" / "bin" / "python",
}
MODULES = {"openai-sdks": BUILD / "node" / "node_modules", "ai-sdk": BUILD / "ai-sdk" / "node_modules"}
COMMANDS = {
    "claude-code": AGENTS / "claude", "codex": AGENTS / "codex", "continue": AGENTS / "cn",
    "aider": BUILD / "aider" / "bin" / "aider",
}  # fmt: skip
FILES = {"codex": (".codex/config.toml", "toml"), "continue": (".continue/config.yaml", "yaml")}
BY_HAND = {"open-webui"}


class Answering(ToolUser):
    """An agent offers tools that nobody needs for this question."""

    def message(self, body):
        return super().message({**body, "tools": None, "response_format": None})


def blocks(page, language):
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_every_page_is_run_or_says_that_it_is_not():
    pages = {page.stem for page in PAGES.glob("*.md")} - {"README"}
    assert pages == PYTHON.keys() | MODULES.keys() | COMMANDS.keys() | BY_HAND
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    assert all(f"({page}.md)" in index for page in pages)
    for page in BY_HAND:
        said = (PAGES / f"{page}.md").read_text(encoding="utf-8")
        assert re.search(r"^Tried by hand with .+ [0-9.]+ on 20[0-9-]{8}: .*No test runs it", said, re.M | re.S), page


class Pages:
    """A gateway, and what runs a block against it: what the block prints."""

    def __init__(self, made, folder):
        self.made, self.folder = made, folder

    def placed(self, block):
        return block.replace("https://gateway.example.org", self.made.base).replace("dom_live_…", self.made.key())

    async def run(self, *command, within_s=60, **environment):
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.folder,
            env={**os.environ, "HOME": str(self.folder), **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), within_s)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, (out + err).decode()[-3000:]
        return out.decode()

    def endpoints(self):
        return {event["endpoint"] for event in self.made.acts() if event["type"] == "inference.accepted"}


@pytest.fixture
async def pages(tmp_path):
    backends = {"acme/eu-fr-par/acme-1": Answering(say=SAID, thought="")}
    folder = tmp_path / "home"
    folder.mkdir()
    async with gateway(tmp_path, set_up=lambda made: made.tenant("acme", POLICY), backends=backends) as made:
        yield Pages(made, folder)


async def test_the_python_of_the_pages_runs(pages):
    runs = {}
    for page in ("openai-sdks", "anthropic-sdk", "langchain", "llamaindex"):
        if not PYTHON[page].exists():
            missing(f"what {page}.md needs is not there: run `make clients`")
        (block,) = blocks(page, "python")
        runs[block] = pages.run(PYTHON[page], "-c", pages.placed(block))
    for block, out in zip(runs, await asyncio.gather(*runs.values()), strict=True):
        assert out.splitlines() == [SAID] * block.count("print("), block
    assert pages.endpoints() == {"/v1/chat/completions", "/v1/responses", "/v1/messages"}


async def test_the_javascript_of_the_pages_runs(pages):
    node, runs = shutil.which("node"), {}
    for page, modules in MODULES.items():
        if node is None or not modules.is_dir():
            missing(f"what {page}.md needs is not there: run `make node-sdk`")
        folder = pages.folder / page
        folder.mkdir()
        (folder / "node_modules").symlink_to(modules)
        (block,) = blocks(page, "js")
        (folder / "page.mjs").write_text(pages.placed(block), encoding="utf-8")
        runs[block] = pages.run(node, folder / "page.mjs")
    for block, out in zip(runs, await asyncio.gather(*runs.values()), strict=True):
        assert out.splitlines() == [SAID] * block.count("console.log("), block
    assert pages.endpoints() == {"/v1/chat/completions", "/v1/responses"}


@pytest.mark.parametrize(
    ("page", "endpoint"),
    [
        ("claude-code", "/v1/messages"),
        ("codex", "/v1/responses"),
        ("continue", "/v1/chat/completions"),
        ("aider", "/v1/chat/completions"),
    ],
)
async def test_a_coding_agent_answers_as_its_page_says(pages, page, endpoint):
    command = COMMANDS[page]
    if not command.exists():
        pytest.skip("coding agents take more than a gigabyte: run `make agents` to have them tried")
    if page in FILES:
        name, language = FILES[page]
        (block,) = blocks(page, language)
        file = pages.folder / name
        file.parent.mkdir()
        file.write_text(pages.placed(block), encoding="utf-8")
    (script,) = blocks(page, "bash")
    path = f"{command.parent}:{os.environ['PATH']}"
    out = await pages.run("bash", "-ec", pages.placed(script), within_s=120, PATH=path)
    assert SAID in out
    assert endpoint in pages.endpoints()
