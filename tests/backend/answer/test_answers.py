"""The frames of a stream."""

import json

import pytest

from backend.answer.answers import ChatAnswer, CompletionAnswer
from backend.tools.parts import Content


@pytest.mark.parametrize("text", ["plain", 'a "quoted" \\ back', "\0\x01\x1f\n", "é🙂\u2028", "", '"\\u0000"'])
@pytest.mark.parametrize("model", ["m", '\0"\\u0000"', "é"])
def test_a_frame_put_around_a_text_is_the_frame_that_json_would_be(text: str, model: str) -> None:
    for kind in (ChatAnswer, CompletionAnswer):
        for usage in (True, False):
            answer = kind("r1", model, usage_in_chunks=usage, fingerprint="fp_1")
            for index in (0, 3, 0):
                said = json.loads(answer.chunk(index, [Content(text)] if text else [], None)[6:])
                choice = said["choices"][0]
                assert (choice.get("delta", {}).get("content"), choice.get("text")) in ((text, None), (None, text))
                assert (said["model"], said["id"], choice["index"], choice["finish_reason"]) == (
                    model, answer.id, index, None
                )  # fmt: skip
                assert ("usage" in said) is usage and choice["logprobs"] is None
