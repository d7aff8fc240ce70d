"""Client of the gateway for calls to backends: connection pools, mutual TLS with an exact peer identity.

It uses `gateway.upstream.http1`; docs/adr/0003 explains why not a library. Every backend has its own TLS context, which
completes the handshake only with that backend's URI, so another machine never receives a byte of a request. The client
certificate is the tenant's, so a backend of another tenant refuses the connection too.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from audit.files.secret_file import read_secret
from backend.wire import PING_PATH, PREFILL_HEADER
from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import is_loopback
from gateway.errors import BackendFailed, BackendRefused, BackendTimeout, BackendUnavailable, GatewayError
from gateway.openai.refusal import refusal
from gateway.upstream.answer_memory import AnswerShare
from gateway.upstream.http1 import (
    ConnectError,
    Connection,
    ConnectionLost,
    Peer,
    Pool,
    ProtocolError,
    Response,
    Silence,
    Taker,
    quoted,
)
from gateway.upstream.request_token import PrefillPlace, RequestSigner
from regions.fleet.fleet import Backend
from regions.identity.trust import Trust

MAX_ERROR_BYTES = 64 << 10
ERROR_BODY_S = 10.0
LONGEST_RETRY_S = 86400.0
LOOK_FOR_SIGNER_S = 1.0
"""Seconds between two attempts to find the key for request tokens while no Domicile backend was started. The key is
looked up at once after a change of backends (`Upstream.forget`)."""
INLINE_DIGEST = 256 << 10
MAX_FETCHED_BYTES = 1 << 20
PASSED_ON = frozenset({400, 404, 409, 413, 422, 429})
NOT_EVERYWHERE = frozenset({"/tokenize"})
"""Paths that Domicile's engine and vLLM have and other servers may lack."""


@dataclass(frozen=True, slots=True)
class Target:
    """Address of a backend and the identity that it must prove.

    `backend`: the backend that new connections are reported for; None in tests of the client alone.
    """

    backend_id: str
    url: str
    tls: Callable[[], ssl.SSLContext] | None  # None: plain HTTP, loopback only
    backend: Backend | None = None


Connected = Callable[[Backend, Peer], Awaitable[None]]
"""Called for every new connection before a request is sent on it. If it raises, the request is not sent."""


async def _no_token(backend: Backend, peer: Peer) -> None:
    return None


async def digest_of(body: bytes) -> bytes:
    """Return the SHA-256 of a body. A large body is hashed in a thread, where hashing releases the GIL."""
    return (
        sha256(body).digest() if len(body) <= INLINE_DIGEST else await asyncio.to_thread(lambda: sha256(body).digest())
    )


