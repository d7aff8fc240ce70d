"""Spans and metrics of the gateway, and all names that they use. They contain no prompt, answer or key.

The ``gen_ai.*`` strings are OpenTelemetry's GenAI semantic conventions. These are still in development, so the strings
are defined only here. Prometheus names are derived from them (dots to underscores, the unit as suffix).
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from time import perf_counter
from types import TracebackType
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.propagate import extract
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from gateway.configuration.sinks import SPANS
from gateway.metrics import Count, LoopCounter, LoopHistogram, Observed
from gateway.request.exchange import Exchange
from gateway.request.stages import Parsed

PROVIDER: Final = "domicile"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"
HTTP_STATUS: Final = "http.response.status_code"
TENANT: Final = "domicile.tenant"
REGION: Final = "domicile.region"
BACKEND: Final = "domicile.backend"
DECISION: Final = "domicile.policy.decision"
REQUEST_ID: Final = "domicile.request_id"
EXPORT_TIMEOUT_S = 3
"""For one batch of spans; a collector that hangs must not hold the stop of the gateway."""
MAY_LEAVE: Final = "domicile.policy.spans_may_leave"

ALERTED: Final = ("audit_unavailable", "backend_identity", "backend_unavailable", "limits_unavailable")
"""Codes of errors that are counted from 0 on, since a series that begins at 1 has not risen for an alert."""

# As `gateway.request.pipeline` takes them; each is a span ``domicile.<step>``.
STEPS: Final = (
    "authenticate", "parse", "limit", "decide", "redact", "route", "write_ahead", "call", "restore", "record",
)  # fmt: skip

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = tuple(4**power for power in range(14))
MILLISECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024)

_LABELS = ("tenant", "gen_ai_operation_name", "gen_ai_request_model")
_NO_SPAN: Final[AbstractContextManager[None]] = nullcontext()


class Telemetry:
    """Metrics and tracing of one gateway. Each has its own registry, so two in one process are separate."""

    def __init__(self, *, max_tenant_labels: int = 200, tracer: trace.Tracer | None = None) -> None:
        self._tracer = tracer
        self._tenants: set[str] = set()
        self._max_tenant_labels = max_tenant_labels
        self._series: dict[tuple[str, ...], _Series] = {}
        self.registry = registry = CollectorRegistry()
        counter, histogram = partial(LoopCounter, registry=registry), partial(LoopHistogram, registry=registry)
        rare = partial(Counter, registry=registry)
        self.requests = counter(
            "domicile_requests", "Inference requests by outcome", (*_LABELS, "http_response_status_code")
        )
        self.duration = histogram(
            "gen_ai_server_request_duration_seconds", "From request to last byte", _LABELS, buckets=SECONDS
        )
        self.first_token = histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From request to first token, where that is known",
            _LABELS,
            buckets=SECONDS,
        )
        self.output_token = histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Between tokens after the first",
            _LABELS,
            buckets=MILLISECONDS,
        )
        self.tokens = histogram(
            "gen_ai_client_token_usage", "Tokens of a request", (*_LABELS, "gen_ai_token_type"), buckets=TOKENS
        )
        self.decisions = counter("domicile_policy_decisions", "Policy decisions", ("tenant", "outcome", "rule"))
        self.redactions = rare("domicile_redactions", "Findings acted on", ("tenant", "label", "direction"))
        self.audit_append = histogram(
            "domicile_audit_append_seconds", "From handing over an event until it is durable", buckets=MILLISECONDS
        ).labels()
        self.auth_failures = rare("domicile_auth_failures", "Keys that do not work", ("reason",))
        self.approvals_refused = rare(
            "domicile_approvals_refused", "Approvals by somebody who may have been invented by the first person"
        )
        self.errors = rare("domicile_errors", "Calls answered with an error, by its code", ("code",))
        for code in ALERTED:
            self.errors.labels(code)
        self.certificate_ends = Gauge(
            "domicile_certificate_not_after_seconds",
            "When a certificate of this gateway ends, Unix time",
            ("certificate",),
            registry=registry,
        )
        self._counted = counted = _Counted()
        in_flight = Gauge("domicile_requests_in_flight", "Requests being answered", registry=registry)
        in_flight.set_function(lambda: counted.running)
        self.aborted = rare("domicile_aborted", "Answers that did not end", ("tenant", "reason"))

    def tenant_label(self, tenant: str) -> str:
        """Return `tenant`, or ``other`` if the configured number of tenants is exceeded, so label sets stay bounded."""
        if tenant not in self._tenants:
            if len(self._tenants) >= self._max_tenant_labels:
                return "other"
            self._tenants.add(tenant)
        return tenant

    def decided(self, tenant: str, outcome: str, rule: str) -> None:
        """Count a policy decision."""
        self.decisions.labels(self.tenant_label(tenant), outcome, rule).inc()

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus text format 0.0.4."""
        return generate_latest(self.registry)

    def step(self, name: str) -> AbstractContextManager[object]:
        """Return the span of one of STEPS. Its cost without a tracer is negligible."""
        if self._tracer is None:
            return _NO_SPAN
        return self._span(self._tracer, f"domicile.{name}")

    def request_span(self, name: str, headers: Mapping[str, str]) -> AbstractContextManager[object]:
        """Return the root span of a request, a child of the caller's W3C ``traceparent`` if there is one."""
        if self._tracer is None:
            return self._counted
        return self._traced(self._tracer, name, headers)

    @contextmanager
    def _traced(self, tracer: trace.Tracer, name: str, headers: Mapping[str, str]) -> Iterator[None]:
        with self._counted, self._span(tracer, name, context=extract(headers), kind=trace.SpanKind.SERVER):
            yield

    def trace_id(self, headers: Mapping[str, str]) -> str | None:
        """Return the trace id of the current span; without a tracer, that of the caller's ``traceparent``.

        32 hex digits; None if there is neither.
        """
        if self._tracer is None and "traceparent" not in headers:
            return None
        context = trace.get_current_span(None if self._tracer else extract(headers)).get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else None

    @contextmanager
    def _span(self, tracer: trace.Tracer, name: str, **options: Any) -> Iterator[None]:
        """Start a span that records only the type of an error.

        OpenTelemetry would also record the message and traceback, which may quote a prompt.
        """
        with tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False, **options
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute(ERROR_TYPE, type(error).__name__)
                span.set_status(trace.StatusCode.ERROR)
                raise

    def finished(self, exchange: Exchange, status: int) -> None:
        """Count and time a finished request. `status`: what the client received, 0 if nothing.

        If the body was refused, the tenant is known, and the model if the tenant may call it. Without a valid key,
        neither is known.
        """
        if self._tracer is not None:
            self._describe(exchange, status)
        operation, request, received = exchange.endpoint.operation, exchange.parsed, exchange.received
        if request is None:
            named = self.tenant_label(exchange.principal.tenant) if exchange.principal else ""
            self.requests.labels(named, operation, exchange.refused_model, str(status)).inc()
            return
        usage = received.usage
        model = request.call.model if request.offered else ""  # an unknown name must not become a label value
        tenant = self.tenant_label(request.principal.tenant)
        series = self._series_of(tenant, operation, model)
        series.outcome(status).inc()
        seconds = perf_counter() - request.started
        series.duration.observe(seconds)
        if (first := received.first_token_s(request.started)) is not None:
            series.first_token.observe(first)
            if usage is not None and usage.completion_tokens > 1:
                series.output_token.observe(max(0.0, seconds - first) / (usage.completion_tokens - 1))
        if usage is not None:
            series.input_tokens.observe(usage.prompt_tokens)
            series.output_tokens.observe(usage.completion_tokens)
        for direction, counts in (("input", exchange.redactions_in), ("output", received.redactions)):
            for label, count in counts.items():
                self.redactions.labels(tenant, label, direction).inc(count)

    def _series_of(self, *labels: str) -> "_Series":
        known = self._series.get(labels)
        if known is None:
            known = self._series[labels] = _Series(self, labels)
        return known

    def _describe(self, exchange: Exchange, status: int) -> None:
        span = trace.get_current_span()
        attributes: dict[str, str | int | bool | list[str]] = {
            OPERATION: exchange.endpoint.operation,
            PROVIDER_NAME: PROVIDER,
            HTTP_STATUS: status,
        }
        if exchange.parsed is not None:
            attributes |= _attributes(exchange, exchange.parsed)
        if status >= 400:
            attributes[ERROR_TYPE] = str(status)
        if status >= 500:  # a client error is not an error of the server's span (HTTP semantic conventions)
            span.set_status(trace.StatusCode.ERROR)
        span.set_attributes(attributes)


