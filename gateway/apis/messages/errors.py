"""Errors in the shape of Anthropic's API. Source: its API reference, Errors."""

from typing import Final

from pydantic_core import to_json

from gateway.errors import GatewayError

TYPES: Final = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
    504: "timeout_error",
}  # fmt: skip


def error_body(error: GatewayError) -> bytes:
    """The code is in ``details.error_code``, where Anthropic's SDKs look for it; beside type and message there are also
    the members that OpenAI's errors have, where they say something."""
    status = error.http_status
    kind = TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    told = {"type": kind, "message": error.message, "code": error.code, "param": error.param, **error.details}
    if error.code is not None:
        told["details"] = {"error_code": error.code}
    return to_json({"type": "error", "error": {name: value for name, value in told.items() if value is not None}})


def error_event(error: GatewayError) -> bytes:
    return b"event: error\ndata: %b\n\n" % error_body(error)
