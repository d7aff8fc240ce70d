"""Routes, authentication and error responses of ``/scim/v2`` (RFC 7644)."""

import hmac
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from audit.errors import AuditError
from gateway.database.errors import Duplicate, Invalid, NotFound, Stale, StoreError
from gateway.nearest_route import methods_here
from gateway.records.provisioning import ProvisionedGroup, ProvisionedUser
from gateway.scim.errors import ScimError, invalid
from gateway.scim.filters import comparison, searched
from gateway.scim.patch import patched
from gateway.scim.resources import (
    GROUP_KNOWN,
    MAX_RESULTS,
    USER_KNOWN,
    chosen,
    etag,
    group_fields,
    group_json,
    resource_types,
    schemas,
    service_provider_config,
    user_fields,
    user_json,
)
from gateway.store.control.provisioning import Attribute, Provisioning

log = logging.getLogger("domicile.gateway")

PREFIX = "/scim/v2"
MEDIA_TYPE = "application/scim+json"
MAX_BODY = 2 << 20
PATCH_TRIES = 20
LIST = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
_USER_FILTERS: Mapping[str, Attribute] = {
    "username": "name", "externalid": "external_id", "id": "id", "displayname": "display_name",
}  # fmt: skip
_GROUP_FILTERS: Mapping[str, Attribute] = {"displayname": "name", "externalid": "external_id", "id": "id"}
_STATUS: Mapping[type[Exception], tuple[int, str | None]] = {
    NotFound: (404, None), Duplicate: (409, "uniqueness"), Stale: (412, None), Invalid: (400, "invalidValue"),
}  # fmt: skip

Answer = tuple[int, dict[str, Any] | None, str | None]
"""Status, body and ETag."""
Handler = Callable[[Request, Any], Answer]


