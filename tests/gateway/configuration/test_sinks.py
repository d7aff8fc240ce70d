"""What of a call comes to lie beside its backend is bound by its policy as well: the record, and spans."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.configuration.provenance import mistakes
from gateway.configuration.settings import SettingsError, load_settings
from gateway.configuration.sinks import RECORD, SPANS, sinks_of
from gateway.installation.installation import Installation
from gateway.request.spans import ResidentSpans
from policy.facts import Sink
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab

OTLP = {"otlp_endpoint": "https://otel.example/v1/traces"}
STEPS = {"authenticate", "parse", "limit", "decide", "redact", "route", "write_ahead", "call", "restore", "record"}
GERMAN = POLICY.replace("store_in: EEA", "store_in: [DE, FR]")
STRICT = """
policy: strict
version: 1
rules:
  - {name: hr-stays-in-germany, when: {data_classes: [hr]}, store_in: [DE]}
"""


@pytest.fixture
def exported(monkeypatch):
    """What a collector on another host gets."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ResidentSpans(SimpleSpanProcessor(exporter)))

    def tracer(endpoint, ratio, node, by_policy):
        assert by_policy
        return provider.get_tracer("domicile")

    monkeypatch.setattr("gateway.server.assembly.exporting_tracer", tracer)
    return exporter


@pytest.mark.parametrize(("country", "status"), [("FR", 200), ("US", 403), ("CA", 403), ("GB", 403)])
async def test_a_call_whose_record_would_lie_outside_is_refused_and_sent_nowhere(tmp_path, country, status):
    backend = FakeBackend()
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}, sinks={"record": country}) as made:
        answer = await made.post(chat("hello"))
        assert answer.status == status
        if status == 403:
            (reason,) = answer.error["reasons"]
            assert (reason["rule"], reason["article"]) == ("residency.store_in", "GDPR 44")
            assert reason["because"].startswith(f"the record is kept in {country}, ")
    assert len(backend.bodies) == (status == 200)


async def test_each_tenant_and_each_rule_binds_for_itself(tmp_path):
    def set_up(made):
        made.tenant("acme", GERMAN)
        made.project("acme", "hr", policy=STRICT, data_classes=["hr"])
        made.project("acme", "shop", policy=STRICT)

    async with lab(tmp_path, set_up=set_up, sinks={"record": "FR"}) as made:
        assert (await made.post(chat("hello"), key="acme/shop")).status == 200
        refused = await made.post(chat("hello"), key="acme/hr")
        assert refused.status == 403
        assert "rules.hr-stays-in-germany.store_in" in {reason["rule"] for reason in refused.error["reasons"]}


async def test_spans_leave_for_a_country_that_the_policy_allows_whole_calls_at_a_time(tmp_path, exported):
    async with lab(tmp_path, telemetry=OTLP, sinks={"telemetry": "DE"}) as made:
        assert (await made.post(chat("hello"))).status == 200
        spans = exported.get_finished_spans()
        assert len({span.context.trace_id for span in spans}) == 1
        # Steps repeat if the backend's evidence is read during the call
        assert {span.name.removeprefix("domicile.") for span in spans} == STEPS | {"chat"}


@pytest.mark.parametrize("sinks", [{}, {"telemetry": "US"}])
async def test_spans_stay_here_where_the_policy_does_not_let_them_go_and_the_call_is_answered(
    tmp_path, exported, sinks
):
    async with lab(tmp_path, telemetry=OTLP, sinks=sinks) as made:
        assert (await made.post(chat("hello"))).status == 200
    assert exported.get_finished_spans() == ()


async def test_spans_of_calls_that_no_policy_allowed_stay_here(tmp_path, exported):
    async with lab(tmp_path, telemetry=OTLP, sinks={"telemetry": "DE"}) as made:
        assert (await made.post(chat("hello"), key="dom_live_nobody")).status == 401
        assert (await made.post({**chat("hello"), "model": "other"})).status == 404
    assert exported.get_finished_spans() == ()


def test_a_trace_that_a_caller_began_is_judged_call_by_call():
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ResidentSpans(SimpleSpanProcessor(exporter)))
    tracer = provider.get_tracer("t")
    for allowed in (True, False):
        with tracer.start_as_current_span("call") as call:
            with tracer.start_as_current_span("step"):
                pass
            if allowed:
                call.set_attribute("domicile.policy.spans_may_leave", True)
    assert [span.name for span in exporter.get_finished_spans()] == ["step", "call"]


