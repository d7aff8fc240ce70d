"""A secret put into every input there is shows up in no log, span, metric, error or record.

The inputs are generated: from the admin API's OpenAPI document and the models of the wire.
"""

import json
import logging
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from backend.wire import ChatCompletionRequest, CompletionRequest
from gateway.admin.app import PREFIX, build_admin
from tests.fakes.disk import bytes_of
from tests.fakes.lab import chat, lab

CANARY = "CANARY_5f1d_Zq"
DOCUMENT = build_admin(None).openapi()
INFERENCE = {
    "/v1/chat/completions": (ChatCompletionRequest, chat("hi")),
    "/v1/completions": (CompletionRequest, {"model": "small", "prompt": "hi"}),
}
HEADERS = (
    "authorization", "cookie", "user-agent", "if-match", "idempotency-key", "origin", "x-forwarded-for", "x-request-id",
    "traceparent", "tracestate", "x-domicile-debug", "accept", "content-type", "openai-organization",
)  # fmt: skip


def planted(schema, definitions, base):
    """`base` with the canary in each place of `schema` in turn: as value of any type, as name, as one field more."""
    schema = definitions[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
    yield CANARY
    yield [CANARY]
    yield {CANARY: CANARY}
    for branch in schema.get("anyOf", ()):
        yield from planted(branch, definitions, base)
    if "items" in schema:
        inner = base[0] if isinstance(base, list) and base else None
        for each in planted(schema["items"], definitions, inner):
            yield [each]
    if schema.get("type") == "object":
        base = base if isinstance(base, dict) else {}
        yield {**base, CANARY: 1}
        yield {**base, "more": CANARY}
        for name, inner in schema.get("properties", {}).items():
            for each in planted(inner, definitions, base.get(name)):
                yield {**base, name: each}


def bodies_of(schema, definitions, base):
    seen = {json.dumps(each, sort_keys=True): each for each in planted(schema, definitions, base)}
    return list(seen.values())


def raw_bodies():
    yield CANARY.encode(), "application/json"
    yield b'{"' + CANARY.encode(), "application/json"
    yield b'{"a": ' + CANARY.encode() + b"}", "application/json"
    yield b"a=" + CANARY.encode(), "application/x-www-form-urlencoded"
    part = b'--%b\r\ncontent-disposition: form-data; name="%b"; filename="%b"\r\n\r\n%b\r\n--%b--\r\n'
    yield part % ((CANARY.encode(),) * 5), f"multipart/form-data; boundary={CANARY}"
    yield b"\xff" + CANARY.encode(), f"text/{CANARY}"


def admin_operations():
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_the_inputs_are_all_there():
    schema = ChatCompletionRequest.model_json_schema()
    bodies = [json.dumps(each) for each in bodies_of(schema, schema["$defs"], chat("hi"))]
    for place in (
        f'"model": "{CANARY}"', f'"content": "{CANARY}"', f'"arguments": "{CANARY}"', f'"stop": ["{CANARY}"]',
        f'"{CANARY}": 1', f'"text": "{CANARY}"', f'"user": "{CANARY}"', f'"n": "{CANARY}"',
    ):  # fmt: skip
        assert any(place in body for body in bodies), place
    assert len(bodies) > 100


@pytest.fixture
def spans(monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("gateway.server.assembly.exporting_tracer", lambda *_: provider.get_tracer("domicile"))
    return exporter


class Watch:
    """Sends, and looks at what comes back for everything but success."""

    def __init__(self, made):
        self.made = made
        self.statuses = []

    async def send(self, method, path, headers, *, data=None, what, quotes=False):
        url = self.made.base + path
        async with self.made.http.request(method, url, headers=headers, data=data, allow_redirects=False) as answer:
            text = await answer.text()
            self.statuses.append(answer.status)
            if answer.status >= 400 and not quotes:
                assert CANARY not in text, (what, text)
            assert CANARY not in str(answer.headers), what
            assert answer.status != 500, what


async def everything_written(made, spans, caplog, capfd):
    shown = (await made.get("/metrics")).body.decode()
    yield "metrics", shown
    yield "spans", "".join(span.to_json() for span in spans.get_finished_spans())
    yield "logs", caplog.text
    out, err = capfd.readouterr()
    yield "output", out + err
    for file in (made.data / "audit").rglob("*"):
        if file.is_file():
            yield str(file.name), bytes_of(file).decode("latin-1")


async def nothing_shows(made, spans, caplog, capfd):
    places = [place async for place in everything_written(made, spans, caplog, capfd)]
    assert {"metrics", "spans", "logs", "log.db"} <= {name for name, _ in places}
    for name, text in places:
        assert CANARY not in text, (name, text[max(0, text.find(CANARY) - 200) :][:400])
        assert CANARY.lower() not in text, name


async def test_nothing_that_is_sent_to_be_inferred_shows(tmp_path, spans, caplog, capfd):
    caplog.set_level(logging.INFO)
    async with lab(tmp_path, telemetry={"otlp_endpoint": "http://127.0.0.1:1"}) as made:
        watch, key = Watch(made), {"authorization": f"Bearer {made.key()}", "content-type": "application/json"}
        for path, (model, base) in INFERENCE.items():
            schema = model.model_json_schema()
            for body in bodies_of(schema, schema.get("$defs", {}), base):
                await watch.send("POST", path, key, data=json.dumps(body), what=body)
            for name in HEADERS:
                await watch.send("POST", path, {**key, name: CANARY}, data=json.dumps(base), what=name)
            await watch.send("POST", path, {**key, f"x-{CANARY}": CANARY}, data=json.dumps(base), what="a header")
            bearer = {**key, "authorization": f"Bearer {CANARY}"}
            await watch.send("POST", f"{path}?{CANARY}={CANARY}", bearer, data=json.dumps(base), what="bearer")
            for raw, kind in raw_bodies():
                await watch.send("POST", path, {**key, "content-type": kind}, data=raw, what=raw)
        for path in (f"/v1/models/{CANARY}", f"/v1/{CANARY}", f"/{CANARY}?x={CANARY}", f"/v1/models?{CANARY}"):
            # an address that is none of ours is named in the answer, to whom it came from
            await watch.send("GET", path, key, what=path, quotes=not path.startswith("/v1/models"))
        assert watch.statuses.count(200) > 50, "some went all the way"
        assert sum(status >= 400 for status in watch.statuses) > 50
        await nothing_shows(made, spans, caplog, capfd)


async def test_nothing_that_is_sent_to_administer_shows(tmp_path, spans, caplog, capfd):
    caplog.set_level(logging.INFO)
    from tests.gateway.admin.conftest import BODIES

    async with lab(tmp_path, telemetry={"otlp_endpoint": "http://127.0.0.1:1"}) as made:
        watch = Watch(made)
        person = made.control.create_person(None, "Root", ["operator"])
        _, token = made.control.create_token(None, person.id, expires_at=datetime.now(UTC) + timedelta(days=1))
        operator = {"authorization": f"Bearer {token.token}", "content-type": "application/json"}
        schemas = DOCUMENT["components"]["schemas"]
        for method, path, operation in admin_operations():
            in_path = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"]
            nobody = dict.fromkeys(in_path, "0" * 8) | {"record_number": "0"}
            nothing = {"backend": "acme-nobody", "region": "eu-fr-par", "deployment": "nothing"}
            there = {**nobody, "tenant": "acme", "project": "main", "proposal": "1", **nothing}
            url = PREFIX + path.format(**there)
            name = operation["operationId"].removesuffix("_of_staff")
            content = json.dumps(BODIES.get(name))
            for parameter in operation["parameters"]:
                if parameter["in"] == "path":
                    at = path.format(**{**there, parameter["name"]: CANARY})
                    await watch.send(method, PREFIX + at, operator, data=content, what=at)
                elif parameter["in"] == "query":
                    await watch.send(method, f"{url}?{parameter['name']}={CANARY}", operator, data=content, what=url)
            for header in HEADERS:
                if "revoke" not in path and "logout" not in path:
                    await watch.send(method, url, {**operator, header: CANARY}, data=content, what=(url, header))
            await watch.send(method, url, {"authorization": f"Bearer {CANARY}"}, data=content, what=url)
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                for body in bodies_of(schema, schemas, BODIES[name]):
                    if isinstance(body, dict) and CANARY in body.get("models", ()):
                        continue  # the record names the models that answer (AI Act 12(2)); gateways offer them by name
                    if isinstance(body, dict) and CANARY in (body.get("ai_system_id"), body.get("authority")):
                        continue  # the record of an incident names system and authority (AI Act 73, NIS2 23)
                    # who writes a policy is told what is wrong with it in its own words
                    # and an operator which weights there are none of
                    quotes = isinstance(body, dict) and CANARY in f"{body.get('document')}{body.get('weights')}"
                    await watch.send(method, url, operator, data=json.dumps(body), what=(url, body), quotes=quotes)
                for raw, kind in raw_bodies():
                    await watch.send(method, url, {**operator, "content-type": kind}, data=raw, what=(url, raw))
        await watch.send("GET", f"{PREFIX}/{CANARY}?{CANARY}", operator, what="path")
        assert watch.statuses.count(201) > 20, "some were done"
        assert sum(status >= 400 for status in watch.statuses) > 200
        await nothing_shows(made, spans, caplog, capfd)
