"""A streamed answer on its way from the backend to the client.

Keeps three promises: text leaves only through the output filter; `[DONE]` leaves only after the record is closed, and
never after an error; usage is always asked for, and shown only to a client that asked. Servers that are not ours may
send no `[DONE]` (``transformers serve``, some versions of TGI): an answer of theirs is whole where every choice has
said why it ended and the body then ended as HTTP has it end.
"""

from collections.abc import AsyncIterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from backend.wire import SSE_DONE, Usage, fingerprint_of, sse_data
from gateway.errors import BackendFailed
from gateway.exchange import Exchange
from gateway.openai.answer import BODY_FIELDS, StreamRewriter
from gateway.openai.sse import DONE, EventSplitter


class StreamRelay:
    """One streamed answer. Iterate `pieces` for what may be sent at once; then `ending` once the record is closed."""

    def __init__(self, exchange: Exchange, rewriter: StreamRewriter | None) -> None:
        self._exchange = exchange
        self._rewriter = rewriter
        self._splitter = EventSplitter()
        self._template: dict[str, Any] | None = None  # the last chunk, for those we have to make ourselves
        self._done = False
        self._ended: set[int] = set()  # choices that have said why

    async def pieces(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Bytes for the client, as they come. Raises BackendFailed when the stream ends before the answer does."""
        async for data in source:
            frames = [frame for payload in self._splitter.feed(data) for frame in self._frames(payload)]
            if frames:
                yield b"".join(frames)
            if self._done:
                return
        if self._splitter.empty and len(self._ended) >= self._exchange.call.choices:
            if rest := self.remainder():
                yield rest
            return
        raise BackendFailed("The backend's stream ended before it was complete", code="stream_truncated")

    def remainder(self) -> bytes:
        """Text still held back by the filter when a stream is cut: safe to send, and the client's by right."""
        if self._rewriter is None or self._template is None:
            return b""
        return b"".join(sse_data(payload) for payload in self._rewriter.end(self._template))

    def ending(self) -> bytes:
        """The last bytes of a complete stream: usage if asked for, then ``[DONE]``."""
        usage = self._exchange.usage
        if usage is None or self._template is None or not self._exchange.call.request.wants_usage_chunk:
            return SSE_DONE
        last = {**self._template, "choices": [], "usage": usage.model_dump(exclude_none=True)}
        return sse_data(to_json(last)) + SSE_DONE

    def _frames(self, payload: bytes) -> list[bytes]:
        if self._done:
            return []
        if payload == DONE:
            self._done = True
            rest = self.remainder()
            return [rest] if rest else []
        try:
            chunk = from_json(payload, allow_inf_nan=False)
        except ValueError:
            raise BackendFailed("The backend sent an event that is not JSON") from None
        if not isinstance(chunk, dict) or not all(isinstance(choice, dict) for choice in chunk.get("choices") or ()):
            raise BackendFailed("The backend sent an event that is not a chunk")
        if chunk.get("error"):
            raise BackendFailed("The backend failed inside its answer", code="backend_error")
        payload = self._take_usage(chunk, payload)
        if not payload:
            return []
        if self._template is None:
            known = chunk.keys() if self._rewriter is None else BODY_FIELDS
            self._template = {key: chunk[key] for key in chunk if key in known and key not in ("choices", "usage")}
        if self._exchange.fingerprint is None:
            self._exchange.fingerprint = fingerprint_of(chunk)
        self._exchange.chunks_out += 1
        for choice in chunk.get("choices") or ():
            if reason := choice.get("finish_reason"):
                self._exchange.finish_reasons.append(str(reason))
                self._ended.add(choice.get("index", 0))
            self._exchange.count_tool_calls(choice.get("delta"))
        if self._rewriter is None:
            return [sse_data(payload)]
        return [sse_data(sent) for sent in self._rewriter.rewrite(chunk, payload)]

    def _take_usage(self, chunk: dict[str, Any], payload: bytes) -> bytes:
        """Note the usage, in whatever chunk it comes, and take it out; empty when nothing else was in that chunk."""
        if chunk.get("usage") is None:
            return payload
        try:
            self._exchange.usage = Usage.model_validate(chunk.pop("usage"))
        except ValidationError:
            raise BackendFailed("The backend sent usage that is not usage") from None
        return to_json(chunk) if chunk.get("choices") else b""