class BackendAnswer:
    """A backend's response with status 200 whose body is not yet read."""

    def __init__(self, response: Response, silence_s: float) -> None:
        self._response = response
        self._silence_s = silence_s

    @property
    def is_event_stream(self) -> bool:
        return self._response.header("content-type").partition(";")[0].strip().lower() == "text/event-stream"

    @property
    def prefill(self) -> Literal["elsewhere", "here"] | None:
        """Where the prompt was computed, where another backend was named for it."""
        said = self._response.header(PREFILL_HEADER)
        return said if said in ("elsewhere", "here") else None  # type: ignore[return-value]

    async def body(self, max_bytes: int, share: AnswerShare | None = None) -> bytes:
        """Return the whole body. Raises BackendFailed if it is truncated or larger than `max_bytes`, BackendTimeout if
        the backend stops sending, and AnswerMemoryFull if `share`, which counts it, gets no more memory."""
        pieces, size = [], 0
        async for piece in self.pieces():
            size += len(piece)
            if size > max_bytes:
                raise BackendFailed("The backend sent more than one answer may hold")
            if share is not None:
                share.holds(size)
            pieces.append(piece)
        return b"".join(pieces)

    def pieces(self, silence: Silence | None = None, taker: Taker | None = None) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, except what `taker` takes. `silence` is called while nothing arrives.

        Raises BackendTimeout if nothing arrives for too long, and BackendFailed if the connection breaks.
        """
        return self._response.pieces(self._silence_s, _broken, silence, taker)


def _broken(error: Exception) -> GatewayError:
    if isinstance(error, TimeoutError):
        return BackendTimeout("The backend fell silent inside its answer")
    return BackendFailed("The connection to the backend broke inside its answer", elsewhere=True)


class Upstream:
    """The HTTP client for all backends. Use it as an async context manager."""

    def __init__(
        self,
        bounds: Bounds,
        connected: Connected = _no_token,
        find_signer: Callable[[], RequestSigner | None] = lambda: None,
    ) -> None:
        """`find_signer` returns the signer of request tokens, or None until the first backend on this host is started,
        which creates the key."""
        self._find_signer = find_signer
        self._signer: RequestSigner | None = None
        self._next_look = 0.0  # next call of find_signer, by the loop's clock
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
        """Close idle connections to backends whose ids are not in `living`. Running responses continue."""
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
        prefill: PrefillPlace | None = None,
        commits: bool = False,
    ) -> "AnsweredCall":
        """POST `body` to a backend. Returns an async context manager that is entered once the status is 200.

        A Domicile backend also receives a request token with `decision`. Leaving the context early closes the
        connection, which cancels the sequence in the engine.

        `check` is called immediately before a connection is opened and before the first byte of the request is written;
        if it raises, neither happens. `silence` is called while the backend has not begun to respond. `mark_key`: key
        of the watermark for a Domicile backend, `commits`: whether its answer commits to its activations;
        BackendUnavailable is raised if no token can carry them. `prefill`: the backend that computes the prompt for
        this one.

        Entering raises:
            BackendUnavailable: no connection, or status 503. Nothing was processed; another backend may be tried.
            BackendRefused: a 4xx status about the request itself, or 429, with the backend's error body.
            BackendFailed, BackendTimeout: any other failure.
        """
        outgoing = Outgoing(
            target, path, body, request_id, decision, project, check, silence, mark_key, prefill, commits
        )
        return AnsweredCall(self, outgoing)

    async def _post(self, outgoing: "Outgoing") -> tuple[Pool, Connection, Response]:
        """Send a call. The caller has to release the connection for every status."""
        target, path, body = outgoing.target, outgoing.path, outgoing.body
        pool = self._pool(target)
        digest = await digest_of(body)

        def head() -> bytes:
            token = self._token(
                target.backend,
                "POST",
                path,
                outgoing.project,
                outgoing.decision,
                digest,
                outgoing.mark_key,
                outgoing.prefill,
                outgoing.commits,
            )
            if outgoing.mark_key is not None and not token:
                raise BackendUnavailable("The backend cannot be asked to watermark its answer; start it again")
            if outgoing.commits and not token:
                raise BackendUnavailable("The backend cannot be asked to commit to its activations; start it again")
            return pool.head("POST", path, len(body), outgoing.request_id, token, project=outgoing.project)

        return pool, *await self._send(target, pool, head, body, outgoing.check, outgoing.silence)

    async def ready(self, target: Target, path: str, timeout_s: float) -> bool:
        """Whether a GET of `path` has status 200.

        Raises GatewayError, ConnectionLost, ProtocolError or TimeoutError if there is no response within `timeout_s`
        seconds, which is different from a backend that reports that it is not ready.
        """
        status, _ = await self._exchange(target, path, timeout_s, None)
        return status == 200

    async def ask(
        self,
        target: Target,
        path: str,
        timeout_s: float,
        body: bytes | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[int, bytes | None]:
        """Send a GET, or a POST if there is a `body`. Returns status and body, with None for a body above 1 MiB.

        `check` as for `call`. Raises GatewayError, ConnectionLost, ProtocolError or TimeoutError if there is no
        response.
        """
        return await self._exchange(target, path, timeout_s, body, check)

    async def fetch(self, target: Target, path: str, timeout_s: float, body: bytes | None = None) -> bytes | None:
        """Send a GET, or a POST if there is a `body`, and return the response body of at most 1 MiB.

        Returns None if the status is not 200, the body is larger, or there is no response within `timeout_s` seconds.
        """
        try:
            status, said = await self._exchange(target, path, timeout_s, body)
        except (GatewayError, ConnectionLost, ProtocolError, TimeoutError):
            return None
        return said if status == 200 else None

    async def _exchange(
        self,
        target: Target,
        path: str,
        timeout_s: float,
        body: bytes | None,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[int, bytes | None]:
        """Return status and body of one response, with None for a body above 1 MiB."""
        pieces, size = [], 0
        async with asyncio.timeout(timeout_s):
            pool = self._pool(target)
            sent = body or b""
            method = "GET" if body is None else "POST"
            digest = await digest_of(sent)

            def head() -> bytes:
                token = "" if path == PING_PATH else self._token(target.backend, method, path, "", "", digest)
                return pool.head(method, path, len(sent), "readiness", token)

            connection, response = await self._send(target, pool, head, sent, check)
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
        """Send a request on a pooled connection, or on a new one if the backend has closed it meanwhile.

        `head` is called for each attempt, because a request token is accepted once.
        """
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
                    # Inference has no side effects, so another backend may be tried even if this one has begun.
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
        self,
        backend: Backend | None,
        method: str,
        path: str,
        project: str,
        decision: str,
        digest: bytes,
        mark_key: bytes | None = None,
        prefill: PrefillPlace | None = None,
        commits: bool = False,
    ) -> str:
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
            project=quoted(project),
            decision=decision,
            digest=digest,
            mark_key=mark_key,
            prefill=prefill,
            commits=commits,
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
    prefill: PrefillPlace | None = None
    commits: bool = False


class AnsweredCall:
    """The async context manager returned by `Upstream.call`."""

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
    """Return the API key of a backend, or None. Raises BackendUnavailable if its file cannot be read or is empty."""
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
        if response.status == 429:  # whatever the body says, the client must learn that it may retry
            return BackendRefused(429, {"message": "The backend is busy", "type": "rate_limit_error"}, retry_after)
    if response.status in (404, 405) and path in NOT_EVERYWHERE:  # the server works and only lacks the route
        told = {"message": f"This model's server has no {path}; leave the call out", "type": "not_found_error"}
        return BackendRefused(404, told | {"code": "unknown_url"})
    return BackendFailed(f"The backend answered {response.status}", elsewhere=True)


async def _error_body(response: Response) -> Mapping[str, Any] | None:
    """Return the error body, or None if it is malformed, too large, or not received within ERROR_BODY_S seconds."""
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
    """Return the seconds of a ``retry-after`` field, at most a day, or None if it has no number (it may be a date)."""
    try:
        seconds = float(value) if value else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds <= LONGEST_RETRY_S else None
