"""Delivery of a backend's answer to the client, complete or as a stream, through the output filter.

The last bytes wait for the record (`Answered.last`): all bytes of a complete answer, or the end of a stream.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from audit.log.receipt import Receipt
from gateway.api_format import EventWriter
from gateway.configuration.bounds import Bounds
from gateway.content.inspection import Inspection
from gateway.content.retained_content import KeptEvents, RetainedContent
from gateway.content.said_text import SaidText
from gateway.content.whole_answer import Handling
from gateway.errors import BackendFailed, BackendTimeout
from gateway.openai.asgi_client import Client, Header
from gateway.openai.finite_json import write
from gateway.openai.stream_filter import StreamRewriter
from gateway.request.answer import fingerprints, manifests
from gateway.request.answer.headers import (
    JSON,
    STREAMS,
    fingerprint_header,
    manifest_header,
    provenance,
    watermark_header,
)
from gateway.request.answer.keep_alive import COMMENT, KeepAlive
from gateway.request.answer.manifests import MEMBER, AnswerManifests, with_manifests
from gateway.request.answer.marking import announced, outcome
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.answer.relay import StreamRelay
from gateway.request.answer.spool import PIECE, Spool
from gateway.request.enforcement import PolicyEnforcement
from gateway.request.routes import Routes
from gateway.request.stages import Accepted, Answered, LastBytes, Routed
from gateway.request.telemetry import Telemetry
from gateway.upstream.answer_memory import AnswerMemory, AnswerShare
from gateway.upstream.client import BackendAnswer
from regions.fleet.fleet import Call

logger = logging.getLogger("domicile.gateway")

DEBUG_HEADER = "x-domicile-debug"
MAX_ANSWER_BYTES = 64 << 20
AT_ONCE = 128 << 10
"""Bytes of a complete answer that may wait in memory for its client, which bounds the cost of a slow reader."""
PATIENCE_S = 1.0
"""Seconds in which a client should read a larger answer; after that, the rest waits on disk."""


class Delivery:
    """Filters answers and sends them to clients."""

    def __init__(
        self,
        inspection: Inspection,
        enforcement: PolicyEnforcement,
        routes: Routes,
        telemetry: Telemetry,
        folder: Path,
        bounds: Bounds,
        manifests: AnswerManifests | None = None,
    ) -> None:
        """`folder`: where large answers wait, encrypted, for clients that read slowly."""
        self.manifests = AnswerManifests() if manifests is None else manifests
        self.memory = AnswerMemory()
        self._bounds = bounds
        self._folder = folder
        self._inspection = inspection
        self._enforcement = enforcement
        self._routes = routes
        self._step = telemetry.step

    def keep_alive(self, accepted: Accepted, received: ReceivedAnswer) -> KeepAlive | None:
        """Return the comment writer for this attempt.

        None for a complete answer, and if comments are disabled or not possible in the stream's format.
        """
        every_s, call = self._bounds.now.comment_after_s, accepted.request.call
        fills = every_s and call.stream and call.endpoint.format.streams_events
        return KeepAlive(accepted, received, every_s) if fills else None

    def restore(
        self,
        accepted: Accepted,
        answer: BackendAnswer,
        received: ReceivedAnswer,
        call: Call,
        silence: KeepAlive | None = None,
    ) -> Awaitable[Answered]:
        """Filter the answer, and send what may be sent before the outcome is recorded.

        Updates `received`, and notifies `call` when the backend has started a successful answer. Raises RedactionError
        if the answer may not be sent, BackendFailed or BackendTimeout if it is invalid or late, AnswerMemoryFull if it
        is large and finds no memory, and PolicyDenied if a person stopped the call.
        """
        received.share = AnswerShare(self.memory, accepted.request.principal.tenant)
        if accepted.request.call.stream:
            return self._stream(accepted, answer, received, call, silence)
        return self._whole(accepted, answer, received, call)

    async def finish(self, answered: Answered, receipt: Receipt) -> None:
        """Send the last bytes, with the headers if the answer is complete. Its outcome is on record under `receipt`."""
        client, last = answered.request.client, answered.last.taken()
        if not answered.begun:
            routed = answered.accepted.routed
            headers = [
                JSON,
                (b"content-length", b"%d" % len(last)),
                *provenance(routed.redacted, routed.route, receipt),
                *answered.marks,
            ]
            await client.start(200, headers)
        if len(last) <= AT_ONCE:
            await client.end(last)
            return
        client.stop_watching()  # the outcome is on record
        sent = await _in_time(client, last)
        if sent == len(last):
            await client.end()
            return
        try:
            spool = await asyncio.to_thread(Spool, self._folder, memoryview(last)[sent:])
        except OSError as error:
            logger.warning(
                "a large answer stays in memory, because it cannot be written to disk: %s; check the folder `data`",
                type(error).__name__,
            )
            await client.end(last[sent:])
            return
        del last
        with spool:
            pieces = spool.pieces()
            while piece := await asyncio.to_thread(next, pieces, b""):
                await client.write(piece)
        await client.end()

    async def _whole(self, accepted: Accepted, answer: BackendAnswer, received: ReceivedAnswer, call: Call) -> Answered:
        raw = await answer.body(MAX_ANSWER_BYTES, received.share)
        request, redacted = accepted.request, accepted.routed.redacted
        prompt = redacted.prompt
        self._enforcement.check_running(request)
        with self._step("restore"):
            asked = request.call
            marks = redacted.allowed.marking
            said = fingerprints.said_text(accepted.routed, received) if marks else None
            holds = redacted.content is not None or said is not None
            handling = Handling(asked.endpoint.answer, holds, redacted.translation)
            whole = await self._inspection.whole_answer(raw, handling, prompt.output, request.principal.tenant)
            received.note(whole.summary)
            self._routes.answered(request, call, received.called)
            if prompt.output is not None:
                received.redactions = prompt.output.counts
            raw = whole.passed()
            if whole.texts is not None:
                for holder in (redacted.content, said):
                    if holder is not None:
                        holder.add_answer(whole.texts)
            if marks:
                raw = with_manifests(raw, await self.manifests.of(accepted, said, received))
            kept = LastBytes(raw) if redacted.keeps else None
            if request.client.headers.get(DEBUG_HEADER) == "upstream":
                raw = b'%s,"domicile":%s}' % (raw.rstrip()[:-1], write({"upstream_request": prompt.fields}))
        received.bytes_out = len(raw)
        answered = Answered(request, accepted, LastBytes(raw), begun=False, kept=kept)
        return replace(answered, marks=await _marks(accepted.routed, received)) if marks else answered

    async def _stream(
        self, accepted: Accepted, answer: BackendAnswer, received: ReceivedAnswer, call: Call, silence: KeepAlive | None
    ) -> Answered:
        if not answer.is_event_stream:
            raise BackendFailed("The backend's answer to a streaming request is not a stream")
        request, routed = accepted.request, accepted.routed
        output = routed.redacted.prompt.output
        events = received.events = _events(routed, received)
        relay = StreamRelay(request.call, received, StreamRewriter(output.make) if output else None, events)
        sender = _Sender(accepted, received, relay, self._enforcement.running_check(request), silence)
        with self._step("restore"):
            try:
                async for piece in relay.pieces(answer.pieces(silence, sender.relayed_at_once)):
                    self._enforcement.check_running(request)
                    if not piece:
                        if silence is not None:
                            await silence.silent()
                        continue
                    if not sender.begun:  # before this, another backend may still take the call
                        self._routes.answered(request, call, received.called)
                        await sender.begin()
                    await sender.send(piece)
            except (BackendFailed, BackendTimeout):
                if sender.begun:  # buffered text, filtered
                    await sender.send(await relay.remainder())
                raise
            finally:
                sender.is_over = True
                if output is not None:
                    received.redactions = output.counts
        if not sender.begun:  # a valid answer without text
            await sender.begin()
        made = None
        if routed.redacted.allowed.marking:
            made = await self.manifests.of(accepted, received.said, received)
            await fingerprints.fingerprint(routed, received)
        last = LastBytes(relay.ending({MEMBER: made} if made else None))
        kept = LastBytes(events.whole()) if events is not None and routed.redacted.keeps else None
        return Answered(request, accepted, last, begun=True, kept=kept)


async def _marks(routed: Routed, received: ReceivedAnswer) -> list[Header]:
    """Make the fingerprints, and return the headers that say what came of each mark."""
    await fingerprints.fingerprint(routed, received)
    return [
        *watermark_header(outcome(routed, received)),
        *fingerprint_header(fingerprints.outcome(received)),
        *manifest_header(received.manifest),
    ]


def _announced(routed: Routed) -> list[Header]:
    """Return the headers on marks that are sent before an answer."""
    return [
        *watermark_header(announced(routed)),
        *fingerprint_header(fingerprints.announced(routed)),
        *manifest_header(manifests.announced(routed)),
    ]


async def _in_time(client: Client, data: bytes) -> int:
    """Send `data` for at most PATIENCE_S and return the number of bytes sent."""
    at = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while at < len(data):
                await client.write(data[at : at + PIECE])
                at += PIECE
    return min(at, len(data))


def _events(routed: Routed, received: ReceivedAnswer) -> EventWriter | None:
    """Return the writer of a stream in another API; what holds texts of the answer also gets what it writes."""
    redacted = routed.redacted
    said = fingerprints.said_text(routed, received) if redacted.allowed.marking else None
    if redacted.translation is None:
        return None
    events = redacted.translation.events()
    for holder in (redacted.content, said):
        if holder is not None:
            events = KeptEvents(events, holder)
    return events


class _Sender:
    """Sends the chunks of one stream to the client, and the headers with the first."""

    __slots__ = ("_accepted", "_check", "_client", "_holders", "_received", "_relay", "_silence", "begun", "is_over")

    def __init__(
        self,
        accepted: Accepted,
        received: ReceivedAnswer,
        relay: StreamRelay,
        check: Callable[[], None],
        silence: KeepAlive | None,
    ) -> None:
        """`check`: raises PolicyDenied if a person stopped the call."""
        self._relay, self._check, self._silence = relay, check, silence
        self.is_over = False
        self._accepted = accepted
        self._received = received
        self._client: Client = accepted.request.client
        self._holders: tuple[RetainedContent | SaidText, ...] = ()
        if received.events is None and (content := accepted.routed.redacted.content) is not None:
            self._holders = (content,)
        if received.events is None and received.said is not None:
            self._holders = (*self._holders, received.said)
        self.begun = False

    async def begin(self) -> None:
        self.begun = True
        routed = self._accepted.routed
        receipt = self._accepted.intent
        headers = STREAMS[self._accepted.request.call.endpoint.format.streams_events]
        marks = _announced(routed) if routed.redacted.allowed.marking else ()
        await self._client.start(200, [*headers, *provenance(routed.redacted, routed.route, receipt), *marks])

    def relayed_at_once(self, data: bytes) -> bool:
        """Relay what arrived to a client that keeps up, without waking the call's task for it: most of a stream.

        False if that is not possible; then nothing has changed. Raises as the task would.
        """
        server = self._client.server
        if not self.begun or self.is_over or server is None or not server.keeps_up():
            return False
        self._check()
        if (piece := self._relay.at_once(data)) is None:
            return False
        if piece:
            self._note(piece)
            server.write_now(piece)
        elif self._silence is not None and self._silence.is_due():
            server.write_now(COMMENT)
        return True

    def send(self, piece: bytes) -> Awaitable[None]:
        self._note(piece)
        return self._client.write(piece)

    def _note(self, piece: bytes) -> None:
        self._received.bytes_out += len(piece)
        for holder in self._holders:
            holder.add_piece(piece)
