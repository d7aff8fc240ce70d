"""Calls to backends: mutual TLS with an exact identity, bytes in and bytes out.

Over `gateway.upstream.http1`; docs/adr/0003 says why not over a library. Every backend has a TLS context of its own
that completes the handshake only with that backend's URI, so a wrong machine never receives a request byte; and the
client certificate is the tenant's, so a backend of another tenant refuses us as well.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlsplit

from audit.files.secret_file import read_secret
from backend.wire import PING_PATH
from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import is_loopback
from gateway.errors import BackendFailed, BackendRefused, BackendTimeout, BackendUnavailable, GatewayError
from gateway.openai.refusal import refusal
from gateway.upstream.http1 import (
    ConnectError,
    Connection,
    ConnectionLost,
    Peer,
    Pool,
    ProtocolError,
    Response,
    Silence,
)
from gateway.upstream.request_token import RequestSigner
from regions.fleet.fleet import Backend
from regions.identity.trust import Trust

MAX_ERROR_BYTES = 64 << 10
ERROR_BODY_S = 10.0
LONGEST_RETRY_S = 86400.0
LOOK_FOR_SIGNER_S = 1.0
"""Between two looks for the key of request tokens, while no backend of our own has been started. A new backend is
looked for at once (`Upstream.forget`)."""
INLINE_DIGEST = 256 << 10
MAX_FETCHED_BYTES = 1 << 20
PASSED_ON = frozenset({400, 404, 409, 413, 422, 429})
NOT_EVERYWHERE = frozenset({"/tokenize"})
"""Paths that our engine and vLLM have, and other servers may not."""


@dataclass(frozen=True, slots=True)
class Target:
    """A backend as the client sees it: where it listens and who it must prove to be.

    `backend`: whose connections are reported; None in tests of the client alone.
    """

    backend_id: str
    url: str
    tls: Callable[[], ssl.SSLContext] | None  # None: plain HTTP, loopback only
    backend: Backend | None = None


Connected = Callable[[Backend, Peer], Awaitable[None]]
"""Told of every new connection before a request is sent on it; what it raises keeps the request from being sent."""


async def _no_token(backend: Backend, peer: Peer) -> None:
    return None


async def digest_of(body: bytes) -> bytes:
    """Its SHA-256; of a large one in a thread, for which the interpreter's lock is released."""
    return (
        sha256(body).digest() if len(body) <= INLINE_DIGEST else await asyncio.to_thread(lambda: sha256(body).digest())
    )


class BackendAnswer:
    """A backend's answer that has begun: status 200, body not yet read."""

    def __init__(self, response: Response, silence_s: float) -> None:
        self._response = response
        self._silence_s = silence_s

    @property
    def is_event_stream(self) -> bool:
        return self._response.header("content-type").partition(";")[0].strip().lower() == "text/event-stream"

    async def body(self, max_bytes: int) -> bytes:
        """The whole body. Raises BackendFailed when it breaks off or is larger than `max_bytes`."""
        pieces, size = [], 0
        async for piece in self.pieces():
            size += len(piece)
            if size > max_bytes:
                raise BackendFailed("The backend sent more than one answer may hold")
            pieces.append(piece)
        return b"".join(pieces)

    def pieces(self, silence: Silence | None = None) -> AsyncIterator[bytes]:
        """The body as it comes; `silence` is called while nothing does. Raises BackendTimeout where that lasts too
        long, BackendFailed when the connection breaks."""
        return self._response.pieces(self._silence_s, _broken, silence)


def _broken(error: Exception) -> GatewayError:
    if isinstance(error, TimeoutError):
        return BackendTimeout("The backend fell silent inside its answer")
    return BackendFailed("The connection to the backend broke inside its answer", elsewhere=True)


