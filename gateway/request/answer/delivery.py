"""From a backend's answer to what the client gets: whole, or as a stream, both through the output filter.

The last bytes wait for the record (`Answered.last`): a whole answer waits with all of its bytes, a stream with the end.
"""

from collections.abc import Awaitable

from audit.log.receipt import Receipt
from gateway.content.inspection import Inspection
from gateway.content.whole_answer import Handling
from gateway.errors import BackendFailed, BackendTimeout
from gateway.openai.asgi_client import Client
from gateway.openai.finite_json import write
from gateway.openai.stream_filter import StreamRewriter
from gateway.request.answer.headers import EVENT_STREAM, JSON, provenance
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.answer.relay import StreamRelay
from gateway.request.enforcement import PolicyEnforcement
from gateway.request.routes import Routes
from gateway.request.stages import Accepted, Answered
from gateway.request.telemetry import Telemetry
from gateway.upstream.client import Answer
from regions.fleet.fleet import Call

DEBUG_HEADER = "x-domicile-debug"
MAX_ANSWER_BYTES = 64 << 20


class Delivery:
    def __init__(
        self, inspection: Inspection, enforcement: PolicyEnforcement, routes: Routes, telemetry: Telemetry
    ) -> None:
        self._inspection = inspection
        self._enforcement = enforcement
        self._routes = routes
        self._step = telemetry.step

    def restore(self, accepted: Accepted, answer: Answer, received: ReceivedAnswer, call: Call) -> Awaitable[Answered]:
        """Filter the answer, and send of it what may leave before the outcome is on record.

        Notes in `received` what came, and tells `call` once the backend has begun a good answer. Raises RedactionError
        where the answer may not be sent, BackendFailed or BackendTimeout where it is none, PolicyDenied where a person
        stopped the call.
        """
        if accepted.request.call.stream:
            return self._stream(accepted, answer, received, call)
        return self._whole(accepted, answer, received, call)

    async def finish(self, answered: Answered, receipt: Receipt) -> None:
        """Send the last bytes, and with a whole answer its headers: its outcome is on record under `receipt`."""
        client, last = answered.request.client, answered.last
        if not answered.begun:
            routed = answered.accepted.routed
            headers = [
                JSON,
                (b"content-length", b"%d" % len(last)),
                *provenance(routed.redacted, routed.route, receipt),
            ]
            await client.start(200, headers)
        await client.end(last)

    async def _whole(self, accepted: Accepted, answer: Answer, received: ReceivedAnswer, call: Call) -> Answered:
        raw = await answer.body(MAX_ANSWER_BYTES)
        request, redacted = accepted.request, accepted.routed.redacted
        prompt = redacted.prompt
        self._enforcement.check_running(request)
        with self._step("restore"):
            handling = Handling(request.call.endpoint.answer, keeps=redacted.content is not None)
            whole = await self._inspection.whole_answer(raw, handling, prompt.output, request.principal.tenant)
            received.note(whole.summary)
            self._routes.answered(request, call, received.called)
            if prompt.output is not None:
                received.redactions = prompt.output.counts
            raw = whole.passed()
            if request.client.headers.get(DEBUG_HEADER) == "upstream":
                raw = b'%s,"domicile":%s}' % (raw.rstrip()[:-1], write({"upstream_request": prompt.fields}))
        if redacted.content is not None and whole.texts is not None:
            redacted.content.add_answer(whole.texts)
        received.bytes_out = len(raw)
        return Answered(request, accepted, raw, begun=False)

    async def _stream(self, accepted: Accepted, answer: Answer, received: ReceivedAnswer, call: Call) -> Answered:
        if not answer.is_event_stream:
            raise BackendFailed("The backend answered a stream with something else")
        request, routed = accepted.request, accepted.routed
        output = routed.redacted.prompt.output
        sender = _Sender(accepted, received)
        relay = StreamRelay(request.call, received, StreamRewriter(output.make) if output else None)
        with self._step("restore"):
            try:
                async for piece in relay.pieces(answer.pieces()):
                    self._enforcement.check_running(request)
                    if not sender.begun:  # until here another backend may still take the call
                        self._routes.answered(request, call, received.called)
                        await sender.begin()
                    await sender.send(piece)
            except (BackendFailed, BackendTimeout):
                if sender.begun:  # what was held back until then, through the filter
                    await sender.send(relay.remainder())
                raise
            finally:
                if output is not None:
                    received.redactions = output.counts
        if not sender.begun:  # a whole answer without text
            await sender.begin()
        return Answered(request, accepted, relay.ending(), begun=True)


class _Sender:
    """The pieces of one stream to the client, who gets the headers with the first."""

    __slots__ = ("_accepted", "_client", "_content", "_received", "begun")

    def __init__(self, accepted: Accepted, received: ReceivedAnswer) -> None:
        self._accepted = accepted
        self._received = received
        self._client: Client = accepted.request.client
        self._content = accepted.routed.redacted.content
        self.begun = False

    async def begin(self) -> None:
        self.begun = True
        routed = self._accepted.routed
        receipt = self._accepted.intent
        await self._client.start(200, [*EVENT_STREAM, *provenance(routed.redacted, routed.route, receipt)])

    async def send(self, piece: bytes) -> None:
        self._received.bytes_out += len(piece)
        if self._content is not None:
            self._content.add_piece(piece)
        await self._client.write(piece)
