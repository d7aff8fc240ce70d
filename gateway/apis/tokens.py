"""``/v1/tokenize`` and ``/v1/detokenize`` in vLLM's shapes.

What is counted is what would leave for a backend: the prompt after redaction.
"""

from dataclasses import dataclass
from typing import Any

from backend.wire import Usage
from gateway.api_format import CallState, EventWriter, NotKept, OpenAiFormat, Place, Translation
from gateway.openai.finite_json import write


@dataclass(frozen=True, slots=True)
class _Whole(NotKept):
    """A translation of an answer that is never streamed, to a body of the same members."""

    def place(self, place: Place) -> Place:
        return place

    def events(self) -> EventWriter:
        raise AssertionError("this answer is not streamed")


@dataclass(frozen=True, slots=True)
class TokensTranslation(_Whole):
    """`spells`: the caller asked for the text of each token."""

    spells: bool

    def answer(self, body: dict[str, Any], usage: Usage | None) -> bytes:
        return write(body if self.spells else {**body, "token_strs": None})


@dataclass(frozen=True, slots=True)
class TextTranslation(_Whole):
    def answer(self, body: dict[str, Any], usage: Usage | None) -> bytes:
        return write({"prompt": body["choices"][0]["text"]})


class TokenizeFormat(OpenAiFormat):
    """The body is vLLM's."""

    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        return body, TokensTranslation(isinstance(body, dict) and body.get("return_token_strs") is True)


class DetokenizeFormat(OpenAiFormat):
    """The body is vLLM's; the answer is filtered as a completion's text is."""

    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        return body, TextTranslation()
