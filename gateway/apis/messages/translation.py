"""How one call of ``/v1/messages`` is answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.wire import Usage
from gateway.api_format import EventWriter, NotKept, Place, moved
from gateway.apis.chat_answer import arguments_of, first_choice, said_in, thought_in
from gateway.apis.messages.events import MessageEvents
from gateway.apis.messages.message_object import MessageObject, tool_id
from gateway.openai.finite_json import write


@dataclass(frozen=True, slots=True)
class MessagesTranslation(NotKept):
    """`message`: what the answer is made of. `places`: by place in the chat body, where that was in the client's."""

    message: MessageObject
    places: Mapping[Place, Place]

    def place(self, place: Place) -> Place:
        return moved(place, self.places)

    def answer(self, body: dict[str, Any], usage: Usage | None) -> bytes:
        choice = first_choice(body) or {}
        said, message = said_in(choice, "message"), self.message
        blocks: list[dict[str, Any]] = []
        if message.shows_thinking and (thought := thought_in(said)) is not None:
            blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
        blocks += ({"type": "text", "text": text} for name in ("content", "refusal") if (text := said.get(name)))
        calls = [_tool_use(call, number) for number, call in enumerate(said.get("tool_calls") or ())]
        ending = message.ending(choice, calls=bool(calls))
        return write({**message.begun(usage), "content": blocks + calls, **ending})

    def events(self) -> EventWriter:
        return MessageEvents(self.message)


class TokenCountTranslation(MessagesTranslation):
    """The same of a count of tokens."""

    __slots__ = ()

    def answer(self, body: dict[str, Any], usage: Usage | None) -> bytes:
        return write({"input_tokens": body["count"]})


def _tool_use(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    function = call.get("function") or {}
    name = str(function.get("name") or "")
    return {
        "type": "tool_use",
        "id": tool_id(call, number),
        "name": name,
        "input": arguments_of(function.get("arguments")),
    }
