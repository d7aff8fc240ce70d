"""Span processor that exports the spans of a call only if its policy allows it.

The policy's decision is known in the middle of a call, when some spans have already ended. Spans therefore wait until
the root span of the call ends, which has the result as an attribute. Spans of calls without a policy decision are not
exported.
"""

from collections import OrderedDict

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from gateway.request.telemetry import MAY_LEAVE

MOST_TRACES = 10_000


class ResidentSpans(SpanProcessor):
    """Passes the spans of a call on to `inner`, all of them or none."""

    def __init__(self, inner: SpanProcessor) -> None:
        self._inner = inner
        self._waiting: OrderedDict[int, list[ReadableSpan]] = OrderedDict()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._inner.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is None:
            return
        if span.parent is not None and not span.parent.is_remote:
            self._waiting.setdefault(context.trace_id, []).append(span)
            if len(self._waiting) > MOST_TRACES:
                self._waiting.popitem(last=False)
            return
        ended = self._waiting.pop(context.trace_id, [])
        if (span.attributes or {}).get(MAY_LEAVE) is True:
            for one in (*ended, span):
                self._inner.on_end(one)

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
