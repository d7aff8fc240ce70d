"""Every error a client can see, and the one place where errors become answers.

    GatewayError
    ├── InvalidRequest            400  malformed JSON, wrong types, unsupported parameter
    │   ├── RequestTooLarge       413
    │   ├── BodyTooComplex        400  more values, messages or tools than one request may have
    │   ├── UnsupportedEncoding   415  a body in a coding that is not read
    │   ├── ObjectNotFound        404  no such file or batch in the caller's project
    │   ├── ObjectInUse           409  a file that a batch reads, a batch that is over
    │   └── MethodNotAllowed      405
    ├── NotAuthenticated          401  absent, malformed, unknown, expired or revoked key
    ├── OriginNotAllowed          403  a web page that may not call for the key's project
    ├── PolicyDenied              403  the written policy says no; carries the decision's reasons
    ├── ModelNotFound             404  no backend of this tenant serves that model
    ├── RouteNotFound             404
    ├── RedactionRefused          422  a blocked class of data, or text that cannot be inspected
    │   └── ContentUnreadable     422  images, audio, token ids
    ├── LimitReached              429  requests or tokens a minute; says when to retry
    │   ├── TooManyConcurrent     429
    │   ├── BudgetExceeded        429  euros a day or month
    │   └── RequestExceedsLimit   429  more than the whole limit: waiting does not help
    ├── BackendRefused            as the backend said (4xx), with its own OpenAI error body
    ├── InternalError             500
    ├── BackendFailed             502  the backend broke its contract or answered 5xx
    ├── BackendUnavailable        503  no backend could be reached
    │   └── BackendCannotStart    503  of a deployment whose starts keep failing; says why
    ├── AnswerMemoryFull          503  the large answers of all backends together fill what they may hold
    ├── AuditUnavailable          503  nothing may be processed that cannot be recorded
    ├── DirectoryUnavailable      503  keys and policies cannot be trusted to be current
    ├── IdentityUnavailable       503  the identity provider that signed the caller's token does not answer
    ├── LimitsUnavailable         503  what was used already is not known
    ├── ContentUnavailable        503  what is kept sealed cannot be read or written now
    ├── GatewayStopping           503  the gateway ends, and the call took longer than running answers get
    └── BackendTimeout            504

Bodies follow OpenAI's ``{"error": {message, type, param, code}}``, so the SDKs raise their own exception classes.
No message ever quotes a prompt, an answer or a key. Each has the form ``<what>; <how to fix it>``: the fix is in
the message, or in the class for all its messages (`fix`).
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import ceil
from typing import Any, ClassVar

from pydantic_core import ErrorDetails, to_json

from backend.wire import FIELDS
from policy.decision.decision import Decision
from policy.errors import invalid_value
from policy.reason import Reason

MOST_BRANCHES = 32
"""Errors that are looked at for the most telling one."""


class GatewayError(Exception):
    """Base of all errors a client can see; subclasses set status, type and default code.

    `fix`: the remedy of every message of the class that names none itself.
    """

    fix: ClassVar[str] = ""
    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None
    elsewhere: bool = False
    """Whether, after a backend's error, another backend may be asked, as long as the client has received nothing."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.message = f"{message}; {self.fix}" if self.fix and "; " not in message else message
        super().__init__(self.message)
        self.param = param
        self.code = code or self.code
        self.retry_after_s = retry_after_s
        self.details = dict(details or {})
        self.model: str | None = None  # that a body names which was refused before it became a call

    @property
    def http_status(self) -> int:
        return self.status

    @property
    def log_line(self) -> str:
        """The text for a log line, without content of the request."""
        return self.message

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code, **self.details}
        return to_json({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.retry_after_s is None:
            return []
        return [(b"retry-after", str(max(1, ceil(self.retry_after_s))).encode())]  # RFC 9110 §10.2.3: whole seconds


class InvalidRequest(GatewayError):
    status = 400
    type = "invalid_request_error"


class RequestTooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"


class BodyTooComplex(InvalidRequest):
    """Within its bytes, but of more values than one request may have."""

    code = "body_too_complex"


class UnsupportedEncoding(InvalidRequest):
    """`accepts`: the codings that the resource takes, for the Accept-Encoding field (RFC 9110 §12.5.3, §15.5.16)."""

    status = 415
    code = "unsupported_encoding"

    def __init__(self, message: str, *, accepts: str = "identity") -> None:
        super().__init__(message)
        self.accepts = accepts

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"accept-encoding", self.accepts.encode())]


