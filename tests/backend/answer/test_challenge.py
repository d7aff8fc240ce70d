"""What is asked in a challenge, in tokens: as the server made them of the body, and as the client has the text."""

import json
from base64 import urlsafe_b64encode
from pathlib import Path

import numpy as np
import pytest

from backend.activations.answer_commitment import Committer
from backend.activations.largest_activations import MOST
from backend.answer.challenge import read_challenge
from backend.errors import InvalidRequest
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.tokenizer import TextModel
from backend.wire import ChallengeRequest

PROMPT = "the sea and the land and the rain"
ROW = np.arange(MOST, dtype="<u4").tobytes()
SAID = "the wind and the hill " * 6


@pytest.fixture(scope="module")
def text(folder: Path) -> TextModel:
    return Checkpoint(folder).text


def asked(text: TextModel, said: str, answer: str, prompt: list[int], **body: object) -> ChallengeRequest:
    """said: what the client has. answer: what the model wrote to that prompt."""
    committer = Committer(prompt, 192)
    for token in text.encode_words(answer):
        committer.add(token, ROW)
    return ChallengeRequest(
        path="/v1/completions",
        body=json.dumps({"model": "m", "prompt": PROMPT, **body}),
        text=said,
        commitment=urlsafe_b64encode(committer.finish().to_bytes()).decode(),
    )


def test_a_prompt_that_the_server_cut_is_cut_as_well(text: TextModel) -> None:
    prompt = text.encode_completion(PROMPT)
    cut = asked(text, SAID, SAID, prompt[-3:], truncate_prompt_tokens=3)
    assert read_challenge(text, cut).same_prompt
    assert not read_challenge(text, asked(text, SAID, SAID, prompt, truncate_prompt_tokens=3)).same_prompt
    assert read_challenge(text, asked(text, SAID, SAID, prompt, truncate_prompt_tokens=500)).same_prompt


def test_where_the_cut_depends_on_the_server_s_context_nobody_is_accused_of_another_prompt(text: TextModel) -> None:
    prompt = text.encode_completion(PROMPT)
    assert read_challenge(text, asked(text, SAID, SAID, prompt, truncate_prompt_tokens=-1)).same_prompt, "nothing cut"
    assert read_challenge(text, asked(text, SAID, SAID, prompt[-4:], truncate_prompt_tokens=-1)).same_prompt
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens"):
        read_challenge(text, asked(text, SAID, SAID, [5, 6, 7], truncate_prompt_tokens=-1))


def test_a_text_that_begins_with_the_prompt_is_read_behind_it_where_that_was_asked_for(text: TextModel) -> None:
    prompt = text.encode_completion(PROMPT)
    echoed = read_challenge(text, asked(text, PROMPT + SAID, SAID, prompt, echo=True))
    assert echoed.known == len(echoed.commitment.chunks)
    plain = read_challenge(text, asked(text, PROMPT + SAID, SAID, prompt))
    assert plain.known == 0
    assert read_challenge(text, asked(text, SAID, SAID, prompt, echo=True)).known == len(echoed.commitment.chunks)


@pytest.mark.parametrize("stop", ["the end of it", ["xyz", "the end of it"]], ids=["one", "several"])
def test_a_stop_string_that_the_client_did_not_get_is_added(text: TextModel, stop: object) -> None:
    prompt, answer = text.encode_completion(PROMPT), "the wind and the hill the end of it"
    found = read_challenge(text, asked(text, answer.removesuffix("the end of it"), answer, prompt, stop=stop))
    assert found.known == len(found.commitment.chunks)
    other = read_challenge(text, asked(text, answer.removesuffix("the end of it"), answer, prompt, stop="xyz"))
    assert other.known < len(other.commitment.chunks)
