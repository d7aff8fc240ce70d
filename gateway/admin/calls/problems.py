"""Error responses of the admin API: RFC 9457 problem details, and the mapping of errors to status codes.

No response contains a token. Objects of another tenant get the same response as objects that do not exist.
"""

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from audit.errors import AuditError
from gateway.database.errors import DatabaseUnavailable, Duplicate, Invalid, InvalidValue, NotFound, NotReady, Stale
from gateway.identity.keys import KeyRefused
from gateway.identity.login import ProviderUnavailable
from gateway.nearest_route import unknown_admin_url
from gateway.store.idempotent_answers import Pending

MEDIA_TYPE = "application/problem+json"


INVALID_VALUE = "urn:domicile:invalid-value"


class Forbidden(Exception):
    """The caller's roles do not permit the call. The message names those that do."""


class LoginRefused(Exception):
    """A login was refused. `reason`: a code for the record."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Problem(BaseModel):
    """Problem details (RFC 9457). `detail`: for people; programs use `status` and, of a 422, `type`: `INVALID_VALUE`
    for what no state of the installation accepts. `errors`: message by invalid field."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: dict[str, str] = Field(default_factory=dict)


STATUS: dict[type[Exception], HTTPStatus] = {
    KeyRefused: HTTPStatus.UNAUTHORIZED,
    Forbidden: HTTPStatus.FORBIDDEN,
    LoginRefused: HTTPStatus.FORBIDDEN,
    NotFound: HTTPStatus.NOT_FOUND,
    Duplicate: HTTPStatus.CONFLICT,
    Pending: HTTPStatus.CONFLICT,
    NotReady: HTTPStatus.CONFLICT,
    Stale: HTTPStatus.PRECONDITION_FAILED,
    Invalid: HTTPStatus(422),
    DatabaseUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    ProviderUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    AuditError: HTTPStatus.SERVICE_UNAVAILABLE,
}


def install_handlers(app: FastAPI) -> None:
    for kind, status in STATUS.items():
        app.add_exception_handler(kind, _handler(status))
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(Exception, _failed)


def problem(
    status: int,
    detail: str,
    *,
    errors: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    kind: str = "about:blank",
) -> Response:
    body = Problem(type=kind, title=HTTPStatus(status).phrase, status=status, detail=detail, errors=dict(errors or {}))
    more = {"www-authenticate": 'Bearer realm="domicile admin"'} if status == HTTPStatus.UNAUTHORIZED else {}
    return JSONResponse(body.model_dump(), status, headers={**more, **(headers or {})}, media_type=MEDIA_TYPE)


def _handler(status: HTTPStatus):  # type: ignore[no-untyped-def]  # Starlette's own type is a union of callables
    async def handle(request: Request, error: Exception) -> Response:
        wait = getattr(error, "retry_after_s", None)
        kind = INVALID_VALUE if isinstance(error, InvalidValue) else "about:blank"
        return problem(status, str(error), headers={"retry-after": str(wait)} if wait else None, kind=kind)

    return handle


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # what it was registered for
    headers = {"allow": _allowed(request)} if error.status_code == 405 else error.headers
    detail = error.detail
    if error.status_code == 404 and detail == HTTPStatus.NOT_FOUND.phrase:  # from the router: no route has this path
        root = request.scope.get("root_path", "")
        paths = [f"{root}{path}" for path in request.app.state.paths]
        detail = unknown_admin_url(request.method, request.url.path, paths, f"{root}/openapi.json")
    return problem(error.status_code, detail, headers=headers)


def _allowed(request: Request) -> str:
    """Return the methods of all routes with this URL (RFC 9110 §15.5.6). Starlette names those of the first one
    only."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return ", ".join(sorted({m for regex, methods in request.app.state.methods if regex.match(path) for m in methods}))


async def _invalid_request(request: Request, error: Exception) -> Response:
    """Respond with the place and rule of each error, but not with the value, which may be a secret in the wrong
    field."""
    assert isinstance(error, RequestValidationError)  # noqa: S101
    errors = {}
    for each in error.errors():
        known, message = each["loc"], each["msg"]
        if each["type"] in {
            "extra_forbidden",
            "json_invalid",
        }:  # the last part is text of the caller, or a position in it
            known, message = known[:1] if each["type"] == "json_invalid" else known[:-1], _OTHER_WORDS[each["type"]]
        errors[".".join(map(str, known))] = message
    return problem(422, "the request does not match the OpenAPI document; correct the fields in errors", errors=errors)


_OTHER_WORDS = {"extra_forbidden": "has an unknown field", "json_invalid": "is not JSON"}


async def _failed(request: Request, error: Exception) -> Response:
    return problem(
        500, "the gateway failed, and it is unknown whether anything changed; look at its log, then try again"
    )