class MethodNotAllowed(InvalidRequest):
    """`allow`: the methods that the resource has, as in the Allow field (RFC 9110 §15.5.6)."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str = "POST") -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"allow", self.allow.encode())]


class ObjectNotFound(InvalidRequest):
    """A file or batch that there is not, or that is another project's: no caller may learn which."""

    status = 404
    code = "not_found"


class ObjectInUse(InvalidRequest):
    status = 409
    code = "conflict"


class NotAuthenticated(GatewayError):
    status = 401
    type = "invalid_request_error"  # what OpenAI answers for a wrong key
    code = "invalid_api_key"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        reason: str | None = None,
        key_id: str | None = None,
        tenant: str | None = None,
    ) -> None:
        """`reason` is a code for the record, `key_id` and `tenant` are of a key that is or was real."""
        super().__init__(message, code=code)
        self.reason = reason
        self.key_id = key_id
        self.tenant = tenant

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"www-authenticate", b'Bearer realm="domicile"')]


class OriginNotAllowed(GatewayError):
    fix = "add it to the project's origins, or call from a server"
    status = 403
    type = "invalid_request_error"
    code = "origin_not_allowed"


class PolicyDenied(GatewayError):
    """`reasons` are the decision's, word for word as in the record and in `policy explain`.

    The code is that of the first rule that refused; where only places, owners and servers are at fault, it is
    ``residency_denied``, and the rules are in the reasons. `decision`: the policy's, if it was the policy that refused.
    """

    status = 403
    type = "policy_denied"
    code = "policy_denied"

    def __init__(self, reasons: Sequence[Reason], decision: Decision | None = None) -> None:
        self.reasons = tuple(reasons)
        self.decision = decision
        said = [{"rule": r.rule, "candidate": r.candidate, "because": r.because, "article": r.article} for r in reasons]
        message = "Policy refuses this request: " + "; ".join(str(reason) for reason in reasons)
        code = reasons[0].rule if reasons else None
        if reasons and all(r.candidate for r in reasons):
            code = "residency_denied"
        super().__init__(message, code=code, details={"reasons": said})


class ModelNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class RouteNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class RedactionRefused(GatewayError):
    status = 422
    type = "redaction_refused"
    code = "redaction_refused"


class ContentUnreadable(RedactionRefused):
    """Images, audio, token ids: no detector can read them, so no policy lets them pass uninspected."""


class LimitReached(GatewayError):
    """`rates`: headers about the limits that apply."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    rates: Sequence[tuple[bytes, bytes]] = ()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Where waiting does not help, a header stops OpenAI's SDKs from retrying."""
        return super().headers() or [(b"x-should-retry", b"false")]


class TooManyConcurrent(LimitReached):
    code = "concurrency_limit_exceeded"


class BudgetExceeded(LimitReached):
    type = "insufficient_quota"  # as OpenAI calls it
    code = "budget_exceeded"


class RequestExceedsLimit(LimitReached):
    code = "request_exceeds_limit"


class BackendRefused(GatewayError):
    """The backend's own 4xx, its OpenAI error body kept. Its text may quote the prompt, so it is never logged, and goes
    to the client through the output filter (`Prompt.filtered`)."""

    type = "invalid_request_error"

    def __init__(self, status: int, error: Mapping[str, Any], retry_after_s: float | None = None) -> None:
        super().__init__(
            str(error.get("message") or "the backend refused the request"),
            param=error.get("param"),
            code=error.get("code"),
            retry_after_s=retry_after_s,
        )
        self._status = status
        self._type = str(error.get("type") or self.type)
        self.elsewhere = self.is_busy

    @property
    def is_busy(self) -> bool:
        return self._status == 429

    @property
    def http_status(self) -> int:
        return self._status

    @property
    def log_line(self) -> str:
        return f"The backend refused the request with {self._status}"

    def saying(self, message: str, param: str | None) -> "BackendRefused":
        """The same refusal in other words."""
        error = {"message": message, "type": self._type, "param": param, "code": self.code}
        return BackendRefused(self._status, error, self.retry_after_s)

    def body(self) -> bytes:
        return to_json({"error": {"message": self.message, "type": self._type, "param": self.param, "code": self.code}})


