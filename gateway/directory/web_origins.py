"""Web pages that may call: cross-origin resource sharing (Fetch Standard, §3.3), by the origins that projects list.

A preflight has no key, so it cannot know the project: it is answered for an origin that some project lists. The call
itself has a key, and is refused where its own project does not list the origin. No cookie is ever taken, so no answer
allows credentials; the admin API is not part of this.
"""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from gateway.errors import OriginNotAllowed
from gateway.identity.principal import Principal
from gateway.openai.asgi_client import Header, Send

METHODS: Final = b"GET, POST, DELETE"
MAX_AGE_S: Final = 600
SHARED: Final = ("/v1/", "/v2/", "/api/", "/tokenize", "/detokenize", "/rerank", "/score")
"""Beginnings of the paths that pages may call."""
EXPOSED: Final = ", ".join((
    "x-request-id", "x-domicile-region", "x-domicile-country", "x-domicile-operator", "x-domicile-backend",
    "x-domicile-decision", "x-domicile-receipt", "x-domicile-notice-art50", "x-domicile-model", "deprecation", "sunset",
    "link", "retry-after", "x-should-retry", "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests", "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens", "request-id",
)).encode()  # fmt: skip
"""Headers of answers that a script may read."""
_NAMES: Final = re.compile(rb"[a-zA-Z0-9!#$%&'*+.^_`|~, -]{1,1024}")
_VARY: Final = b"origin, access-control-request-method, access-control-request-headers"


class WebOrigins:
    """`known`: origins that some project lists. Replaced as a whole when the directory changes."""

    def __init__(self) -> None:
        self.known: frozenset[str] = frozenset()

    def check(self, principal: Principal, origin: str) -> None:
        """Raises OriginNotAllowed for a page that may call for other projects and not for the caller's. One that no
        project lists got no answer to its preflight, so what sends it is no browser that shows it a page."""
        if origin in self.known and origin not in principal.origins:
            raise OriginNotAllowed("The project of this key does not list the origin of this page")

    def headers(self, origin: str) -> tuple[Header, ...]:
        """Headers of an answer to a page; none for one that no project lists."""
        if origin not in self.known:
            return ()
        return (
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED),
            (b"vary", b"origin"),
        )

    def preflight(self, scope: MutableMapping[str, Any]) -> list[Header] | None:
        """The headers of its answer; None where it is none, or the origin may not call."""
        sent = dict(scope["headers"])
        origin = sent.get(b"origin", b"").decode("latin-1")
        if b"access-control-request-method" not in sent or origin not in self.known or not _is_shared(scope):
            return None
        headers = [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", b"%d" % MAX_AGE_S),
            (b"vary", _VARY),
        ]
        if (asked := sent.get(b"access-control-request-headers")) is not None and _NAMES.fullmatch(asked):
            headers.append((b"access-control-allow-headers", asked))
        return headers

    def exposing(self, scope: MutableMapping[str, Any], send: Send) -> Send:
        """`send` whose answers a page may read, where its origin may call."""
        if not self.known or not _is_shared(scope):
            return send
        origin = dict(scope["headers"]).get(b"origin", b"").decode("latin-1")
        more = self.headers(origin)
        return send if not more else _with(send, more)


def _with(send: Send, more: tuple[Header, ...]) -> Callable[[MutableMapping[str, Any]], Awaitable[None]]:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return sending


def _is_shared(scope: MutableMapping[str, Any]) -> bool:
    path: str = scope.get("path", "")
    return path.startswith(SHARED)
