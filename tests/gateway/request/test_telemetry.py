"""Spans and metrics of a running gateway: the ten steps by name, the GenAI attributes, and nothing anybody said."""

import asyncio
import math
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families

from gateway.request.telemetry import ALERTED, STEPS, Telemetry, exporting_tracer
from gateway.store.reports.usage_report import usage
from policy.redact.redactor import Redactor
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab

MAIL = "anna.schmidt@example.org"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans(monkeypatch):
    """Where the spans of gateways opened with ``telemetry.otlp_endpoint`` end up."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("gateway.server.assembly.exporting_tracer", lambda *_: provider.get_tracer("domicile"))
    return exporter


def traced(tmp_path, **options):
    return lab(tmp_path, telemetry={"otlp_endpoint": "http://127.0.0.1:1"}, **options)


def root(spans):
    (found,) = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    return found


def steps(spans):
    return [span.name for span in spans.get_finished_spans() if span.name.startswith("domicile.")]


def everything(spans):
    return "".join(span.to_json() for span in spans.get_finished_spans())


async def scrape(made):
    """Every sample by name, each with its labels and value."""
    found = {}
    answer = await made.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


# --- spans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_each_of_the_ten_steps_is_one_span_below_the_requests_own(tmp_path, spans, stream):
    async with traced(tmp_path) as made, asyncio.timeout(60):
        while steps(spans).count("domicile.decide") != 1:  # news of a backend repeat steps of a call
            spans.clear()
            assert (await made.post(chat("hi", stream=stream))).status == 200
        assert sorted(steps(spans)) == sorted(f"domicile.{step}" for step in STEPS)
        assert {span.context.trace_id for span in spans.get_finished_spans()} == {root(spans).context.trace_id}
        started = sorted((s for s in spans.get_finished_spans() if s is not root(spans)), key=lambda s: s.start_time)
        assert [span.name.removeprefix("domicile.") for span in started] == list(STEPS), "in the order of the list"
        assert root(spans).parent is None


async def test_the_root_span_speaks_the_genai_conventions(tmp_path, spans):
    async with traced(tmp_path) as made:
        answer = await made.post(chat("hi", stream=True))
        assert root(spans).name == "chat"
        assert dict(root(spans).attributes) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "domicile",
            "gen_ai.request.model": "small",
            "gen_ai.request.stream": True,
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 5,
            "http.response.status_code": 200,
            "domicile.tenant": "acme",
            "domicile.region": "eu-fr-par",
            "domicile.backend": "acme-1",
            "domicile.policy.decision": "test-default@1",
            "domicile.request_id": answer.headers["x-request-id"],
        }


async def test_a_callers_trace_is_continued(tmp_path, spans):
    async with traced(tmp_path) as made:
        await made.post(chat("hi"), headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        assert f"{root(spans).context.trace_id:032x}" == TRACE
        assert f"{root(spans).parent.span_id:016x}" == PARENT


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"])
async def test_a_traceparent_that_is_none_begins_a_trace_of_its_own(tmp_path, spans, header):
    async with traced(tmp_path) as made:
        assert (await made.post(chat("hi"), headers={"traceparent": header})).status == 200
        assert root(spans).parent is None


@pytest.mark.parametrize(
    ("change", "last", "status"),
    [
        ({"key": "sk-wrong"}, "authenticate", 401),
        ({"raw": b"{"}, "parse", 400),
        ({"body": chat("hi", max_tokens=10**6)}, "limit", 429),
        ({"body": {**chat("hi"), "model": "nobody"}}, "decide", 404),
        ({"body": chat("AKIAIOSFODNN7EXAMPLE")}, "redact", 422),
    ],
)
async def test_a_refusal_ends_at_its_step_and_names_the_kind_of_error(tmp_path, spans, change, last, status):
    def limited(made):
        made.tenant("acme", POLICY + "limits: {rpm: 100, tpm: 10000}\n")

    async with traced(tmp_path, set_up=limited) as made:
        answer = await made.post(**{"body": chat("hi"), **change})
        assert answer.status == status
        assert steps(spans)[-1] == f"domicile.{last}"
        refused = next(span for span in spans.get_finished_spans() if span.name == f"domicile.{last}")
        assert refused.status.status_code is StatusCode.ERROR
        assert refused.attributes["error.type"].isidentifier()
        assert root(spans).attributes["error.type"] == str(status)
        assert root(spans).status.status_code is StatusCode.UNSET, "the client's mistake is no error of the server"


async def test_a_failing_backend_is_an_error_of_the_servers_span(tmp_path, spans):
    async with traced(tmp_path, backends={"acme/eu-fr-par/acme-1": FakeBackend(status=500)}) as made:
        assert (await made.post(chat("hi"))).status == 502
        assert root(spans).status.status_code is StatusCode.ERROR


async def test_no_span_holds_a_word_of_prompt_answer_or_key(tmp_path, spans):
    async with traced(tmp_path, backends={"acme/eu-fr-par/acme-1": FakeBackend(say="Xylophone")}) as made:
        for stream in (False, True):
            await made.post(chat(f"Zeppelin {MAIL}", stream=stream, user="Zeppelin"))
        await made.post({**chat("Zeppelin"), "model": "Zeppelin"})
        await made.post(chat("Zeppelin", temperature="Zeppelin"))
        await made.post(None, raw=b'{"model": "Zeppelin", "messages": Zeppelin')
        said = everything(spans)
        assert len(spans.get_finished_spans()) > 25
        for secret in ("Zeppelin", "Xylophone", MAIL, made.key().split("_")[3]):
            assert secret not in said


async def test_an_unexpected_error_that_quotes_the_prompt_does_not_bring_it_into_a_span(tmp_path, spans, monkeypatch):
    def breaks(self, body, *rest):
        raise RuntimeError(f"cannot redact {body}")

    monkeypatch.setattr(Redactor, "redact_body", breaks)
    async with traced(tmp_path) as made:
        answer = await made.post(chat("Zeppelin"))
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        assert made.backends["acme-1"].bodies == []
        assert "Zeppelin" not in everything(spans) + answer.body.decode()
        failed = next(span for span in spans.get_finished_spans() if span.name == "domicile.redact")
        assert failed.attributes["error.type"] == "RuntimeError"
        assert failed.events == ()


@asynccontextmanager
async def collector():
    """An OTLP endpoint on loopback; yields its URL and what came."""
    came = []

    async def take(request):
        came.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1/traces", came
    finally:
        await runner.cleanup()


async def test_spans_reach_a_collector_with_the_gateways_name(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    async with collector() as (url, came):
        tracer = exporting_tracer(url, 1.0, "gw-1")
        with Telemetry(tracer=tracer).request_span("chat", {}):
            pass
        await asyncio.to_thread(tracer.span_processor.force_flush)
        await asyncio.to_thread(tracer.span_processor.shutdown)
    (resource,) = came[0].resource_spans
    named = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert (named["service.name"], named["service.instance.id"]) == ("domicile-gateway", "gw-1")
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["chat"]


# --- metrics ---------------------------------------------------------------------------------------------------------

LABELS = {"tenant", "gen_ai_operation_name", "gen_ai_request_model"}
METRICS = {  # as docs/api.md lists them
    "domicile_requests_total": {*LABELS, "http_response_status_code"},
    "gen_ai_server_request_duration_seconds_count": LABELS,
    "gen_ai_server_time_to_first_token_seconds_count": LABELS,
    "gen_ai_server_time_per_output_token_seconds_count": LABELS,
    "gen_ai_client_token_usage_count": {*LABELS, "gen_ai_token_type"},
    "domicile_policy_decisions_total": {"tenant", "outcome", "rule"},
    "domicile_redactions_total": {"tenant", "label", "direction"},
    "domicile_audit_append_seconds_count": set(),
    "domicile_auth_failures_total": {"reason"},
    "domicile_approvals_refused_total": set(),
    "domicile_errors_total": {"code"},
    "domicile_certificate_not_after_seconds": {"certificate"},
    "domicile_requests_in_flight": set(),
    "domicile_aborted_total": {"tenant", "reason"},
}


async def test_every_metric_has_its_name_and_labels_and_no_other_is_there(tmp_path):
    backend = FakeBackend(say=f"ask {MAIL}", pieces=5)
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        await made.post(chat(f"I am {MAIL}", stream=True))
        await made.post(chat("AKIAIOSFODNN7EXAMPLE"))
        await made.post(chat("hi"), key="sk-wrong")
        backend.die_after = 1
        await made.post(chat("hi", stream=True))
        seen = await scrape(made)
        named = {name: set(samples[0][0]) for name, samples in seen.items()}
        assert {n: labels for n, labels in named.items() if not n.endswith(("_created", "_bucket", "_sum"))} == METRICS
        assert seen["domicile_policy_decisions_total"] == [({"tenant": "acme", "outcome": "allow", "rule": ""}, 3.0)]
        assert ({"tenant": "acme", "label": "email", "direction": "input"}, 1.0) in seen["domicile_redactions_total"]
        assert seen["domicile_auth_failures_total"] == [({"reason": "malformed"}, 1.0)]
        assert seen["domicile_aborted_total"] == [({"tenant": "acme", "reason": "backend_error"}, 1.0)]
        tokens = {labels["gen_ai_token_type"]: value for labels, value in seen["gen_ai_client_token_usage_sum"]}
        assert tokens == {"input": 7, "output": 5}
        statuses = {labels["http_response_status_code"] for labels, _ in seen["domicile_requests_total"]}
        assert statuses == {"200", "401", "422"}
        assert {labels["code"]: value for labels, value in seen["domicile_errors_total"]} == {
            **dict.fromkeys(ALERTED, 0), "redaction_blocked": 1, "invalid_api_key": 1, "backend_error": 1,
        }  # fmt: skip
        ((labels, end),) = seen["domicile_certificate_not_after_seconds"]
        assert labels == {"certificate": "backends"} and math.isnan(end)  # the lab speaks to its backends without TLS


async def test_tenants_beyond_the_bound_count_as_other_and_made_up_models_label_nothing(tmp_path):
    def three(made):
        for tenant in ("acme", "globex", "initech"):
            made.tenant(tenant)

    backends = {f"{tenant}/eu-fr-par/{tenant}-1": FakeBackend() for tenant in ("acme", "globex", "initech")}
    async with lab(tmp_path, set_up=three, backends=backends, telemetry={"max_tenant_labels": 1}) as made:
        for tenant in ("acme", "globex", "initech", "acme"):
            assert (await made.post(chat("hi"), key=f"{tenant}/main")).status == 200
            await made.post({**chat("hi"), "model": f"made-up-{tenant}"}, key=f"{tenant}/main")
        seen = await scrape(made)
        counted = {
            (labels["tenant"], labels["gen_ai_request_model"], labels["http_response_status_code"]): value
            for labels, value in seen["domicile_requests_total"]
        }
        assert counted == {
            ("acme", "small", "200"): 2, ("other", "small", "200"): 2, ("acme", "", "404"): 2, ("other", "", "404"): 2,
        }  # fmt: skip


async def test_requests_in_flight_rise_and_fall_also_when_clients_leave(tmp_path):
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": FakeBackend(delay_s=20)}) as made:
        headers = {"authorization": f"Bearer {made.key()}"}
        waiting = [
            asyncio.ensure_future(made.http.post(f"{made.base}/v1/chat/completions", json=chat("hi"), headers=headers))
            for _ in range(3)
        ]
        await until(made, 3.0)
        for one in waiting:
            one.cancel()
        assert all(
            isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*waiting, return_exceptions=True)
        )
        await until(made, 0.0)


async def until(made, running):
    for _ in range(200):
        ((_, value),) = (await scrape(made))["domicile_requests_in_flight"]
        if value == running:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{value} in flight, not {running}")


async def test_metrics_hold_nothing_that_anybody_said(tmp_path):
    async with lab(tmp_path) as made:
        await made.post(chat("Zeppelin", model="Zeppelin"))
        await made.post(chat("Zeppelin", stream=True))
        await made.post(None, raw=b"Zeppelin")
        async with made.http.post(made.base + "/v1/completions", data=b"{}", headers={"authorization": "Zeppelin"}):
            pass
        assert "Zeppelin" not in (await made.get("/metrics")).body.decode()


async def test_without_a_tracer_a_step_costs_nothing():
    telemetry = Telemetry()
    assert telemetry.step("parse") is telemetry.step("call")


# --- latency and labels ----------------------------------------------------------------------------------------------


def outcome(made):
    return [event for event in made.events() if event["type"] == "inference.completed"][-1]


async def counted(made, name):
    found = await scrape(made)
    return sum(value for labels, value in found.get(name, []))


FIRST, EACH = "gen_ai_server_time_to_first_token_seconds", "gen_ai_server_time_per_output_token_seconds"


async def test_a_whole_answer_of_a_server_that_does_not_say_has_no_time_to_first_token(tmp_path):
    async with lab(tmp_path) as made:
        assert (await made.post(chat("hi"))).status == 200
        assert "ttft_ms" not in outcome(made)
        assert await counted(made, f"{FIRST}_count") == await counted(made, f"{EACH}_count") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_own_time_to_first_token_is_taken_with_the_way_to_it(tmp_path, stream):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(first_token_ms=4_000_000.0, delay_s=0.02)}
    async with lab(tmp_path, backends=backends) as made:
        assert (await made.post(chat("hi", stream=stream))).status == 200
        assert 4_000_000 <= outcome(made)["ttft_ms"] < 4_060_000
        assert await counted(made, f"{FIRST}_count") == await counted(made, f"{EACH}_count") == 1
        assert 4_000 <= await counted(made, f"{FIRST}_sum") < 4_060


async def test_a_stream_is_timed_to_its_first_text_and_not_to_the_role_before_it(tmp_path):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(delay_s=0.3, pieces=2)}
    async with lab(tmp_path, backends=backends) as made:
        assert (await made.post(chat("hi", stream=True))).status == 200
        assert outcome(made)["ttft_ms"] >= 300
        assert await counted(made, f"{FIRST}_count") == 1


@pytest.mark.parametrize("said", [-1, "4", True, float("nan"), 1e300, [4], {}])
async def test_a_time_that_makes_no_sense_is_unknown_and_no_reason_to_refuse(tmp_path, said):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(first_token_ms=said)}
    async with lab(tmp_path, backends=backends) as made:
        answer = await made.post(chat("hi"))
        assert answer.status in (200, 502)  # NaN is no JSON
        assert "ttft_ms" not in made.acts()[-1]


async def test_refused_calls_are_labelled_by_tenant_and_by_a_model_that_there_is(tmp_path):
    limited = POLICY + "limits: {tpm: 1000}\n"
    abroad = {"acme/us-east/acme-us": FakeBackend()}
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", limited), backends=abroad) as made:
        for body in (chat("hi"), chat("hi", max_tokens=5000), {**chat("hi"), "model": "made-up"}, chat("hi", n=0),
                     {**chat("hi", n=0), "model": "made-up"}, {**chat("hi"), "model": 7}):  # fmt: skip
            await made.post(body)
        await made.post(None, raw=b"{")
        await made.post(chat("hi"), key="dmc_none")
        found = (await scrape(made))["domicile_requests_total"]
        assert {
            (labels["tenant"], labels["gen_ai_request_model"], labels["http_response_status_code"])
            for labels, _ in found
        } == {
            ("acme", "small", "403"),
            ("acme", "small", "429"),
            ("acme", "", "404"),
            ("acme", "small", "400"),  # of a body whose other fields are wrong
            ("acme", "", "400"),
            ("", "", "401"),
        }


async def test_what_a_backend_refuses_is_counted_as_refused_and_not_as_aborted(tmp_path):
    unwilling = FakeBackend(status=400, error={"message": "no", "code": "a_code_of_its_own"})
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": unwilling}) as made:
        assert (await made.post(chat("hi"))).status == 400
        unwilling.status = 500
        assert (await made.post(chat("hi"))).status == 502
        found = await scrape(made)
        assert [labels["reason"] for labels, _ in found["domicile_aborted_total"]] == ["backend_error"]
        codes = {labels["code"] for labels, count in found["domicile_errors_total"] if count}
        assert codes == {"backend_refused", "backend_error"}
        database = made.gateway.directory._database
        for _ in range(100):
            (line,) = usage(database, tenant="acme") or [None]
            if line is not None and line.requests == 2:
                break
            await asyncio.sleep(0.05)
        assert (line.requests, line.refused, line.aborted, line.completed) == (2, 1, 1, 0)
