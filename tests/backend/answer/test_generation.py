"""How a response follows the engine: what a step brought, or several that it missed, is one write."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from backend.engine.core.progress import Finish
from backend.process.call import Call
from backend.process.messages import AddSequence
from tests.backend.scripted import Scripted, deltas, request


@pytest.fixture
def backend(tmp_path: Path) -> Scripted:
    """Its responses are behind the engine: what it says is all there when they look."""
    made = Scripted(tmp_path, "plain")
    ready = made.engine.submit

    def behind(sequences: Sequence[AddSequence]) -> Call:
        call = ready(sequences)
        call.at_once = 64
        return call

    made.engine.submit = behind  # type: ignore[method-assign]
    return made


async def test_tokens_that_a_response_missed_come_as_one_event_and_with_the_end_in_one_write(backend: Scripted) -> None:
    backend.engine.says("the rain 🙂 in the sea")
    answer = await backend.http.post("/v1/chat/completions", json=request(stream=True))
    texts = [delta["content"] for delta, _ in deltas(answer.text) if delta.get("content")]
    assert texts == ["the rain 🙂 in the sea"]
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_what_came_before_a_step_that_failed_is_sent_before_the_error(backend: Scripted) -> None:
    backend.engine.says("the rain", Finish.ERROR)
    answer = await backend.http.post("/v1/chat/completions", json=request(stream=True))
    *frames, last = [line[6:] for line in answer.text.split("\n\n") if line]
    assert "".join(json.loads(frame)["choices"][0]["delta"]["content"] for frame in frames) == "the"
    assert "not a number" in json.loads(last)["error"]["message"] and "[DONE]" not in answer.text
    whole = await backend.http.post("/v1/chat/completions", json=request())
    assert whole.status_code == 500