def test_what_is_said_of_sinks_becomes_facts():
    assert sinks_of(load_settings(), {}) == ()
    assert sinks_of(load_settings(telemetry={"otlp_endpoint": "http://127.0.0.1:4318"}), {}) == ()
    assert sinks_of(load_settings(telemetry=OTLP, sinks={"record": "FR"}), {}) == (
        Sink(name=RECORD, country="FR", setting="sinks.record"),
        Sink(name=SPANS, country=None, required=False, setting="sinks.telemetry"),
    )


UNKNOWN = Sink(name=RECORD, country=None, setting="sinks.record")
ELSEWHERE = "postgresql://u@db.internal/control"


@pytest.mark.parametrize(
    ("listen", "environment", "found"),
    [
        ({}, {}, ()),
        ({"host": "::1"}, {"DOMICILE_DATABASE_URL": "postgresql://u@127.0.0.1/c"}, ()),
        ({}, {"DOMICILE_DATABASE_URL": "postgresql:///c?host=/var/run/postgresql"}, ()),
        ({}, {"DOMICILE_REDIS_URL": "unix:///run/redis"}, ()),
        ({"tls_ended_by_proxy": True}, {}, (UNKNOWN,)),
        ({"host": "0.0.0.0", "tls_ended_by_proxy": True}, {}, (UNKNOWN,)),
        ({"host": "10.0.0.4", "cert_file": "c", "key_file": "k"}, {}, (UNKNOWN,)),
        ({}, {"DOMICILE_DATABASE_URL": ELSEWHERE}, (UNKNOWN,)),
        ({}, {"DOMICILE_AUDIT_DATABASE_URL": ELSEWHERE}, (UNKNOWN,)),
        ({}, {"DOMICILE_REDIS_URL": "rediss://cache.internal:6379/0"}, (UNKNOWN,)),
    ],
)
def test_the_record_need_not_be_placed_only_while_callers_and_stores_are_on_this_machine(listen, environment, found):
    assert sinks_of(load_settings(listen=listen), environment) == found


@pytest.mark.parametrize(("sinks", "status"), [({}, 403), ({"record": "DE"}, 200)])
async def test_behind_a_proxy_calls_are_refused_until_the_record_has_a_country(tmp_path, sinks, status):
    backend = FakeBackend()
    listen = {"tls_ended_by_proxy": True}
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}, listen=listen, sinks=sinks) as made:
        answer = await made.post(chat("hello"))
        assert answer.status == status
        if status == 403:
            (reason,) = answer.error["reasons"]
            assert (reason["rule"], reason["because"]) == (
                "facts.missing",
                "where the record is kept is not known: set sinks.record",
            )
            assert "inference.denied" in made.types("acme")
        (said,) = [one for one in made.gateway.configuration_warnings if one.code == "record_country_unknown"] or [None]
        assert (said is None) == bool(sinks) and (said is None or "every call is refused" in said.says)
    assert len(backend.bodies) == (status == 200)


def test_a_configuration_under_which_every_call_is_refused_is_found_before_it_is_started(tmp_path):
    (tmp_path / "cell").write_text("eu-1")
    served = load_settings(data=tmp_path, listen={"host": "0.0.0.0", "tls_ended_by_proxy": True})
    (mistake,) = mistakes(served)
    assert mistake.startswith("sinks.record: ")
    assert mistakes(load_settings(data=tmp_path)) == []
    said = load_settings(data=tmp_path, listen={"tls_ended_by_proxy": True}, sinks={"record": "FR"})
    assert mistakes(said) == []


@pytest.mark.parametrize("country", ["UK", "EU", "fr", "XX", "France", ""])
def test_what_is_no_country_is_refused_with_its_key(country):
    with pytest.raises(SettingsError, match=r"sinks\.record.*ISO 3166"):
        load_settings(sinks={"record": country})


def test_what_a_shell_explains_counts_the_record_too(tmp_path, monkeypatch):
    from tests.fakes.lab import Lab, open_control

    data = tmp_path / "data"
    made = Lab(data, open_control(data))
    made.tenant("acme")
    monkeypatch.setenv("DOMICILE__SINKS__RECORD", "US")
    installation = Installation.open(data)
    database = installation.database()
    try:
        decision = installation.policy_study(database).explain("acme", "main", "small").decision
    finally:
        database.close()
    assert "residency.store_in" in {reason.rule for reason in decision.reasons if reason.candidate is None}
