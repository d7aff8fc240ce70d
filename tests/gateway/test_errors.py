import gc
import json
import weakref

import pytest
from pydantic import ValidationError

from backend.wire import ChatCompletionRequest, ErrorBody
from gateway import errors
from gateway.errors import (
    BackendRefused,
    GatewayError,
    InvalidRequest,
    LimitReached,
    NotAuthenticated,
    PolicyDenied,
    forget_frames,
    invalid_body,
)
from gateway.openai.checked_call import parse_call
from gateway.openai.endpoints import CHAT
from policy.reason import Reason


def all_errors(base=GatewayError):
    for kind in base.__subclasses__():
        yield kind
        yield from all_errors(kind)


@pytest.mark.parametrize("kind", list(all_errors()), ids=lambda kind: kind.__name__)
def test_every_error_has_an_openai_body_and_stands_in_the_tree_of_the_docstring(kind):
    special = {BackendRefused: (400, {"message": "m"}), PolicyDenied: ([Reason("rule", "b-1", "m", "GDPR 44")],)}
    error = kind(*special.get(kind, ("m",)))
    body = ErrorBody.model_validate_json(error.body())
    assert "m" in body.error.message
    assert 400 <= error.http_status < 600
    assert kind.__name__ in errors.__doc__


def test_retry_after_is_whole_seconds_and_at_least_one():
    assert LimitReached("m", retry_after_s=0.2).headers() == [(b"retry-after", b"1")]
    assert LimitReached("m", retry_after_s=7.4).headers() == [(b"retry-after", b"8")], "waiting so long is enough"
    assert LimitReached("m").headers() == [(b"x-should-retry", b"false")], "waiting does not help"


def test_a_missing_key_is_asked_for():
    assert NotAuthenticated("m").headers() == [(b"www-authenticate", b'Bearer realm="domicile"')]


def test_the_backends_own_error_is_kept():
    error = BackendRefused(400, {"message": "too long", "type": "t", "param": "messages", "code": "c"})
    assert json.loads(error.body())["error"] == {"message": "too long", "type": "t", "param": "messages", "code": "c"}


def test_no_value_of_a_wrong_field_is_quoted():
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate_json(b'{"model":"m","messages":"my IBAN is DE89"}')
    error = invalid_body(caught.value.errors(include_url=False, include_input=False))
    assert b"DE89" not in error.body()


def test_a_refusal_by_policy_carries_rule_reason_and_article():
    error = PolicyDenied([Reason("residency.process_in", "us-1", "computes in US, policy asks for EEA", "GDPR 44")])
    body = json.loads(error.body())["error"]
    assert body["code"] == "residency_denied"
    assert body["reasons"] == [
        {
            "rule": "residency.process_in", "candidate": "us-1", "because": "computes in US, policy asks for EEA",
            "article": "GDPR 44",
        }
    ]  # fmt: skip
    assert "us-1: computes in US, policy asks for EEA" in body["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user"}, {"role": "x", "tool_calls": [{"function": {"arguments": 5}}]}]},
         "messages.1.tool_calls.0.function.arguments"),
        ({"messages": [{"role": "x", "tool_calls": [{"function": 5}]}]}, "messages.0.tool_calls.0.function"),
        ({"messages": [{"role": "x", "content": [{"type": "text", "text": 5}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "x"}], "stop": ["a", 5]}, "stop.1"),
        ({"messages": [{"role": "x"}], "stream_options": {"include_usage": 5}}, "stream_options.include_usage"),
        ({"messages": [{"role": "x"}], "logit_bias": {"my secret": "x"}}, "logit_bias"),
    ],
)  # fmt: skip
def test_the_place_of_a_fault_names_every_step_of_the_way_to_it(body, param):
    with pytest.raises(InvalidRequest) as refused:
        parse_call(CHAT, json.dumps({"model": "m", **body}).encode())
    assert refused.value.param == param
    assert refused.value.message.startswith(f"{param}: ")


class Body:
    """Something that can be watched going."""


def test_what_was_refused_is_let_go_of_without_a_collection_of_garbage():
    def raises(body):
        refused = InvalidRequest("no")
        raise refused  # the frame holds the error that holds the frame

    def refused_again(body):
        try:
            raises(body)
        except InvalidRequest:
            raise GatewayError("no") from None

    def handled():
        body = Body()
        try:
            refused_again(body)
        except GatewayError as error:
            forget_frames(error)
        return weakref.ref(body)

    gc.disable()
    try:
        assert handled()() is None
    finally:
        gc.enable()
