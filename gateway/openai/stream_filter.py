"""A streamed answer through the output filter, for any order in which a server sends its members.

Text is the only thing that is relied on. An announced end (`finish_reason`) is kept until the stream is over, because
servers announce one on every chunk, before the last text, or as an empty string; so no announcement ends the filter.
Each text of each choice (content, each kind of thoughts, refusal, each tool call's name and arguments) has a filter of
its own. When another text of the same choice begins, what the filter of the one before still holds is sent first: to
the client a field is whole before the next one begins.

A text that continues after it was sent ahead like this is compared with what was sent. Where the filter, with more text
behind it, would not have sent that (a word that was cut in two turns out to be an e-mail address), the rest of the
answer is refused: what was sent cannot be recalled, and the rest must not complete it.
"""

from collections.abc import Callable
from typing import Any, Final

from gateway.errors import BackendFailed
from gateway.openai.answer import (
    BODY_FIELDS,
    CALL_TEXTS,
    CHOICE_FIELDS,
    END_FIELDS,
    NAMES,
    SIGNED,
    TELLING_FIELDS,
    TEXT_FIELDS,
    THOUGHT_FIELDS,
    FilterFactory,
    TextFilter,
    as_text,
    clean_ends,
    clean_names,
    clean_saying,
    drop_odd_date,
    drop_unknown,
)
from gateway.openai.finish import announces_end
from gateway.openai.shape import position_of
from policy.errors import RedactionError

MAX_TEXTS: Final = 4096
"""Texts of one answer: choices times what each of them says. Each costs a filter."""

_THOUGHTS: Final = "thoughts"
_GROUPS: Final = {field: _THOUGHTS if field in THOUGHT_FIELDS else field for field in TEXT_FIELDS}
_PLAIN_DELTA: Final = frozenset({"content"})


class _Text:
    """One text and its filter. `ahead`: sent already of what the filter still holds."""

    __slots__ = ("_filter", "ahead", "call", "chunk", "field", "holder")

    def __init__(self, text_filter: TextFilter, field: str, call: tuple[str, int] | None) -> None:
        self._filter = text_filter
        self.field, self.call = field, call
        self.ahead = ""
        self.chunk = -1  # the number of the last chunk with a piece of it, and the place of that piece
        self.holder: dict[str, Any] = {}

    def feed(self, piece: str) -> str:
        released = self._filter.feed(piece)
        return self._not_yet_sent(released) if self.ahead else released

    @property
    def feeding(self) -> Callable[[str], str]:
        """What `feed` does until another text interrupts this one."""
        return self.feed if self.ahead else self._filter.feed

    def settle(self) -> str:
        """What is still to be sent so that all of the text is out, if it ends here. It may still continue."""
        rest = self._filter.rest()
        if not rest.startswith(self.ahead):
            raise _interrupted()
        unsent = rest[len(self.ahead) :]
        self.ahead = rest
        return unsent

    def flush(self) -> str:
        released = self._filter.flush()
        unsent = self._not_yet_sent(released)
        if self.ahead:
            raise _interrupted()
        return unsent

    def _not_yet_sent(self, released: str) -> str:
        ahead = self.ahead
        if released.startswith(ahead):
            self.ahead = ""
            return released[len(ahead) :]
        if ahead.startswith(released):
            self.ahead = ahead[len(released) :]
            return ""
        raise _interrupted()


def _interrupted() -> RedactionError:
    return RedactionError("a text that another one had interrupted went on into what its policy filters")


class _Choice:
    """One choice of the answer. `speaking`: the text, or group of parallel texts, that it is at."""

    __slots__ = ("calls", "end", "index", "is_chat", "role", "speakers", "speaking", "texts")

    def __init__(self, index: int) -> None:
        self.index = index
        self.is_chat = False
        self.role: str | None = None
        self.texts: dict[object, _Text] = {}
        self.speaking: object = None
        self.speakers: list[_Text] = []
        self.calls: dict[int, str] = {}  # the id of each tool call
        self.end: dict[str, Any] | None = None

    def part(self, said: dict[str, Any], end: dict[str, Any] | None = None) -> dict[str, Any]:
        """A choice of a chunk that says this."""
        shown = {"delta": said} if self.is_chat else {"text": said.get("text", "")}
        return {"index": self.index, **shown, "finish_reason": None, **(end or {})}


