"""Calls by the names that a project gives to models: which model is asked, and which one after it.

A name is resolved once, before anything is decided. The policy then judges the model itself, and each model that the
call falls back to by itself.
"""

from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import format_datetime
from typing import Any
from urllib.parse import quote

from gateway.errors import (
    BackendFailed,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
    ModelNotFound,
    PolicyDenied,
)
from gateway.openai.answer_formats import Vectors
from gateway.openai.asgi_client import Header
from gateway.openai.checked_call import Call
from gateway.records.model_names import ModelNameRecord
from policy.reason import Reason

FALLBACK = "model.fallback"


@dataclass(frozen=True, slots=True)
class Naming:
    """How a call came to its model. `asked`: the name that the client sent. `left`: models to fall back to. `passed`:
    why those before were not asked, or did not answer."""

    asked: str
    record: ModelNameRecord
    left: tuple[str, ...]
    passed: tuple[Reason, ...] = ()


def resolved(call: Call, record: ModelNameRecord) -> tuple[Call, Naming]:
    """The call of the first model that the name stands for, with the defaults of the name where the caller sets
    nothing.

    Vectors of two models cannot be compared, so a call for embeddings falls back only where `other_vectors` says so.
    """
    first, *others = record.targets
    if isinstance(call.endpoint.answer, Vectors) and not record.other_vectors:
        others = []
    return _of(call, first, _defaults(call, record)), Naming(call.model, record, tuple(others))


def next_model(call: Call, naming: Naming, error: GatewayError) -> tuple[Call, Naming]:
    """The same call of the next model. Raises `error` where there is none, or where another model would not help."""
    if not naming.left or not _is_of_the_model(error):
        raise error
    because = f"{call.model[:100]} did not answer: {_why(error)}"[:500]
    passed = (*naming.passed, Reason(FALLBACK, None, because))
    return _of(call, naming.left[0], {}), replace(naming, left=naming.left[1:], passed=passed)


def headers(naming: Naming, served: str) -> list[Header]:
    """Which model answers, and what is to become of the name (RFC 9745, RFC 8594, RFC 5829)."""
    record = naming.record
    told = [(b"x-domicile-model", quote(served, safe="/:@+").encode())]
    if record.deprecated_at is not None:
        told.append((b"deprecation", b"@%d" % record.deprecated_at.timestamp()))
    if record.sunset_at is not None:
        told.append((b"sunset", format_datetime(record.sunset_at.astimezone(UTC), usegmt=True).encode()))
    if record.replacement is not None:
        link = f'</v1/models/{quote(record.replacement, safe="")}>; rel="successor-version"'
        told.append((b"link", link.encode()))
    return told


def _defaults(call: Call, record: ModelNameRecord) -> dict[str, Any]:
    """Those of parameters that the caller does not set; none where no tokens are generated."""
    if not call.endpoint.generates or call.endpoint.sends is not None:
        return {}
    own = call.body
    told = {name: value for name, value in record.defaults.items() if own.get(name) is None}
    if call.request.longest_answer is not None:
        told.pop("max_tokens", None)
    return told


def _of(call: Call, model: str, more: dict[str, Any]) -> Call:
    changed = {"model": model, **more}
    request = call.request.model_copy(update=changed)
    return Call(call.endpoint, request, {**call.body, **changed}, call.raw, call.translation)


def _is_of_the_model(error: GatewayError) -> bool:
    """Whether the call may succeed with another model: its place is forbidden, or nothing there answers. A request that
    is refused as such is refused by every model."""
    if isinstance(error, BackendRefused | BackendFailed):
        return error.elsewhere
    return isinstance(error, PolicyDenied | ModelNotFound | BackendUnavailable | BackendTimeout)


def _why(error: GatewayError) -> str:
    if isinstance(error, PolicyDenied):
        first = error.reasons[0]
        return f"{first.rule}: {first.because}"
    return error.code or "refused"
