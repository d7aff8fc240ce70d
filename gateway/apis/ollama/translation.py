"""How one call of Ollama's API is answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.wire import Usage
from gateway.api_format import EventWriter, NotKept, Place, moved
from gateway.apis.chat_answer import first_choice, said_in, thought_in
from gateway.apis.ollama.lines import Form, OllamaLines, call_of
from gateway.openai.finite_json import write


@dataclass(frozen=True, slots=True)
class OllamaTranslation(NotKept):
    """`places`: by place in the chat body, where that was in the client's."""

    form: Form
    places: Mapping[Place, Place]

    def place(self, place: Place) -> Place:
        return moved(place, self.places)

    def answer(self, body: dict[str, Any], usage: Usage | None) -> bytes:
        choice, form = first_choice(body) or {}, self.form
        said = said_in(choice, "message")
        text = "".join(part for name in ("content", "refusal") if isinstance(part := said.get(name), str))
        calls = [
            call_of(call.get("id"), function.get("name"), function.get("arguments"))
            for call in said.get("tool_calls") or ()
            for function in [call.get("function") or {}]
        ]
        thought = thought_in(said) if form.shows_thinking else None
        return write({**form.head, **form.says(text, thought, calls), **form.ending(choice, usage)})

    def events(self) -> EventWriter:
        return OllamaLines(self.form)


@dataclass(frozen=True, slots=True)
class EmbedTranslation(NotKept):
    model: str

    def place(self, place: Place) -> Place:
        return place

    def answer(self, body: dict[str, Any], usage: Usage | None) -> bytes:
        data = sorted(body["data"], key=lambda each: int(each["index"]))
        told: dict[str, Any] = {"model": self.model, "embeddings": [each["embedding"] for each in data]}
        if usage is not None:
            told["prompt_eval_count"] = usage.prompt_tokens
        return write(told)

    def events(self) -> EventWriter:
        raise AssertionError("embeddings are not streamed")