class StreamRewriter:
    """Filters the chunks of one streamed answer. Feed each to `rewrite`, then call `end`, or `rest` if it was cut.

    All three raise RedactionError where nothing more may be sent, and BackendFailed where an answer has more than
    MAX_TEXTS texts.
    """

    def __init__(self, make_filter: FilterFactory) -> None:
        self._make_filter = make_filter
        self._choices: dict[int, _Choice] = {}
        self.texts = 0
        self._names: list[Any] = []
        self._odd_names = False
        # Of the current chunk: its number, whether it says anything, what goes out before it.
        self._chunk = 0
        self._says = False
        self._before: list[dict[str, Any]] = []

    def rewrite(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """The chunks to send in place of `chunk` (checked by `choices_of`), which is changed.

        None while the text is held back; two when a field begins and the rest of another one goes out before it. They
        have to be serialised again: the bytes that came may hold a member twice, of which the filter saw the last.
        """
        choices = chunk.get("choices")
        if not choices:  # what else a chunk may tell (usage, Azure's content filter) is not for the client
            return []
        self._chunk += 1
        self._says, self._before = False, []
        drop_unknown(chunk, BODY_FIELDS)
        drop_odd_date(chunk)
        names = [chunk.get(name) for name in NAMES]
        if names != self._names or self._odd_names:
            self._names = names
            self._odd_names = clean_names(chunk, self._make_filter)
        for place, choice in enumerate(choices):
            self._rewrite_choice(choice, place)
        sent = [{**chunk, "choices": [one]} for one in self._before]
        if self._says:
            sent.append(chunk)
        return sent

    def text_of(self, index: int, field: str) -> "_Text | None":
        """The text at `field` of the choice `index`, if that is all the choice is at, so that more of it needs no look
        at the rest of a chunk. None where it is not, or where names around the answer are not passed on as they are."""
        one = self._choices.get(index)
        text = None if one is None or self._odd_names else one.texts.get(field)
        return text if text is not None and one is not None and one.speakers == [text] else None

    def rest(self, template: dict[str, Any]) -> list[dict[str, Any]]:
        """What is still held back when the stream stops without having ended; shaped like `template`, a chunk."""
        return [chunk for one in self._in_order() for chunk in self._rest_of(one, template)]

    def end(self, template: dict[str, Any]) -> list[dict[str, Any]]:
        """The same at the end of a whole stream, with the ends that were announced."""
        sent = []
        for one in self._in_order():
            sent += self._rest_of(one, template)
            if one.end is not None:
                sent.append(_chunk_of(template, one.part({}, one.end)))
                one.end = None
        return sent

    def _in_order(self) -> list[_Choice]:
        return [self._choices[index] for index in sorted(self._choices)]

    def _rest_of(self, one: _Choice, template: dict[str, Any]) -> list[dict[str, Any]]:
        said: dict[str, Any] = {}
        for text in one.texts.values():
            if rest := text.flush():
                _place(said, text, rest)
        one.texts, one.speakers, one.speaking = {}, [], None
        return [_chunk_of(template, one.part(said))] if said else []

    def _rewrite_choice(self, choice: dict[str, Any], place: int) -> None:
        index = position_of(choice, place)
        one = self._choices.get(index)
        if one is None:
            self._count()
            one = self._choices[index] = _Choice(index)
        drop_unknown(choice, CHOICE_FIELDS)
        choice["index"] = index
        choice.pop("message", None)  # a stream says its text in deltas
        for field in TELLING_FIELDS:
            if field in choice:
                choice[field] = None
        if "delta" in choice:
            one.is_chat = True
            if said := choice["delta"]:
                self._rewrite_delta(one, said)
        if choice.get("text"):
            self._say(one, choice, "text")
        ends = choice.get("finish_reason") is not None or choice.get("stop_reason") is not None
        if ends or "watermark" in choice:
            self._keep_end(one, choice)

    def _rewrite_delta(self, one: _Choice, said: dict[str, Any]) -> None:
        if not said.keys() <= _PLAIN_DELTA or isinstance(said["content"], list):
            clean_saying(said, self._make_filter)
            if (role := said.get("role")) and role != one.role:
                one.role, self._says = role, True
        for field in TEXT_FIELDS:
            if said.get(field):
                self._say(one, said, field)
        if (legacy := said.get("function_call")) is not None:
            self._say_call(one, legacy, "function_call", "arguments", 0)
        for place, call in enumerate(said.get("tool_calls") or ()):
            number = position_of(call, place)
            if (name := call.get("id")) and one.calls.get(number) != name:
                self._settle(one)
                self._count()
                one.calls[number], one.speaking, self._says = name, None, True
            self._says = self._says or SIGNED in call
            for kind, field, _ in CALL_TEXTS:
                if (holder := call.get(kind)) is not None:
                    # A call without a number cannot be continued in a later chunk.
                    self._say_call(one, holder, kind, field, number, at_once=call.get("index") != number)

    def _say_call(
        self, one: _Choice, holder: dict[str, Any], kind: str, field: str, number: int, *, at_once: bool = False
    ) -> None:
        if holder.get("name"):  # clients need a name whole, in the first chunk of its call
            self._say(one, holder, "name", (kind, number), at_once=True)
        if holder.get(field):
            self._say(one, holder, field, (kind, number), at_once=at_once)

    def _say(
        self,
        one: _Choice,
        holder: dict[str, Any],
        field: str,
        call: tuple[str, int] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Filter the piece of text at `holder[field]` in place. `call`: kind and number of the tool call it is of.
        `at_once`: hold nothing back."""
        group = call or _GROUPS.get(field, field)
        if one.speaking != group:
            self._settle(one)
            one.speaking = group
        key = (field, call) if call else field
        text = one.texts.get(key)
        if text is None:
            self._count()
            text = one.texts[key] = _Text(self._make_filter(field == "arguments"), field, call)
        if text not in one.speakers:
            one.speakers.append(text)
        piece = holder[field]
        after = text.feed(piece if isinstance(piece, str) else as_text(piece))
        if at_once:
            after += text.settle()
        text.chunk, text.holder = self._chunk, holder
        if after:
            self._says = True
        holder[field] = after

    def _settle(self, one: _Choice) -> None:
        """Send what is held back of the texts that `one` was at: behind their piece in this chunk, or before it."""
        said: dict[str, Any] = {}
        for text in one.speakers:
            if not (rest := text.settle()):
                continue
            if text.chunk == self._chunk:
                text.holder[text.field] += rest
                self._says = True
            else:
                _place(said, text, rest)
        if said:
            self._before.append(one.part(said))
        one.speakers = []

    def _keep_end(self, one: _Choice, choice: dict[str, Any]) -> None:
        """Take the end out of the chunk until the stream is over."""
        clean_ends(choice, self._make_filter)
        if announces_end(choice.get("finish_reason")):
            one.end = {field: choice[field] for field in END_FIELDS if field in choice}
        for field in END_FIELDS:
            if field in choice:
                choice[field] = None

    def _count(self) -> None:
        self.texts += 1
        if self.texts > MAX_TEXTS:
            raise BackendFailed(f"The backend's answer has more than {MAX_TEXTS} texts")


def _place(said: dict[str, Any], text: _Text, rest: str) -> None:
    """Write `rest` into a delta (or a completion's choice) where a client finds it."""
    if text.call is None:
        said[text.field] = rest
        return
    kind, number = text.call
    if kind == "function_call":
        said[kind] = {text.field: rest}
    else:
        said.setdefault("tool_calls", []).append({"index": number, kind: {text.field: rest}})


def _chunk_of(template: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    return {**template, "choices": [choice], "usage": None}
