"""Relay of a streamed answer from the backend to the client.

It guarantees that text is sent only through the output filter; that `[DONE]` is sent only after the record is closed,
and never after an error; and that usage is always requested, but shown only to a client that asked for it. Clients of
another API receive its events for the same chunks (`gateway.api_format`). Other servers may send no `[DONE]`
(``transformers serve``, some versions of TGI): their answer is complete if every choice has a finish reason and the
body then ends as HTTP requires.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import repeat
from typing import Any, Final

from pydantic_core import from_json, to_json

from backend.wire import ACTIVATIONS_FIELD, SSE_DONE, fingerprint_of, sse_data
from gateway.api_format import EventWriter
from gateway.content.inspection import counted
from gateway.errors import BackendFailed, BodyTooComplex
from gateway.openai.answer import count_characters
from gateway.openai.checked_call import Call
from gateway.openai.finish import announces_end, recorded, take_activations, watermark_of
from gateway.openai.repeated_chunk import RepeatedChunk
from gateway.openai.shape import DELTA, choices_of, position_of
from gateway.openai.sse import DONE, EventSplitter
from gateway.openai.stream_filter import StreamRewriter
from gateway.openai.usage import usage_of
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.answer.surrogate_pairs import SurrogatePairs, may_hold_half

CHANCES: Final = 8
"""Consecutive chunks unlike the previous one after which repetition is no longer looked for in a stream.