def _attributes(exchange: Exchange, request: Parsed) -> dict[str, str | int | bool | list[str]]:
    attributes: dict[str, str | int | bool | list[str]] = {
        REQUEST_MODEL: request.call.model if request.offered else "unknown",
        REQUEST_STREAM: request.call.stream,
        REQUEST_ID: request.request_id,
        TENANT: request.principal.tenant,
        FINISH_REASONS: exchange.received.finish_reasons,
    }
    if (usage := exchange.received.usage) is not None:
        attributes |= {INPUT_TOKENS: usage.prompt_tokens, OUTPUT_TOKENS: usage.completion_tokens}
    if exchange.routed is not None:
        backend = exchange.routed.route.backend
        attributes |= {REGION: backend.region, BACKEND: backend.id}
    if exchange.decision is not None:
        attributes[DECISION] = f"{exchange.decision.policy_id}@{exchange.decision.version}"
        if SPANS in exchange.decision.sinks:
            attributes[MAY_LEAVE] = True
    return attributes


class _Counted:
    """A reusable context manager that counts the requests inside it, without an allocation per request."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running = 0

    def __enter__(self) -> None:
        self.running += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.running -= 1


class _Series:
    """Metric children of one label set, looked up at first use and cached: a lookup costs more than counting."""

    def __init__(self, telemetry: Telemetry, labels: tuple[str, ...]) -> None:
        self._telemetry = telemetry
        self._labels = labels
        self._outcomes: dict[int, Count] = {}

    def outcome(self, status: int) -> Count:
        known = self._outcomes.get(status)
        if known is None:
            known = self._outcomes[status] = self._telemetry.requests.labels(*self._labels, str(status))
        return known

    @cached_property
    def duration(self) -> Observed:
        return self._telemetry.duration.labels(*self._labels)

    @cached_property
    def first_token(self) -> Observed:
        return self._telemetry.first_token.labels(*self._labels)

    @cached_property
    def output_token(self) -> Observed:
        return self._telemetry.output_token.labels(*self._labels)

    @cached_property
    def input_tokens(self) -> Observed:
        return self._telemetry.tokens.labels(*self._labels, "input")

    @cached_property
    def output_tokens(self) -> Observed:
        return self._telemetry.tokens.labels(*self._labels, "output")


def exporting_tracer(
    endpoint: str, sample_ratio: float, service_instance: str, by_policy: bool = False
) -> trace.Tracer:
    """Return a tracer that sends spans to `endpoint` (OTLP over HTTP).

    `by_policy`: export only spans of calls whose policy allows it. Raises ImportError, naming the extra to install, if
    the OpenTelemetry SDK is missing.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise ImportError(
            "telemetry.otlp_endpoint needs the OpenTelemetry SDK; run: pip install 'domicile[otel]'"
        ) from error
    provider = TracerProvider(
        resource=Resource.create({"service.name": "domicile-gateway", "service.instance.id": service_instance}),
        sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
    )
    exporting = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S))
    if by_policy:
        from gateway.request.spans import ResidentSpans

        provider.add_span_processor(ResidentSpans(exporting))
    else:
        provider.add_span_processor(exporting)
    return provider.get_tracer("domicile")
