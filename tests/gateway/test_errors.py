import json

import pytest
from pydantic import ValidationError

from backend.wire import ChatCompletionRequest, ErrorBody
from gateway import errors
from gateway.errors import BackendRefused, GatewayError, LimitReached, NotAuthenticated, invalid_body


def all_errors(base=GatewayError):
    for kind in base.__subclasses__():
        yield kind
        yield from all_errors(kind)


@pytest.mark.parametrize("kind", list(all_errors()), ids=lambda kind: kind.__name__)
def test_every_error_has_an_openai_body_and_stands_in_the_tree_of_the_docstring(kind):
    error = kind(400, {"message": "m"}) if kind is BackendRefused else kind("m", param="p")
    body = ErrorBody.model_validate_json(error.body())
    assert body.error.message == "m"
    assert 400 <= error.http_status < 600
    assert kind.__name__ in errors.__doc__


def test_retry_after_is_whole_seconds_and_at_least_one():
    assert LimitReached("m", retry_after_s=0.2).headers() == [(b"retry-after", b"1")]
    assert LimitReached("m", retry_after_s=7.4).headers() == [(b"retry-after", b"7")]
    assert LimitReached("m").headers() == []


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
