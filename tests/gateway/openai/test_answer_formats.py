import json

import pytest

from backend.wire import MAX_INPUTS
from gateway.errors import BackendFailed, InvalidRequest
from gateway.openai.answer_formats import read_embeddings
from gateway.openai.checked_call import parse_call
from gateway.openai.endpoints import EMBEDDINGS

ANSWER = {
    "object": "list", "model": "small", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1]}],
    "usage": {"prompt_tokens": 3, "total_tokens": 3},
}  # fmt: skip


@pytest.mark.parametrize("text", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_every_shape_of_input_is_a_call(text):
    call = parse_call(EMBEDDINGS, json.dumps({"model": "small", "input": text}).encode())
    assert call.model == "small" and not call.stream


@pytest.mark.parametrize(
    "fields",
    [{}, {"input": ""}, {"input": []}, {"input": [""]}, {"input": {"text": "a"}}, {"input": ["a"] * (MAX_INPUTS + 1)},
     {"input": "a", "dimensions": 0}, {"input": "a", "encoding_format": "hex"}, {"input": "a", "stream": True}],
)  # fmt: skip
def test_a_call_that_is_none_is_refused(fields):
    with pytest.raises(InvalidRequest):
        parse_call(EMBEDDINGS, json.dumps({"model": "small", **fields}).encode())


def test_an_answer_holds_vectors_and_nothing_that_a_server_adds():
    said = {**ANSWER, "echo": "alice@example.org", "data": [{**ANSWER["data"][0], "text": "alice@example.org"}]}
    body, usage = read_embeddings(json.dumps(said).encode())
    assert body == ANSWER and usage.prompt_tokens == 3


@pytest.mark.parametrize("vector", ["AACAPw==", [1.5]])
def test_vectors_come_as_numbers_or_in_base64(vector):
    said = {**ANSWER, "data": [{"index": 0, "embedding": vector}]}
    assert read_embeddings(json.dumps(said).encode())[0]["data"][0]["embedding"] == vector


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b'{"data": 1}', b'{"data": [{"index": 0, "embedding": "a b"}]}',
     b'{"data": [{"index": 0, "embedding": ["x"]}]}',
     b'{"data": [{"embedding": [1]}]}', b'{"choices": []}'],
)  # fmt: skip
def test_what_is_no_such_answer_is_the_backends_failure(raw):
    with pytest.raises(BackendFailed):
        read_embeddings(raw)
