"""Chat messages made of the items of another API, with the place that each came from."""

from collections.abc import Mapping
from typing import Any

from gateway.api_format import Place

TextOrParts = str | list[dict[str, Any]]


class ChatMessages:
    """Messages in order. What an assistant thinks, says and calls one after the other is one message, as in a chat.

    `places`: by place in the chat body, where that was in the client's.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: dict[Place, Place] = {}
        self._turn: dict[str, Any] | None = None

    def add(self, message: dict[str, Any], place: Place, **members: Place) -> None:
        """A message of another role. `members`: where members of it came from, if not from those of that name."""
        self._turn = None
        self._append(message, place)
        for name, source in members.items():
            self.places["messages", len(self.messages) - 1, name] = source

    def think(self, text: str, place: Place) -> None:
        turn = self._open(place, "reasoning_content", "content", "tool_calls")
        turn["reasoning_content"] = text
        self._came_from(place, "reasoning_content")

    def say(self, content: TextOrParts, place: Place) -> None:
        turn = self._open(place, "content", "tool_calls")
        turn["content"] = content
        self._came_from(place, "content")

    def call(self, identifier: str, name: str, arguments: str, place: Place, sources: Mapping[str, Place]) -> None:
        """A tool call. `sources`: where its id, name and arguments came from, if not from those of that name."""
        turn = self._open(place)
        calls = turn.setdefault("tool_calls", [])
        function = {"name": name, "arguments": arguments}
        calls.append({"id": identifier, "type": "function", "function": function})
        at = ("messages", len(self.messages) - 1, "tool_calls", len(calls) - 1)
        self.places[at] = self.places[*at, "function"] = place
        for member, source in sources.items():
            self.places[(*at, member) if member == "id" else (*at, "function", member)] = source

    def end_turn(self) -> None:
        """What an assistant says next is another message."""
        self._turn = None

    def _open(self, place: Place, *taken: str) -> dict[str, Any]:
        """The message of the assistant's turn; another one where it has a member of `taken` already."""
        if self._turn is None or any(self._turn.get(name) for name in taken):
            self._turn = {"role": "assistant", "content": None}
            self._append(self._turn, place)
        return self._turn

    def _append(self, message: dict[str, Any], place: Place) -> None:
        self.places["messages", len(self.messages)] = place
        self.messages.append(message)

    def _came_from(self, place: Place, member: str) -> None:
        self.places["messages", len(self.messages) - 1, member] = place


def flattened(parts: list[dict[str, Any]]) -> TextOrParts:
    """One text as it is, since some servers take no lists of parts; several parts as a list."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        text: str = parts[0]["text"]
        return text
    return parts
