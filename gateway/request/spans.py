"""Spans on their way out: of a call only where its policy lets them be kept there.

What a policy says is known in the middle of a call, when some of its spans have ended; so they wait until the call's
own span ends, which says it. Spans of calls that no policy has judged stay here.
"""

from collections import OrderedDict

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from gateway.request.telemetry import MAY_LEAVE

MOST_TRACES = 10_000


class ResidentSpans(SpanProcessor):
    """KeysAndSigner spans on to `inner`, whole calls at a time, or not at all."""

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
