"""POST /challenge of a real backend: what it makes of answers that an engine gave, its own weights' and others'."""

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backend.activations.answer_commitment import Committer
from backend.engine.core.sampling import SamplingParams
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from tests.backend.running import Backend
from tests.backend.server.test_app import metric
from tests.backend.tiny import tiny_engine, tiny_model
from tests.gateway.test_marks import words_of

PROMPT = "the sea and the land"
BODY = {"model": "tiny", "prompt": PROMPT}
OPTIONS = ["--served-name", "tiny", "--max-num-seqs", "4", "--max-waiting", "4", "--max-model-len", "512"]


@pytest.fixture(scope="module")
def backend(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with Backend(tmp_path_factory.mktemp("server") / "log", "--model", str(folder), *OPTIONS) as running:
        yield running


@pytest.fixture
async def http(backend: Backend) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(backend.url) as session:
        yield session


@lru_cache
def answered(folder: Path, by: Decoder, tokens: int = 70) -> tuple[str, str]:
    """Text of an answer by that model, and what it commits to."""
    text = Checkpoint(folder).text
    prompt = text.encode_completion(PROMPT)
    engine, committer = tiny_engine(by), Committer(prompt, by.config.hidden_size)
    allowed = tuple(words_of(text))
    asked = {"max_tokens": tokens, "temperature": 0.9, "ignore_eos": True, "commits": True, "seed": 4}
    engine.add(0, prompt, SamplingParams(**asked, allowed_token_ids=allowed))
    said: list[int] = []
    while engine.has_work:
        for item in engine.step():
            assert item.token is not None
            assert item.activations is not None
            said.append(item.token)
            committer.add(item.token, item.activations)
    return text.decode(said), urlsafe_b64encode(committer.finish().to_bytes()).rstrip(b"=").decode()


async def challenged(http: aiohttp.ClientSession, **asked: Any) -> tuple[int, dict[str, Any]]:
    asked = {"path": "/v1/completions", "body": json.dumps(BODY), **asked}
    async with http.post("/challenge", json=asked) as answer:
        return answer.status, await answer.json()


async def test_an_answer_of_these_weights_matches_and_one_of_others_does_not(
    http: aiohttp.ClientSession, folder: Path, model: Decoder
) -> None:
    text, commitment = answered(folder, model)
    theirs, other = answered(folder, tiny_model(1))
    status, found = await challenged(http, text=text, commitment=commitment)
    assert status == 200, found
    assert (found["verdict"], found["compared"], found["tokens"], found["dtype"]) == ("matched", 70, 70, "float32")
    assert [part["last"] for part in found["parts"]] == [32, 64, 70]
    status, found = await challenged(http, text=text, commitment=other)
    assert (status, found["verdict"]) == (200, "other_text"), "the other model wrote something else"
    status, found = await challenged(http, text=theirs, commitment=other)
    assert (status, found["verdict"]) == (200, "other_model")


async def test_a_part_of_the_text_is_compared_as_far_as_it_goes(
    http: aiohttp.ClientSession, folder: Path, model: Decoder
) -> None:
    text, commitment = answered(folder, model)
    words = text.split(" ")
    _, part = await challenged(http, text=" ".join(words[: len(words) * 3 // 4]), commitment=commitment)
    assert (part["verdict"], part["compared"]) == ("matched", 32)
    _, short = await challenged(http, text=words[0], commitment=commitment)
    assert (short["verdict"], short["compared"]) == ("not_compared", 0)


async def test_another_prompt_is_told_without_computing_anything(
    http: aiohttp.ClientSession, folder: Path, model: Decoder
) -> None:
    text, commitment = answered(folder, model)
    before = await metric(http, "domicile_backend_steps_total")
    status, found = await challenged(http, text=text, commitment=commitment, body=json.dumps({**BODY, "prompt": "sea"}))
    assert (status, found["verdict"], found["compared"]) == (200, "other_prompt", 0)
    assert await metric(http, "domicile_backend_steps_total") == before


async def test_several_at_once_and_calls_beside_them_fit_into_a_small_queue(
    http: aiohttp.ClientSession, folder: Path, model: Decoder
) -> None:
    text, commitment = answered(folder, model, 40)

    async def call() -> int:
        asked = {**BODY, "max_tokens": 20, "ignore_eos": True}
        async with http.post("/v1/completions", json=asked) as answer:
            await answer.read()
            return answer.status

    found = await asyncio.gather(*(challenged(http, text=text, commitment=commitment) for _ in range(3)))
    assert [each["verdict"] for _, each in found] == ["matched"] * 3
    assert await call() == 200


@pytest.mark.parametrize(
    ("changed", "status", "says"),
    [
        ({"commitment": "AAAA"}, 400, "read it again from its record"),
        ({"commitment": "*"}, 400, "read it again from its record"),
        ({"body": "{}"}, 400, "give the body of the request"),
        ({"body": "no JSON"}, 400, "give the body of the request"),
        ({"path": "/v1/embeddings"}, 400, "should be '/v1/chat/completions'"),
        ({"choice": -1}, 400, "greater than or equal to 0"),
        ({"more": 1}, 400, "not permitted"),
        ({"body": json.dumps({**BODY, "prompt": ["a", "b"]}), "choice": 2}, 400, "give a choice that it has"),
    ],
    ids=str,
)
async def test_what_cannot_be_read_is_refused_and_named(
    http: aiohttp.ClientSession, folder: Path, model: Decoder, changed: dict[str, Any], status: int, says: str
) -> None:
    text, commitment = answered(folder, model, 40)
    found = await challenged(http, **{"text": text, "commitment": commitment, **changed})
    assert (found[0], says in str(found[1])) == (status, True), found


async def test_what_is_longer_than_the_context_is_refused_before_it_is_computed(
    http: aiohttp.ClientSession, folder: Path, model: Decoder
) -> None:
    text, commitment = answered(folder, model, 40)
    long = json.dumps({**BODY, "prompt": PROMPT + " sea" * 600})
    status, found = await challenged(http, text=text, commitment=commitment, body=long)
    assert (status, found["error"]["code"]) == (400, "context_length_exceeded")


async def test_neither_text_nor_prompt_is_in_the_backend_s_log(
    http: aiohttp.ClientSession, backend: Backend, folder: Path, model: Decoder
) -> None:
    text, commitment = answered(folder, model, 40)
    await challenged(http, text=text, commitment=commitment)
    assert PROMPT not in backend.log
    assert text[:20] not in backend.log
    assert commitment[:20] not in backend.log
