"""The text of an answer as the client receives it, held until its fingerprints are made."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from audit.log.answer_prints import MAX_CHARACTERS
from gateway.openai.answer import TEXT_FIELDS
from gateway.openai.sse import DONE, EventSplitter


class SaidText:
    """Texts by choice and field: at most MAX_CHARACTERS, what comes later is dropped. Not stored, not logged.

    Arguments of tool calls do not count as text.
    """

    __slots__ = ("_left", "_pieces", "_splitter")

    def __init__(self) -> None:
        self._left = MAX_CHARACTERS
        self._pieces: dict[tuple[int, str], list[str]] = {}
        self._splitter = EventSplitter()

    @property
    def characters(self) -> int:
        return MAX_CHARACTERS - self._left

    def texts(self) -> list[str]:
        """By choice; in the order in which they began where one choice has several."""
        return ["".join(pieces) for _, pieces in sorted(self._pieces.items(), key=lambda each: each[0][0])]

    def answers(self) -> dict[int, str]:
        """By choice, what it answers: without thoughts and refusals."""
        answers = (key for key in self._pieces if key[1] in ("text", "content"))
        return {index: "".join(self._pieces[index, field]) for index, field in answers}

    def add_answer(self, texts: Mapping[int, Mapping[str, Any]]) -> None:
        """Add a complete answer (`gateway.content.choice_texts`)."""
        for index, said in texts.items():
            self._add(index, said)

    def add_piece(self, frames: bytes) -> None:
        """Add events of a streamed answer."""
        for payload in self._splitter.feed(frames):
            if payload != DONE:
                self.add_chunk(from_json(payload))

    def add_chunk(self, chunk: Mapping[str, Any]) -> None:
        for choice in chunk.get("choices") or ():
            index = choice["index"] if isinstance(choice.get("index"), int) else 0
            self._add(index, choice)
            if isinstance(delta := choice.get("delta"), Mapping):
                self._add(index, delta)

    def add_text(self, field: str, text: str) -> None:
        """Add a chunk of one text of the first choice."""
        self._add(0, {field: text})

    def _add(self, index: int, said: Mapping[str, Any]) -> None:
        for field in ("text", *TEXT_FIELDS):
            piece = said.get(field)
            if self._left and isinstance(piece, str) and piece:
                self._pieces.setdefault((index, field), []).append(piece[: self._left])
                self._left -= min(self._left, len(piece))