class Upstream:
    """The one HTTP client. Use as an async context manager."""

    def __init__(
        self,
        bounds: Bounds,
        connected: Connected = _no_token,
        find_signer: Callable[[], RequestSigner | None] = lambda: None,
    ) -> None:
        """`find_signer` looks for the key that tokens are signed by; the first backend started here makes it."""
        self._find_signer = find_signer
        self._signer: RequestSigner | None = None
        self._next_look = 0.0  # for a signer, by the loop's clock
        self._bounds = bounds
        self._connected = connected
        self._pools: dict[str, tuple[Target, Pool]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pools, self._pools = self._pools, {}
        for _, pool in pools.values():
            pool.close()

    def forget(self, living: Collection[str]) -> None:
        """Let go of the connections to backends that are not among `living`, by id; answers that run go on."""
        self._next_look = 0.0
        for backend_id in [each for each in self._pools if each not in living]:
            self._pools.pop(backend_id)[1].close_idle()

    def call(
        self,
        target: Target,
        path: str,
        body: bytes,
        request_id: str,
        decision: str = "",
        project: str = "",
        check: Callable[[], None] = lambda: None,
        silence: Silence | None = None,
        mark_key: bytes | None = None,
    ) -> "AnsweredCall":
        """POST `body`, with a token of `decision` to a backend of our own; the block begins once it has answered 200.
        Leaving it early closes the connection, which cancels the sequence in the engine.

        `check` is called immediately before a connection is opened and before the first byte of the request is written
        to one; what it raises prevents that. `silence` is called while the backend does not begin to answer.
        `mark_key`: what a backend of our own is to watermark its answer with; BackendUnavailable where no token can
        carry it.

        Entering raises:
            BackendUnavailable: no connection, or 503: nothing was processed, another backend may be tried.
            BackendRefused: a 4xx about the request itself, or 429, with the backend's error body.
            BackendFailed, BackendTimeout: anything else that is not an answer.
        """
        return AnsweredCall(self, Outgoing(target, path, body, request_id, decision, project, check, silence, mark_key))

    async def _post(self, outgoing: "Outgoing") -> tuple[Pool, Connection, Response]:
        """Whatever the status is, the connection has to be released."""
        target, path, body = outgoing.target, outgoing.path, outgoing.body
        pool = self._pool(target)
        digest = await digest_of(body)

        def head() -> bytes:
            token = self._token(
                target.backend, "POST", path, outgoing.project, outgoing.decision, digest, outgoing.mark_key
            )
            if outgoing.mark_key is not None and not token:
                raise BackendUnavailable("The backend cannot be told how to watermark its answer; start it anew")
            return pool.head("POST", path, len(body), outgoing.request_id, token, project=outgoing.project)

        return pool, *await self._send(target, pool, head, body, outgoing.check, outgoing.silence)

    async def ready(self, target: Target, path: str, timeout_s: float) -> bool:
        """Whether `path` answers 200. Raises GatewayError, ConnectionLost, ProtocolError or TimeoutError where there is
        no answer within `timeout_s` seconds: silence is not the same as a backend that says it is not ready."""
        status, _ = await self._exchange(target, path, timeout_s, None)
        return status == 200

    async def ask(
        self, target: Target, path: str, timeout_s: float, body: bytes | None = None
    ) -> tuple[int, bytes | None]:
        """Status and body of what `path` answers, to a POST if there is a `body`; None for a body of more than 1 MiB.

        Raises GatewayError, ConnectionLost, ProtocolError or TimeoutError where there is no answer."""
        return await self._exchange(target, path, timeout_s, body)

    async def fetch(self, target: Target, path: str, timeout_s: float, body: bytes | None = None) -> bytes | None:
        """What `path` answers, to a POST if there is a `body`, up to 1 MiB; None where that is not 200, more, or not
        there in `timeout_s` seconds."""
        try:
            status, said = await self._exchange(target, path, timeout_s, body)
        except (GatewayError, ConnectionLost, ProtocolError, TimeoutError):
            return None
        return said if status == 200 else None

    async def _exchange(
        self, target: Target, path: str, timeout_s: float, body: bytes | None
    ) -> tuple[int, bytes | None]:
        """Status and body of one answer; None for a body of more than 1 MiB."""
        pieces, size = [], 0
        async with asyncio.timeout(timeout_s):
            pool = self._pool(target)
            sent = body or b""
            method = "GET" if body is None else "POST"
            digest = await digest_of(sent)

            def head() -> bytes:
                token = "" if path == PING_PATH else self._token(target.backend, method, path, "", "", digest)
                return pool.head(method, path, len(sent), "readiness", token)

            connection, response = await self._send(target, pool, head, sent)
            try:
                async for piece in response.pieces(timeout_s):
                    size += len(piece)
                    if size > MAX_FETCHED_BYTES:
                        return response.status, None
                    pieces.append(piece)
                return response.status, b"".join(pieces)
            finally:
                pool.release(connection)

    async def _send(
        self,
        target: Target,
        pool: Pool,
        head: Callable[[], bytes],
        body: bytes,
        check: Callable[[], None] = lambda: None,
        silence: Silence | None = None,
    ) -> tuple[Connection, Response]:
        """Send on a kept connection, or on a new one where the backend has closed that meanwhile. `head`: made for
        each, since its token is taken once."""
        while True:
            try:
                connection, kept = await pool.acquire(check)
            except ConnectError as error:
                if error.identity:
                    raise BackendUnavailable(
                        "The backend could not prove its identity", code="backend_identity"
                    ) from error
                raise BackendUnavailable("No connection to the backend", retry_after_s=1) from error
            try:
                if not kept and target.backend is not None:
                    await self._connected(target.backend, connection.peer)
                check()
                return connection, await connection.request(head(), body, self._bounds.now.silence_timeout_s, silence)
            except ConnectionLost as error:
                pool.release(connection)
                if not kept:
                    # Inference changes nothing, so another backend may be tried even if this one has begun.
                    raise BackendUnavailable("The backend closed the connection", retry_after_s=1) from error
            except BaseException as error:
                connection.close()
                pool.release(connection)
                if isinstance(error, TimeoutError):
                    raise BackendTimeout("The backend did not begin to answer in time") from error
                if isinstance(error, ProtocolError):
                    raise BackendFailed("The backend did not answer in HTTP", elsewhere=True) from error
                raise

    def _token(
        self, backend: Backend | None, method: str, path: str, project: str, decision: str, digest: bytes,
        mark_key: bytes | None = None,
    ) -> str:  # fmt: skip
        if backend is None or backend.kind != "domicile":
            return ""
        if self._signer is None:
            now = asyncio.get_running_loop().time()
            if now < self._next_look:
                return ""
            self._signer, self._next_look = self._find_signer(), now + LOOK_FOR_SIGNER_S
        if self._signer is None:
            return ""
        return self._signer.field(
            tenant=backend.tenant,
            backend=backend.id,
            method=method,
            path=path,
            project=quote(project, safe=""),
            decision=decision,
            digest=digest,
            mark_key=mark_key,
        )

    def _pool(self, target: Target) -> Pool:
        known = self._pools.get(target.backend_id)
        if known is not None and (known[0] is target or known[0] == target):
            return known[1]
        trust = target.backend.trust if target.backend is not None else None
        pool = Pool(
            target.url,
            self._tls(target),
            self._bounds.now.connect_timeout_s,
            server_name=trust.name if trust is not None else None,
            bearer=_bearer(trust),
        )
        self._pools[target.backend_id] = (target, pool)
        if known is not None:
            known[1].close()
        return pool

    @staticmethod
    def _tls(target: Target) -> ssl.SSLContext | None:
        if target.tls is not None:
            return target.tls()
        if is_loopback(urlsplit(target.url).hostname or ""):
            return None
        raise BackendUnavailable(
            f"Backend {target.backend_id} is off this host and has no TLS identity"
            "; ask the operator to register it with a CA or a pin"
        )


class Outgoing(NamedTuple):
    """The arguments of `Upstream.call`."""

    target: Target
    path: str
    body: bytes
    request_id: str
    decision: str
    project: str
    check: Callable[[], None]
    silence: Silence | None
    mark_key: bytes | None = None


class AnsweredCall:
    """The block of `Upstream.call`."""

    __slots__ = ("_connection", "_outgoing", "_pool", "_upstream")

    def __init__(self, upstream: Upstream, outgoing: Outgoing) -> None:
        self._upstream = upstream
        self._outgoing = outgoing

    async def __aenter__(self) -> BackendAnswer:
        upstream = self._upstream
        self._pool, self._connection, response = await upstream._post(self._outgoing)
        if response.status != 200:
            try:
                raise await _refusal(response, self._outgoing.path)
            finally:
                self._pool.release(self._connection)
        return BackendAnswer(response, upstream._bounds.now.silence_timeout_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.release(self._connection)


def _bearer(trust: Trust | None) -> str | None:
    """Raises BackendUnavailable where the file with the key cannot be read: without it nothing would be answered."""
    if trust is None or trust.key_file is None:
        return None
    try:
        key = read_secret(Path(trust.key_file)).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BackendUnavailable(
            "The key for the backend cannot be read; ask the operator to make the file readable", code="no_certificate"
        ) from error
    if not key.isprintable():
        raise BackendUnavailable(
            "The key file of the backend holds no key; ask the operator to write it", code="no_certificate"
        )
    return key


async def _refusal(response: Response, path: str) -> GatewayError:
    retry_after = _seconds(response.header("retry-after"))
    if response.status == 503:
        return BackendUnavailable("The backend takes no requests now", retry_after_s=retry_after or 1)
    if response.status in PASSED_ON:
        error = await _error_body(response)
        if error is not None:
            return BackendRefused(response.status, error, retry_after)
        if response.status == 429:  # regardless of its text, the client has to know that it may retry
            return BackendRefused(429, {"message": "The backend is busy", "type": "rate_limit_error"}, retry_after)
    if response.status in (404, 405) and path in NOT_EVERYWHERE:  # the server is well, it only lacks the route
        told = {"message": f"This model's server has no {path}; leave the call out", "type": "not_found_error"}
        return BackendRefused(404, told | {"code": "unknown_url"})
    return BackendFailed(f"The backend answered {response.status}", elsewhere=True)


async def _error_body(response: Response) -> Mapping[str, Any] | None:
    """None if it is not an error body, is too large, or does not arrive within ERROR_BODY_S seconds."""
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_S):
            async for piece in response.pieces(ERROR_BODY_S):
                body += piece
                if len(body) > MAX_ERROR_BYTES:
                    return None
    except (ConnectionLost, ProtocolError, TimeoutError):
        return None
    return refusal(bytes(body))


def _seconds(value: str) -> float | None:
    """The seconds of a ``retry-after`` field, at most a day; None where it holds none (it may be a date)."""
    try:
        seconds = float(value) if value else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds <= LONGEST_RETRY_S else None