Some servers add different bytes to each chunk (padding, timings).
"""

INLINE_EVENT_BYTES = 8 << 10
"""Maximum size of an event that is filtered in the event loop. Tokens take some hundred bytes each."""
INLINE_TEXTS = 64
"""Maximum number of texts whose filters are ended in the event loop, since each may have held something back."""
EVENT_BYTES = 512
"""What an event costs beside its bytes, as a number of them: 100 us at most."""
MOST_AT_ONCE = 8
"""Events that are relayed in the backend's callback; more are relayed by the call's own task, in steps."""
STEP_BYTES = 4 << 10
"""Cost of the events that are filtered in one step; then other tasks have their turn. A read brings 32 kB, which may be
700 small events."""


class StreamRelay:
    """The streamed answer to `call`; updates `received`.

    Iterate `pieces` for what may be sent immediately. Call `ending` after the record is closed.
    """

    def __init__(
        self,
        call: Call,
        received: ReceivedAnswer,
        rewriter: StreamRewriter | None,
        events: EventWriter | None = None,
    ) -> None:
        """`events`: writer for the client's API; None for chunks."""
        self._call = call
        self._received = received
        self._rewriter = rewriter
        self._events = events
        self._splitter = EventSplitter()
        self._template: dict[str, Any] | None = None  # the last chunk, as a template for chunks made here
        self._done = False
        self._ends: dict[int, str | None] = {}  # finish reason for the record, by choice
        self._repeated: RepeatedChunk | None = None  # the chunk that the next ones repeat
        self._feed: Callable[[str], str] | None = None  # filter of its text, if any
        self._chances = CHANCES
        self._pairs: SurrogatePairs | None = None  # once a character came in two events

    async def pieces(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield bytes for the client; empty if the received data is not for the client, or not yet.

        Raises BackendFailed if the stream ends before the answer does.
        """
        async for data in source:
            frames: list[bytes] = []
            failure: BackendFailed | None = None
            step = 0
            try:
                for payload in self._splitter.feed(data):
                    size = len(payload)
                    if size > INLINE_EVENT_BYTES:  # in a thread, from which the event loop can regain the interpreter
                        await _counted(payload)
                        frames += await asyncio.to_thread(self._frames, payload)
                    elif payload == DONE and not self._done:
                        self._done = True
                        if rest := await self._last():
                            frames.append(rest)
                    else:
                        frames += self._frames(payload)
                    step += size + EVENT_BYTES
                    if step > STEP_BYTES:
                        step = 0
                        await asyncio.sleep(0)
            except BackendFailed as error:
                failure = error
            if frames or failure is None:  # includes what came before the error
                yield b"".join(frames)
            if failure is not None:
                raise failure
            if self._received.share is not None:  # an event counts until the client has taken it
                self._received.share.holds(self._splitter.held)
            if self._done:
                return
        if rest := await self._last_without_done():
            yield rest

    def at_once(self, data: bytes) -> bytes | None:
        """Return the frames of `data`, if it is a few whole events that repeat the one before, as all but the ends of a
        stream are.

        None if it is anything else: then nothing has changed, and `pieces` has to get it. Raises as `pieces`.
        """
        repeated = self._repeated
        size = len(data)
        if repeated is None or self._done or size > STEP_BYTES or not self._splitter.is_between:
            return None
        if data.find(b"\n\n") == size - 2:  # one event, the usual case
            text = None if b"\n" in (event := data[:-2]) else repeated.text_in(event)
            return None if text is None else self._more_text(repeated, event, text)
        events = data.split(b"\n\n")
        if events.pop() or len(events) > MOST_AT_ONCE or (texts := repeated.texts_in(events)) is None:
            return None
        return b"".join(map(self._more_text, repeat(repeated), events, texts))

    async def remainder(self) -> bytes:
        """Return text still buffered by the filter when a stream is aborted. It is filtered, so it may be sent."""
        if self._rewriter is None or self._template is None:
            return b""
        return await self._made(self._rewriter, self._rewriter.rest, self._template)

    async def _last(self) -> bytes:
        """Return the text still buffered at the end of a complete stream, with the ends of its choices."""
        if self._pairs is not None and not self._pairs.complete:
            raise _not_json()
        if self._rewriter is None or self._template is None:
            return b""
        return await self._made(self._rewriter, self._rewriter.end, self._template)

    async def _last_without_done(self) -> bytes:
        """The same of a stream whose body ended without a ``[DONE]``. Raises BackendFailed if it was cut."""
        announced = self._splitter.unfinished == DONE  # some servers send no blank line behind it
        if announced or (self._splitter.empty and len(self._ends) >= self._call.choices):
            return await self._last()
        raise BackendFailed(
            "The backend's stream ended before it was complete", code="stream_truncated", elsewhere=True
        )

    async def _made(
        self,
        rewriter: StreamRewriter,
        make: Callable[[dict[str, Any]], list[dict[str, Any]]],
        template: dict[str, Any],
    ) -> bytes:
        if rewriter.texts > INLINE_TEXTS:
            return b"".join(self._written(await asyncio.to_thread(make, template)))
        return b"".join(self._written(make(template)))

    def ending(self, more: dict[str, Any] | None = None) -> bytes:
        """Return the last bytes of a complete stream: usage if requested, then ``[DONE]``. `more`: members of a last
        chunk, which says nothing else; only in chunks of OpenAI's API."""
        usage = self._received.usage
        if more is not None and self._template is not None and self._events is None:
            return self._last_chunk(more) + self.ending()
        if self._events is not None:
            return self._events.end(usage)
        if usage is None or self._template is None or not self._call.request.wants_usage_chunk:
            return SSE_DONE
        last = {**self._template, "choices": [], "usage": usage.model_dump(exclude_none=True)}
        return sse_data(to_json(last, inf_nan_mode="null")) + SSE_DONE

    def _last_chunk(self, more: dict[str, Any]) -> bytes:
        """With a choice, since clients look for one."""
        said: dict[str, Any] = {"text": ""} if self._template_is_plain else {"delta": {}}
        choices = [{"index": 0, **said, "finish_reason": None}]
        return sse_data(to_json({**(self._template or {}), "choices": choices, **more}, inf_nan_mode="null"))

    @property
    def _template_is_plain(self) -> bool:
        """Whether these are completions, whose choices have no delta."""
        return self._template is not None and self._template.get("object") == "text_completion"

    def _frames(self, payload: bytes) -> list[bytes]:
        if self._done:
            return []
        if (repeated := self._repeated) is not None:
            event = b"data: " + payload
            if (text := repeated.text_in(event)) is not None:
                return [self._more_text(repeated, event, text)]
            self._repeated = None
        frames = self._whole_chunk(payload)
        if self._chances and not self._done:
            self._learn(payload)
        return frames

    def _more_text(self, repeated: RepeatedChunk, event: bytes, text: str) -> bytes:
        """Return the frame of an event that differs from the last one in its text alone; empty if that is held back."""
        self._chances = CHANCES
        received = self._received
        received.chunks_out += 1
        received.characters_out += len(text)
        if self._feed is not None and (after := self._feed(text)) != text:
            if not after:
                return b""
            if self._events is None:
                return repeated.with_text(after)
            text = after
        return event + b"\n\n" if self._events is None else self._events.text(repeated.field, text)

    def _learn(self, payload: bytes) -> None:
        """Expect more chunks like this one, if it contains only a text."""
        self._chances -= 1
        if (repeated := RepeatedChunk.of(payload)) is None:
            return
        self._feed = None
        if self._rewriter is not None:
            if (said := self._rewriter.text_of(repeated.choice, repeated.field)) is None:
                return
            self._feed = said.feeding
        self._repeated = repeated

    def _whole_chunk(self, payload: bytes) -> list[bytes]:
        chunk, payload = self._parsed(payload)
        if isinstance(chunk, dict) and chunk.get("error"):
            raise BackendFailed("The backend failed while it answered", elsewhere=True)
        choices = choices_of(chunk, DELTA)
        payload = self._take_reports(chunk, choices, payload)
        if not payload:
            return []
        if self._received.fingerprint is None:
            self._received.came_from(fingerprint_of(chunk))
        self._received.chunks_out += 1
        for place, choice in enumerate(choices):
            self._note(choice, place)
        if self._rewriter is not None:
            frames = self._written(self._rewriter.rewrite(chunk))
        else:
            frames = [sse_data(payload)] if self._events is None else [self._events.chunk(chunk)]
        if self._template is None:
            self._template = {key: chunk[key] for key in chunk if key not in ("choices", "usage")}
        return frames

    def _parsed(self, payload: bytes) -> tuple[Any, bytes]:
        """The chunk in `payload`, and its bytes; others than came from the first on in which a character was cut."""
        try:
            if self._pairs is None:
                return from_json(payload, allow_inf_nan=False), payload
        except ValueError:
            if not may_hold_half(payload):
                raise _not_json() from None
            self._pairs, self._chances = SurrogatePairs(), 0
        try:
            chunk = self._pairs.parsed(payload)
        except ValueError:
            raise _not_json() from None
        return chunk, to_json(chunk, inf_nan_mode="null")

    def _written(self, chunks: list[dict[str, Any]]) -> list[bytes]:
        if self._events is not None:
            return [self._events.chunk(chunk) for chunk in chunks]
        return [sse_data(to_json(chunk, inf_nan_mode="null")) for chunk in chunks]

    def _note(self, choice: dict[str, Any], place: int) -> None:
        """Note the data of a choice for metering and the record."""
        received, said = self._received, choice.get("delta")
        received.characters_out += count_characters(choice if said is None else said)
        received.note_first_token(choice)
        if said is not None:
            received.count_tool_calls(said)
        if announces_end(reason := choice.get("finish_reason")):
            self._ends[position_of(choice, place)] = recorded(reason)
            if said_of_mark := watermark_of(choice):
                received.watermarks[position_of(choice, place)] = said_of_mark
            received.finish_reasons = [word for word in self._ends.values() if word is not None]

    def _take_reports(self, chunk: dict[str, Any], choices: list[dict[str, Any]], payload: bytes) -> bytes:
        """Note usage and commitments to activations, and remove them. Empty if the chunk contained nothing else."""
        removed = False
        for choice in choices:
            if ACTIVATIONS_FIELD in choice:
                removed, place = True, position_of(choice, choices.index(choice))
                if said := take_activations(choice):
                    self._received.activations[place] = said
        if chunk.get("usage") is not None:
            removed = True
            self._received.usage = usage_of(chunk.pop("usage")) or self._received.usage
            if not chunk.get("choices"):
                return b""
        return to_json(chunk, inf_nan_mode="null") if removed else payload


def _not_json() -> BackendFailed:
    return BackendFailed("The backend sent an event that is not JSON")


async def _counted(payload: bytes) -> None:
    try:
        await counted(payload)
    except BodyTooComplex:
        raise BackendFailed("The backend sent an event with more values than an event may have") from None
