"""How one call of ``/v1/responses`` is answered."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.wire import Usage
from gateway.api_format import EventWriter, Place, Storage, moved
from gateway.apis.chat_answer import first_choice, mark_in, said_in, thought_in
from gateway.apis.responses.events import ResponseEvents
from gateway.apis.responses.response_object import (
    INCOMPLETE,
    ResponseObject,
    ended,
    logprobs_in,
    output_text,
    refusal,
)


@dataclass(frozen=True, slots=True)
class ResponsesTranslation:
    """`response`: what the answer is made of. `places`: by place in the chat body, where that was in the body that was
    read; `storage.earlier` says where in the client's."""

    response: ResponseObject
    places: Mapping[Place, Place]
    storage: Storage

    def kept(self) -> "ResponsesTranslation":
        return replace(self, response=replace(self.response, is_kept=True))

    def place(self, place: Place) -> Place:
        found = moved(place, self.places)
        earlier = self.storage.earlier
        return found if earlier is None else earlier.place(found)

    def waiting(self) -> bytes:
        return self.response.written({"status": "queued"})

    def answer(self, body: dict[str, Any], usage: Usage | None) -> bytes:
        choice = first_choice(body) or {}
        reason = INCOMPLETE.get(str(choice.get("finish_reason")))
        items = self._items(choice, "incomplete" if reason else "completed")
        return self.response.written(ended(reason, mark_in(choice)), items, usage)

    def events(self) -> EventWriter:
        return ResponseEvents(self.response)

    def _items(self, choice: Mapping[str, Any], status: str) -> list[dict[str, Any]]:
        said, made = said_in(choice, "message"), self.response
        items: list[dict[str, Any]] = []
        if (thought := thought_in(said)) is not None:
            items.append(made.reasoning(0, thought, "completed"))
        parts = []
        if text := said.get("content"):
            parts.append(output_text(text, logprobs_in(choice)))
        if text := said.get("refusal"):
            parts.append(refusal(text))
        if parts:
            items.append(made.message(len(items), parts, status))
        for call in said.get("tool_calls") or ():
            function = call.get("function") or {}
            name, arguments = str(function.get("name") or ""), str(function.get("arguments") or "")
            items.append(made.function_call(len(items), call.get("id"), name, arguments, status))
        return items