def build_scim(
    people: Callable[[], Provisioning], token: bytes, refused: Callable[[Request], None], base: str
) -> Starlette:
    """Return the application, to be mounted at PREFIX. `token`: required bearer token. `refused` is called for requests
    without it. `base`: URL of this server in responses, up to PREFIX."""
    users, groups = _resources(people, base)

    def guarded(handlers: Mapping[str, Handler]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                _check_token(request, token, refused)
                body = await _body(request) if request.method in ("POST", "PUT", "PATCH") else None
                status, said, tag = await run_in_threadpool(handlers[request.method], request, body)
            except ScimError as error:
                status, said, tag = error.status, error.body, None
            except (StoreError, AuditError) as error:
                refusal = _refusal(error)
                status, said, tag = refusal.status, refusal.body, None
            return _response(status, said, tag)

        return answer

    of_users, of_groups, of_all = _Search(User=users), _Search(Group=groups), _Search(User=users, Group=groups)
    routes = [
        Route(path, guarded(handlers), methods=list(handlers))
        for path, handlers in {
            "/": {"GET": of_all.get},
            "/.search": {"POST": of_all.post},
            "/Users": {"GET": of_users.get, "POST": users.create},
            "/Users/.search": {"POST": of_users.post},
            "/Users/{id}": users.of_one,
            "/Groups": {"GET": of_groups.get, "POST": groups.create},
            "/Groups/.search": {"POST": of_groups.post},
            "/Groups/{id}": groups.of_one,
            **_published(base),
        }.items()
    ]
    app = Starlette(routes=routes, exception_handlers={404: _not_there, 405: _not_there})
    app.router.redirect_slashes = False
    return app


def _resources(people: Callable[[], Provisioning], base: str) -> "tuple[_Resources, _Resources]":
    """Users and groups."""
    users = _Resources(
        people,
        base,
        create=lambda store, body: store.create_user(user_fields(body)),
        replace=lambda store, key, body, version: store.replace_user(key, user_fields(body), version),
        delete=lambda store, key, version: store.delete_user(key, version),
        show=lambda store, key: store.user(key),
        find=lambda store, *page: store.users(*page),
        filters=_USER_FILTERS,
        known=USER_KNOWN,
        unassigned={"active": False},  # a removal gives no access
        to_json=user_json,
    )
    groups = _Resources(
        people,
        base,
        create=lambda store, body: store.create_group(group_fields(body)),
        replace=lambda store, key, body, version: store.replace_group(key, group_fields(body), version),
        delete=lambda store, key, version: store.delete_group(key, version),
        show=lambda store, key: store.group(key),
        find=lambda store, *page: store.groups(*page),
        filters=_GROUP_FILTERS,
        known=GROUP_KNOWN,
        unassigned={},
        to_json=group_json,
    )
    return users, groups


class _Resources:
    """The routes of one type of resource. Methods run in threads."""

    def __init__(
        self,
        people: Callable[[], Provisioning],
        base: str,
        *,
        create: Callable[[Provisioning, Any], Any],
        replace: Callable[[Provisioning, str, Any, int | None], Any],
        delete: Callable[[Provisioning, str, int | None], None],
        show: Callable[[Provisioning, str], Any],
        find: Callable[..., tuple[int, list[Any]]],
        filters: Mapping[str, Attribute],
        known: Mapping[str, str],
        unassigned: dict[str, Any],
        to_json: Callable[[Any, str], dict[str, Any]],
    ) -> None:
        """`unassigned`: values of attributes that were removed (RFC 7644 §3.5.2.2), where they are not just absent."""
        self._people, self._base = people, base
        self._create, self._replace, self._delete, self._show, self._find = create, replace, delete, show, find
        self._filters, self._known, self._unassigned, self._to_json = filters, known, unassigned, to_json

    @property
    def of_one(self) -> Mapping[str, Handler]:
        return {"GET": self.show, "PUT": self.put, "PATCH": self.patch, "DELETE": self.delete}

    def create(self, request: Request, body: Any) -> Answer:
        return self._said(201, self._create(self._people(), body))

    def show(self, request: Request, body: Any) -> Answer:
        found = self._show(self._people(), request.path_params["id"])
        if request.headers.get("if-none-match") == etag(found):
            return 304, None, etag(found)
        return self._said(200, found, request.query_params)

    def put(self, request: Request, body: Any) -> Answer:
        return self._said(200, self._replace(self._people(), request.path_params["id"], body, _version(request)))

    def patch(self, request: Request, body: Any) -> Answer:
        """Read the resource, apply the operations and replace it, unless it was changed in between: then again, where
        the request names no version, since operations such as those that add members are of no version."""
        store, key, version = self._people(), request.path_params["id"], _version(request)
        for _ in range(PATCH_TRIES - 1 if version is None else 0):
            with suppress(Stale):
                return self._patched(store, key, body, None)
        return self._patched(store, key, body, version)

    def _patched(self, store: Provisioning, key: str, body: Any, version: int | None) -> Answer:
        before = self._show(store, key)
        if version not in (None, before.version):
            raise Stale("it was changed since you last read it; read it again, and repeat the change")
        changed = self._unassigned | {
            name: value
            for name, value in patched(self._to_json(before, self._base), body, self._known).items()
            if value is not None
        }
        return self._said(200, self._replace(store, key, changed, before.version))

    def delete(self, request: Request, body: Any) -> Answer:
        self._delete(self._people(), request.path_params["id"], _version(request))
        return 204, None, None

    @property
    def filters(self) -> frozenset[str]:
        return frozenset(self._filters)

    def found(self, query: Mapping[str, str], start: int, count: int) -> tuple[int, list[dict[str, Any]]]:
        """How many a query means, and `count` of them from `start` (1 is the first)."""
        where = searched(query["filter"], self._filters) if "filter" in query else None
        total, found = self._find(self._people(), where, start, count)
        return total, [_chosen(self._to_json(each, self._base), query) for each in found]

    def _said(
        self, status: int, resource: ProvisionedUser | ProvisionedGroup, query: Mapping[str, str] | None = None
    ) -> Answer:
        return status, _chosen(self._to_json(resource, self._base), query or {}), etag(resource)


class _Search:
    """Queries of one or several types of resources, which are listed one after the other. Methods run in threads."""

    def __init__(self, **kinds: _Resources) -> None:
        self._kinds = kinds

    def get(self, request: Request, body: Any) -> Answer:
        return self._found(request.query_params)

    def post(self, request: Request, body: Any) -> Answer:
        """As `get`, with the query in the body (RFC 7644 §3.4.3)."""
        if not isinstance(body, dict):
            raise invalid("the body is no SearchRequest; send one", "invalidSyntax")
        joined = {name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in body.items()}
        return self._found({name: str(value) for name, value in joined.items() if value is not None})

    def _found(self, query: Mapping[str, str]) -> Answer:
        start, count = _number(query, "startIndex", 1), _number(query, "count", MAX_RESULTS)
        start, count = max(start, 1), min(max(count, 0), MAX_RESULTS)
        kinds, query = self._meant(query)
        total, said = 0, list[dict[str, Any]]()
        for kind in kinds:
            there, found = kind.found(query, max(start - total, 1), count - len(said))
            total, said = total + there, said + found
        return 200, _listed(said, total, start), None

    def _meant(self, query: Mapping[str, str]) -> tuple[list[_Resources], Mapping[str, str]]:
        """The types that have what a filter is by (in the others it has no value, RFC 7644 §3.4.2.1), and the query of
        them. Raises ScimError."""
        if "filter" not in query:
            return [*self._kinds.values()], query
        attribute, operator, value = comparison(query["filter"])
        if attribute == "meta.resourcetype":
            without = {name: said for name, said in query.items() if name != "filter"}
            is_meant = str.startswith if operator == "sw" else str.__eq__
            return [kind for name, kind in self._kinds.items() if is_meant(name, value)], without
        schema, _, attribute = attribute.rpartition(":")
        meant = [
            kind
            for name, kind in self._kinds.items()
            if attribute in kind.filters and (not schema or schema.endswith(f":{name.lower()}"))
        ]
        return meant or [*self._kinds.values()], query  # which refuse it, in words


def _published(base: str) -> dict[str, dict[str, Handler]]:
    kinds = {each["id"]: each for each in resource_types(base)}
    known = {each["id"]: each for each in schemas(base)}

    def one(of: Mapping[str, dict[str, Any]]) -> Handler:
        def show(request: Request, body: Any) -> Answer:
            if request.path_params["id"] not in of:
                raise ScimError(404, "there is no such resource; look at the list")
            return 200, of[request.path_params["id"]], None

        return show

    def every(of: Mapping[str, dict[str, Any]]) -> Handler:
        def show(request: Request, body: Any) -> Answer:
            if "filter" in request.query_params:  # RFC 7644 §4
                raise ScimError(403, "what the server publishes is not filtered; leave the filter out")
            return 200, _listed(list(of.values()), len(of), 1), None

        return show

    return {
        "/ServiceProviderConfig": {"GET": lambda request, body: (200, service_provider_config(base), None)},
        "/ResourceTypes": {"GET": every(kinds)},
        "/ResourceTypes/{id}": {"GET": one(kinds)},
        "/Schemas": {"GET": every(known)},
        "/Schemas/{id}": {"GET": one(known)},
    }


def _check_token(request: Request, token: bytes, refused: Callable[[Request], None]) -> None:
    sent = request.headers.getlist("authorization")
    scheme, _, shown = (sent[0] if len(sent) == 1 else "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), token):
        refused(request)
        raise ScimError(401, "the bearer token is not that of scim.token_file; send it as Authorization: Bearer")


async def _body(request: Request) -> Any:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY:
            raise ScimError(413, f"the body is larger than {MAX_BODY} bytes; send less at once")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise invalid("the body is no JSON; send a resource as JSON", "invalidSyntax") from error


def _version(request: Request) -> int | None:
    """Return the version in ``If-Match``, or None if every version matches. Raises Stale for another kind of tag."""
    sent = request.headers.get("if-match")
    if sent is None or sent.strip() == "*":
        return None
    number = sent.strip().removeprefix("W/").strip('"')
    if not number.isascii() or not number.isdecimal() or len(number) > 9:
        raise Stale("If-Match is no ETag of this resource; read it again")
    return int(number)


def _chosen(said: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    def names(parameter: str) -> frozenset[str] | None:
        written = query.get(parameter)
        if not written:
            return None
        # a sub-attribute (members.value) selects the attribute; a name may have its schema as prefix
        return frozenset(each.strip().lower().rpartition(":")[2].partition(".")[0] for each in written.split(","))

    return chosen(said, names("attributes"), names("excludedAttributes") or frozenset())


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    written = query.get(name)
    try:
        return default if written is None else int(written[:12])
    except ValueError as error:
        raise invalid(f"{name} is no number; send one") from error


def _listed(resources: list[dict[str, Any]], total: int, start: int) -> dict[str, Any]:
    return {
        "schemas": [LIST],
        "totalResults": total,
        "itemsPerPage": len(resources),
        "startIndex": start,
        "Resources": resources,
    }


def _refusal(error: Exception) -> ScimError:
    for kind, (status, code) in _STATUS.items():
        if isinstance(error, kind):
            return ScimError(status, str(error), code)
    log.error("a call of the identity provider's provisioning failed: %s; it is refused, see the cause", error)
    return ScimError(503, "the databases or the record do not answer; try again")


def _response(status: int, said: dict[str, Any] | None, tag: str | None) -> Response:
    headers = {"cache-control": "no-store"}
    if tag is not None:
        headers["etag"] = tag
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status == 201 and said is not None:
        headers["location"] = said["meta"]["location"]
    content = None if said is None else json.dumps(said).encode()
    return Response(content, status, headers, media_type=None if said is None else MEDIA_TYPE)


async def _not_there(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    what = (
        "there is no such route; see /ResourceTypes"
        if status == 404
        else "the method is not of this route; use another"
    )
    response = _response(status, ScimError(status, what).body, None)
    if status == 405:
        response.headers["allow"] = methods_here(request)
    return response
