"""A route is one declaration: what depends on it is read from there."""

import json

import pytest

from backend.wire import CompletionRequest
from gateway.errors import BackendFailed
from gateway.openai.checked_call import parse_call
from gateway.openai.endpoints import ENDPOINTS, Endpoint
from policy.redact.actions.plan import RedactionPlan
from policy.redact.redactor import Redactor

MASK = Redactor(RedactionPlan({"email": "mask", "card": "mask", "phone": "mask"}, {}))
MAIL = "carl@example.org"
LONG = 4111111111111111


class Scored(CompletionRequest):
    """The wire model of a route that does not exist, with a parameter of its own."""

    query: str
    spread: int | None = None


SCORE = Endpoint("score", "/v1/score", "score", Scored, {"query": "text", "prompt": "text"})


def redacted(endpoint, body):
    return MASK.redact_body(body, endpoint.layout, "k7f3").body


def test_a_declared_route_is_validated_and_redacted_without_another_list_of_its_fields():
    call = parse_call(SCORE, json.dumps({"model": "m", "prompt": "x", "query": MAIL, "spread": LONG}).encode())
    assert redacted(SCORE, call.body) == {"model": "m", "prompt": "x", "query": "[EMAIL]", "spread": LONG}


def test_a_number_in_a_field_that_the_route_does_not_have_is_searched_as_text():
    assert redacted(SCORE, {"model": "m", "account": LONG})["account"] == "[CARD]"
    assert redacted(SCORE, {"model": "m", "spread": {"account": LONG}})["spread"] == {"account": "[CARD]"}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_every_parameter_of_a_wire_model_is_a_field_of_its_layout(endpoint):
    assert endpoint.layout.fields == endpoint.request_type.model_fields.keys()
    assert endpoint.prompts.keys() <= endpoint.layout.fields


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"null", b"no JSON", b'{"choices": {}}', b'{"data": [1]}'])
def test_what_is_no_answer_of_a_route_is_the_backends_fault(endpoint, raw):
    with pytest.raises(BackendFailed):
        endpoint.answer.read(raw)


def test_names_and_paths_are_unique():
    for field in ("name", "path", "operation"):
        assert len({getattr(endpoint, field) for endpoint in ENDPOINTS}) == len(ENDPOINTS)
