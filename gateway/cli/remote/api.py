"""Client for the admin API: JSON requests and responses, pagination, and problem responses as the store's errors."""

import json
import math
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from audit.external_service import Breaker, Download, ExternalAnswer, ExternalService, ExternalUnavailable
from gateway.cli.remote.credentials import Credentials
from gateway.configuration.settings import is_safe_url
from gateway.database.errors import (
    ControlError,
    Duplicate,
    Invalid,
    InvalidValue,
    NotFound,
    StoreError,
)

PREFIX = "/admin/v1"
INVALID_VALUE = "urn:domicile:invalid-value"
"""The type of a problem, as `gateway.admin.calls.problems` has it."""
DEADLINE_S = 60.0
MAX_BYTES = 256 << 20
"""Largest response in bytes that is held in memory; files are written as they come."""
PAGE = 200


class Unreachable(StoreError):
    """The gateway did not respond as an admin API does. It is unknown whether a change was made."""


class NotLoggedIn(StoreError):
    """The gateway does not accept the token."""


def base_of(url: str) -> str:
    """Return `url` without a path of the admin API. Raises InvalidValue for a URL that must not receive a token."""
    base = url.rstrip("/").removesuffix(PREFIX)
    if not is_safe_url(base):
        raise InvalidValue(
            "this is not an https URL of a gateway; write https://ai.example.eu (http only on this machine)"
        )
    return base


class AdminApi:
    """Client for one gateway. Redirects are not followed, so that the token is sent to no other host."""

    def __init__(self, credentials: Credentials, deadline_s: float = DEADLINE_S) -> None:
        tls = None
        if credentials.ca_file is not None:
            try:
                tls = ssl.create_default_context(cafile=credentials.ca_file)
            except OSError as error:
                raise InvalidValue(f"{credentials.ca_file} is no certificate in PEM; name one by --ca") from error
        self._url = credentials.url
        self._headers = {"accept": "application/json"}
        if credentials.token:
            self._headers["authorization"] = f"Bearer {credentials.token}"
        self._service = ExternalService(
            f"the gateway at {credentials.url}",
            deadline_s=deadline_s,
            max_bytes=MAX_BYTES,
            tls=tls,
            breaker=Breaker(failures=1 << 30),
        )

    def get(self, *path: str, **query: Any) -> Any:
        """Return the JSON of a response. Raises NotFound, other errors of the store, NotLoggedIn, Unreachable."""
        return self._json(self._ask("GET", path, query, None))

    def download(self, take: Callable[[bytes], object], *path: str, max_bytes: float = math.inf, **query: Any) -> None:
        """As `get`, for a response that is a file of up to `max_bytes`: each piece is given to `take` as it comes."""
        self._ask("GET", path, query, None, Download(take, max_bytes))

    def post(self, *path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        return self._json(self._ask("POST", path, query, body))

    def put(self, *path: str, body: Mapping[str, Any]) -> Any:
        return self._json(self._ask("PUT", path, {}, body))

    def pages(self, *path: str, **query: Any) -> Iterator[Any]:
        """Yield the items of all pages."""
        after = None
        while True:
            page = self.get(*path, **query, limit=PAGE, after=after)
            yield from page["items"]
            if (after := page["next"]) is None:
                return

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        query: Mapping[str, Any],
        body: Any,
        into: Download | None = None,
    ) -> ExternalAnswer:
        url = self._url + PREFIX + "".join(f"/{quote(part, safe='')}" for part in path)
        asked = {name: value for name, value in query.items() if value is not None}
        if asked:
            url += f"?{urlencode(asked, doseq=True)}"
        headers, content = dict(self._headers), None
        if body is not None:
            headers["content-type"], content = "application/json", json.dumps(body).encode()
        try:
            answer = self._service.request(method, url, content=content, headers=headers, into=into)
        except ExternalUnavailable as error:
            raise Unreachable(str(error)) from error
        if not 200 <= answer.status < 300:
            raise _error(answer, self._url)
        return answer

    def _json(self, answer: ExternalAnswer) -> Any:
        try:
            return json.loads(answer.content) if answer.content else None
        except ValueError as error:
            raise Unreachable(f"what answers at {self._url} is no admin API; check the URL") from error


_ERRORS: Mapping[int, type[StoreError]] = {404: NotFound, 409: Duplicate, 412: ControlError, 422: Invalid}


def _error(answer: ExternalAnswer, url: str) -> StoreError:
    """Return the error that the store itself would raise."""
    try:
        problem = json.loads(answer.content)
        detail, fields = str(problem["detail"]), dict(problem.get("errors") or {})
    except (ValueError, KeyError, TypeError):
        return Unreachable(f"the gateway at {url} answered {answer.status} and is no admin API; check the URL")
    if answer.status == 401:
        return NotLoggedIn(f"the gateway at {url} does not take your token; run: domicile login --url {url}")
    if fields:
        said = ", ".join(f"{name.removeprefix('body.')}: {what}" for name, what in fields.items())
        return InvalidValue(f"{said}; correct these")
    if problem.get("type") == INVALID_VALUE:
        return InvalidValue(detail)
    return _ERRORS.get(answer.status, ControlError)(detail)
