"""A line for each call, where the configuration asks for it, in text or as JSON, of the command as operators run it."""

import json

import aiohttp
import pytest

from tests.fakes.lab import chat
from tests.gateway.test_stopping import gateway, installation

SECRET = "the patient is called Meyer"


async def lines_of(tmp_path, **log):
    """What the gateway wrote to stderr in a run with a good, a refused and a broken call."""
    async with installation(tmp_path) as (made, _):
        async with gateway(made, tmp_path, log=log) as (process, base), aiohttp.ClientSession() as http:
            sent = {"authorization": f"Bearer {made.key()}"}
            for body, headers in [
                (json.dumps(chat(SECRET)), sent),
                (json.dumps({**chat(SECRET), "model": "none"}), sent),
                ("{", sent),
                (json.dumps(chat(SECRET)), {"authorization": "Bearer wrong"}),
            ]:
                async with http.post(base + "/v1/chat/completions", data=body, headers=headers) as answer:
                    await answer.read()
            process.terminate()
            assert await process.wait() == 0
        said = (tmp_path / "up.log").read_text()
    assert SECRET not in said
    assert made.key() not in said
    return said.splitlines()


@pytest.mark.parametrize("access", [True, False])
async def test_each_call_has_a_line_of_json_where_that_is_asked_for(tmp_path, access):
    lines = [json.loads(line) for line in await lines_of(tmp_path, format="json", access=access)]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert any("listening on" in line["message"] for line in lines)
    calls = [line for line in lines if line["logger"] == "domicile.access"]
    assert [call["status"] for call in calls] == ([200, 404, 400, 401] if access else [])
    if access:
        good, unknown, broken, stranger = calls
        assert (good["tenant"], good["project"], good["model"], good["backend"]) == ("acme", "main", "small", "acme-1")
        assert good["address"] == "127.0.0.1"
        assert good["answer_tokens"] > 0
        assert "model" not in unknown, "a name that was made up labels nothing"
        assert "request" not in broken and broken["tenant"] == "acme"
        assert "tenant" not in stranger


async def test_each_call_has_a_line_of_text(tmp_path):
    calls = [line for line in await lines_of(tmp_path, access=True) if " domicile.access " in line]
    assert [line.partition("status=")[2][:3] for line in calls] == ["200", "404", "400", "401"]
