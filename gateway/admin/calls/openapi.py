"""OpenAPI document of the admin API: FastAPI's, with additions.

The additions are errors as problem details with their media type, ETags of objects, patterns of names, Idempotency-Key
for changes, and the two security schemes.
"""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from gateway.admin.calls.idempotency import HEADER, KEY, MAX_KEY, METHODS, REPLAYED
from gateway.admin.calls.problems import MEDIA_TYPE, Problem
from gateway.admin.calls.schemas import GRAMMAR

SECURITY_SCHEMES: dict[str, Any] = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "an access token (dom_admin_...), or a machine's token of the identity provider",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-domicile-session",
        "description": "session of a browser; changes are accepted from this site's origin only",
    },
}
OPEN = frozenset({"/login", "/callback", "/device-login"})
ANY_ERROR = (400, 403, 404, 422, 500, 503)
CHANGE_ERROR = (409, 412, 413)
TAGGED = ("Record", "WithSecret")

_Schema = dict[str, Any]


class AdminApi(FastAPI):
    """FastAPI with a complete OpenAPI document: authentication, errors, idempotency."""

    def openapi(self) -> _Schema:
        if self.openapi_schema is None:
            self.openapi_schema = _described(super().openapi())
        return self.openapi_schema


def _described(document: _Schema) -> _Schema:
    components = document["components"]
    components["securitySchemes"] = SECURITY_SCHEMES
    components["schemas"]["Problem"] = Problem.model_json_schema()
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _describe(path, method.upper(), operation)
    return document


def _describe(path: str, method: str, operation: _Schema) -> None:
    if path not in OPEN:
        operation["security"] = [{"token": []}] if path == "/bootstrap" else [{"token": []}, {"session": []}]
    parameters = operation.setdefault("parameters", [])
    for parameter in parameters:
        if parameter["in"] == "path":
            parameter["schema"]["pattern"] = f"^{GRAMMAR[parameter['name']].pattern}$"
    changes = method in METHODS
    once = changes and path not in {"/bootstrap", "/logout", *OPEN}
    if once:
        parameters.append(_once())
    responses = operation["responses"]
    for status, response in responses.items():
        if status.startswith("2"):
            _describe_answer(response, once=once)
    errors = {*ANY_ERROR, *(() if path in OPEN else (401,)), *(CHANGE_ERROR if changes else ())}
    for status in sorted(errors):
        responses[str(status)] = _problem(status)


def _describe_answer(response: _Schema, *, once: bool) -> None:
    headers = response.setdefault("headers", {})
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    if schema.get("$ref", "").endswith(TAGGED):
        headers["ETag"] = _text("the state shown; sent as If-Match, only this state is changed", required=True)
    if once:
        headers[REPLAYED.title()] = _text("`true` if the call was answered before")


def _once() -> _Schema:
    return {
        "name": HEADER.title(),
        "in": "header",
        "required": False,
        "description": "a call repeated with the same key within 24 hours gets the first answer and changes nothing",
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": f"^({KEY.pattern})$"},
    }


def _problem(status: int) -> _Schema:
    described: _Schema = {
        "description": HTTPStatus(status).phrase,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    if status == HTTPStatus.UNAUTHORIZED:
        described["headers"] = {"WWW-Authenticate": _text("Bearer", required=True)}
    return described


def _text(description: str, *, required: bool = False) -> _Schema:
    return {"description": description, "required": required, "schema": {"type": "string"}}