class InternalError(GatewayError):
    fix = "try again, and report the request id to the operator"
    code = "internal_error"


class BackendFailed(GatewayError):
    """`elsewhere`: what failed is the server or the connection, not what it answered."""

    fix = "try again, and report the request id to the operator if it returns"
    status = 502
    code = "backend_error"

    def __init__(self, message: str, *, code: str | None = None, elsewhere: bool = False) -> None:
        super().__init__(message, code=code)
        self.elsewhere = elsewhere


class BackendUnavailable(GatewayError):
    fix = "try again, and report it to the operator if it returns"
    status = 503
    code = "backend_unavailable"
    elsewhere = True


class BackendCannotStart(BackendUnavailable):
    """The starts of a deployment keep failing: retries do not help until an operator has fixed the cause."""

    code = "backend_cannot_start"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """A header stops OpenAI's SDKs from retrying."""
        return [(b"x-should-retry", b"false")]


class AnswerMemoryFull(GatewayError):
    """Large answers hold all of what the gateway has for them. The backend that sent this one is not at fault."""

    fix = "ask for shorter answers or fewer large ones at once, or try again later"
    status = 503
    code = "answer_memory_full"


class AuditUnavailable(GatewayError):
    fix = "try again later"
    status = 503
    code = "audit_unavailable"


class DirectoryUnavailable(GatewayError):
    fix = "try again later"
    status = 503
    code = "directory_unavailable"


class IdentityUnavailable(GatewayError):
    fix = "try again later, or send an API key"
    status = 503
    code = "identity_unavailable"


class LimitsUnavailable(GatewayError):
    fix = "try again later"
    status = 503
    code = "limits_unavailable"


class ContentUnavailable(GatewayError):
    """The control database, the value store or the keys above it do not answer."""

    fix = "try again later"
    status = 503
    code = "content_unavailable"


class GatewayStopping(GatewayError):
    """The gateway ends, and the call took longer than running answers get."""

    fix = "try again"
    status = 503
    code = "gateway_stopped"


class BackendTimeout(GatewayError):
    fix = "try again, or ask for a shorter answer"
    status = 504
    code = "backend_timeout"


def invalid_body(errors: Sequence[ErrorDetails]) -> InvalidRequest:
    """Name the first field that is wrong. Only the place and the rule: never the value (it may be a prompt)."""
    top = _place(errors[0])
    # Of a union each branch has an error, one that did not fit at all before one that fitted but for a part of it.
    first = max(
        (error for error in errors[:MOST_BRANCHES] if _place(error)[: len(top)] == top),
        key=lambda error: len(_place(error)),
    )
    param = ".".join(map(str, _place(first))) or None
    if first["type"] == "json_invalid":
        reason = str(first.get("ctx", {}).get("error", "")).split(" while ")[0] or first["msg"]
        return InvalidRequest(f"The body is not valid JSON: {reason}; send valid JSON", code="invalid_json")
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_type"
    return InvalidRequest(f"{param or 'body'}: {invalid_value(first)}{more}", param=param, code=code)


def _place(error: ErrorDetails) -> tuple[int | str, ...]:
    return tuple(takewhile(_is_ours, (part for part in error["loc"] if not _names_a_union_branch(part))))


def _is_ours(part: int | str) -> bool:
    """A place in a list or a field of the API; a key of an object with free keys is the caller's word."""
    return isinstance(part, int) or part in FIELDS


def _names_a_union_branch(part: int | str) -> bool:
    """Pydantic adds the branch of a union to the place: ``content.str``, ``content.list[ContentPart]``."""
    return isinstance(part, str) and (part in {"str", "int"} or part.startswith(("list[", "constrained-", "function-")))


def forget_frames(error: BaseException) -> None:
    """Once `error` is answered: let go of the frames that it and its causes passed, and of the bodies in them.

    A frame that raises what it has in a variable is part of a cycle. Its body would live until a collection of garbage,
    which then frees many large ones at once while everything else waits.
    """
    known: BaseException | None = error
    while known is not None:
        known.__traceback__, known = None, known.__cause__ or known.__context__
