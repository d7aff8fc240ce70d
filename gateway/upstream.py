"""Calls to backends: one HTTP client, mutual TLS with an exact identity, bytes in and bytes out.

aiohttp directly (see docs/adr/0003): its connection pool costs a third of what the httpx API costs on top of it.
Every backend has a TLS context of its own that completes the handshake only with that backend's URI, so a wrong
machine never receives a request byte; and the client certificate is the tenant's, so a backend of another tenant
refuses us as well.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
from pydantic import ValidationError

from backend.wire import REQUEST_ID_HEADER, ErrorBody
from gateway.errors import BackendFailed, BackendRefused, BackendTimeout, BackendUnavailable, GatewayError
from gateway.settings import Requests, is_loopback

WRITTEN_AT_ONCE = 1 << 19  # larger bodies are written in pieces, so that other requests are not held up
MAX_ERROR_BYTES = 64 << 10
PASSED_ON = frozenset({400, 404, 409, 413, 422, 429})


@dataclass(frozen=True, slots=True)
class Target:
    """A backend as the client sees it: where it listens and who it must prove to be."""

    backend_id: str
    url: str
    tls: Callable[[], ssl.SSLContext] | None  # None: plain HTTP, loopback only


class Answer:
    """A backend's answer that has begun: status 200, body not yet read."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def is_event_stream(self) -> bool:
        return self._response.content_type == "text/event-stream"

    async def body(self, max_bytes: int) -> bytes:
        """The whole body. Raises BackendFailed when it breaks off or is larger than `max_bytes`."""
        pieces, size = [], 0
        async for piece in self.pieces():
            size += len(piece)
            if size > max_bytes:
                raise BackendFailed("The backend sent more than one answer may hold")
            pieces.append(piece)
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises BackendTimeout on silence, BackendFailed when the connection breaks."""
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except TimeoutError as error:
            raise BackendTimeout("The backend fell silent inside its answer") from error
        except aiohttp.ClientError as error:
            raise BackendFailed("The connection to the backend broke inside its answer") from error


class Upstream:
    """The one HTTP client. Use as an async context manager."""

    def __init__(self, settings: Requests) -> None:
        self._settings = settings
        self._sessions: dict[str, tuple[Target, aiohttp.ClientSession]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sessions, self._sessions = self._sessions, {}
        for _, session in sessions.values():
            await session.close()

    @asynccontextmanager
    async def call(self, target: Target, path: str, body: bytes, request_id: str) -> AsyncIterator[Answer]:
        """POST `body`; yields once the backend has answered 200. Leaving early closes the connection, which
        cancels the sequence in the engine.

        Raises:
            BackendUnavailable: no connection, or 503: nothing was processed, another backend may be tried.
            BackendRefused: a 4xx about the request itself, with the backend's error body.
            BackendFailed, BackendTimeout: anything else that is not an answer.
        """
        session = await self._session(target)
        headers = {"content-type": "application/json", REQUEST_ID_HEADER: request_id}
        data = body if len(body) <= WRITTEN_AT_ONCE else BytesIO(body)
        try:
            response = await session.post(target.url + path, data=data, headers=headers, allow_redirects=False)
        except aiohttp.ClientSSLError as error:
            raise BackendUnavailable("The backend could not prove its identity", code="backend_identity") from error
        except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            # Also a pooled connection that the backend had closed: inference changes nothing, so another may be tried.
            raise BackendUnavailable("No connection to the backend", retry_after_s=1) from error
        except TimeoutError as error:
            raise BackendTimeout("The backend did not begin to answer in time") from error
        except aiohttp.ClientError as error:
            raise BackendFailed("The backend closed the connection without an answer") from error
        finished = False
        try:
            if response.status != 200:
                raise await _refusal(response)
            yield Answer(response)
            finished = response.content.at_eof()
        finally:
            if finished:
                response.release()
            else:
                response.close()

    async def ready(self, target: Target, path: str, timeout_s: float) -> bool:
        """Whether `path` answers 200 within `timeout_s` seconds."""
        session = await self._session(target)
        try:
            async with session.get(
                target.url + path, timeout=aiohttp.ClientTimeout(total=timeout_s), allow_redirects=False
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _session(self, target: Target) -> aiohttp.ClientSession:
        known = self._sessions.get(target.backend_id)
        if known is not None and known[0] == target:
            return known[1]
        session = self._open(target)
        self._sessions[target.backend_id] = (target, session)
        if known is not None:
            await known[1].close()
        return session

    def _open(self, target: Target) -> aiohttp.ClientSession:
        secure: ssl.SSLContext | bool
        if target.tls is not None:
            secure = target.tls()
        elif is_loopback(urlsplit(target.url).hostname or ""):
            secure = False
        else:
            raise BackendUnavailable(f"Backend {target.backend_id} is off this host and has no TLS identity")
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=secure, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._settings.connect_timeout_s,
                sock_read=self._settings.silence_timeout_s,
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # no proxy from the environment ever sees a prompt
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )


async def _refusal(response: aiohttp.ClientResponse) -> GatewayError:
    retry_after = _seconds(response.headers.get("retry-after"))
    if response.status == 503:
        return BackendUnavailable("The backend takes no requests now", retry_after_s=retry_after or 1)
    if response.status in PASSED_ON:
        error = await _error_body(response)
        if error is not None:
            return BackendRefused(response.status, error, retry_after)
        if response.status == 429:  # whatever it says, the client has to know that it may come back
            return BackendRefused(429, {"message": "The backend is busy", "type": "rate_limit_error"}, retry_after)
    return BackendFailed(f"The backend answered {response.status}")


async def _error_body(response: aiohttp.ClientResponse) -> Mapping[str, Any] | None:
    try:
        return ErrorBody.model_validate_json(await response.content.read(MAX_ERROR_BYTES)).error.model_dump()
    except (ValidationError, aiohttp.ClientError, TimeoutError):
        return None


def _seconds(value: str | None) -> float | None:
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None
