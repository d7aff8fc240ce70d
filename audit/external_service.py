"""HTTP calls to a service outside the installation: one object for each service, and one way to call all of them.

An outside party may be slow, silent, endless or gone, and none of that may hold anything of ours. So every call has a
deadline for the whole of it (a time-out for each read is reset by every byte), a bound on the bytes of its answer, and
each service a pool of its own: so many calls at once, and beyond them an immediate refusal. After several failures in
a row a circuit breaker refuses without asking, and lets one call through after a pause (Nygard, Release It!, ch. 5).

The calls run on an event loop in a daemon thread, so that a deadline is exact whatever the caller is, and the end of
the process waits for none of them. Redirects are not followed, proxies of the environment are not used, and no message
and no line of the log repeats an address: it may hold a password.
"""

import asyncio
import logging
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import httpx2

for _library in ("httpx2", "httpcore2"):  # which log every address, at INFO, and header fields, at DEBUG
    logging.getLogger(_library).setLevel(logging.WARNING)

MAX_BYTES = 1 << 20
AT_ONCE = 8
MAX_WAITING = 64
CLOSE_S = 1.0
KEPT_S = 30.0
"""A connection that is kept for the next call."""
COMPRESSED = "its answer is compressed, which was not asked for"


class ExternalUnavailable(Exception):
    """The service did not answer as asked. `sent`: whether the request may have reached it."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class ExternalAnswer:
    """A whole answer. `headers` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class Download:
    """Where the body of a long answer goes, piece by piece: memory never holds all of it, and the deadline restarts
    with each piece. `take` runs on the loop of all outside calls, so it may write a file and wait for nothing."""

    take: Callable[[bytes], object]
    max_bytes: float


class Breaker:
    """Opens after `failures` in a row, for `pause_s` seconds and twice as long each time, up to `longest_s`."""

    def __init__(
        self,
        failures: int = 3,
        pause_s: float = 5.0,
        longest_s: float = 60.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = failures
        self._first_pause_s = self._pause_s = pause_s
        self._longest_s = longest_s
        self._now = now
        self._failed = 0
        self._open_until = float("-inf")

    def waits(self) -> float:
        """Seconds until a call may be tried, 0 if now; where it was open, only this caller's one is let through."""
        if self._failed < self._threshold:
            return 0.0
        if (left := self._open_until - self._now()) > 0:
            return left
        self._open_until = self._now() + self._pause_s  # for all but the one that tries
        return 0.0

    def succeeded(self) -> None:
        self._failed, self._pause_s = 0, self._first_pause_s

    def failed(self) -> None:
        self._failed += 1
        if self._failed >= self._threshold:
            self._open_until = self._now() + self._pause_s
            self._pause_s = min(2 * self._pause_s, self._longest_s)


class ExternalService:
    """One outside party. Any thread may use it.

    Args:
        name: what messages call it, such as "the identity provider".
        deadline_s: seconds for a whole call, from the resolution of the host's name to the last byte.
        max_bytes: of an answer's body.
        at_once: calls at a time; as many as MAX_WAITING wait for their turn, within their deadline.
        tls: how its certificate is verified; by default against the system's authorities.
        transport: instead of the network (tests).
        may_reach: which addresses may be called, where the URL comes from others. All that the name resolves to are
            asked, and the connection goes to one that was, so that a name cannot lead elsewhere meanwhile.
    """

    def __init__(
        self,
        name: str,
        *,
        deadline_s: float,
        max_bytes: int = MAX_BYTES,
        at_once: int = AT_ONCE,
        tls: ssl.SSLContext | None = None,
        breaker: Breaker | None = None,
        transport: Any = None,
        may_reach: Callable[[IPv4Address | IPv6Address], bool] | None = None,
    ) -> None:
        self._may_reach = may_reach
        self.name = name
        self._deadline_s = deadline_s
        self._max_bytes = max_bytes
        self._at_once = at_once
        self._tls = tls
        self._breaker = breaker or Breaker()
        self._transport = transport
        self._client: httpx2.AsyncClient | None = None
        self._closing: weakref.finalize[..., ExternalService] | None = None
        self._turn: asyncio.Semaphore | None = None
        self._waiting = 0

    def request(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        into: "Download | None" = None,
    ) -> ExternalAnswer:
        """Ask, and wait for the whole answer, from a thread; the body of a success goes `into` a download, if one is
        given. Raises ExternalUnavailable."""
        try:
            return self._submit(method, url, content, headers, into).result()
        except CancelledError:
            raise ExternalUnavailable(
                f"the answer of {self.name} was not waited for, since this process ends; call again after the restart",
                sent=True,
            ) from None

    async def ask(
        self, method: str, url: str, *, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ExternalAnswer:
        """As `request`, from a coroutine, without holding a thread."""
        return await asyncio.wrap_future(self._submit(method, url, content, headers))

    def close(self) -> None:
        """Close the kept connections, from a thread; also done when the service is no longer used."""
        with suppress(FutureTimeout):
            if (closed := self._closed()) is not None:
                closed.result(CLOSE_S)

    async def aclose(self) -> None:
        """As `close`, from a coroutine."""
        if (closed := self._closed()) is not None:
            await asyncio.wrap_future(closed)

    def _closed(self) -> "Future[None] | None":
        closing, self._closing = self._closing, None
        client, self._client = self._client, None
        if closing is None or client is None:
            return None
        closing.detach()
        return _close(client)

    def _submit(
        self,
        method: str,
        url: str,
        content: bytes | None,
        headers: Mapping[str, str] | None,
        into: "Download | None" = None,
    ) -> "Future[ExternalAnswer]":
        return _runner().submit(self._call(method, url, content, headers, into))

    async def _call(
        self, method: str, url: str, content: bytes | None, headers: Mapping[str, str] | None, into: "Download | None"
    ) -> ExternalAnswer:
        if wait := self._breaker.waits():
            raise ExternalUnavailable(
                f"{self.name} did not answer several times in a row; it is asked again in {wait:.0f} s", sent=False
            )
        if self._turn is None:
            self._turn = asyncio.Semaphore(self._at_once)
        if self._waiting >= MAX_WAITING:
            raise ExternalUnavailable(f"too many calls wait for {self.name}; try again later", sent=False)
        self._waiting += 1
        began = False
        try:
            async with asyncio.timeout(self._deadline_s) as deadline, self._turn:
                began = True
                answer = await self._exchange(method, url, content, headers, into, deadline)
        except TimeoutError:
            if not began:  # others of ours were in the way
                raise ExternalUnavailable(f"too many calls wait for {self.name}; try again later", sent=False) from None
            self._breaker.failed()
            raise ExternalUnavailable(
                f"{self.name} did not answer within {self._deadline_s:g} seconds; check that it runs", sent=True
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            self._breaker.failed()
            unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.InvalidURL)
            raise ExternalUnavailable(
                f"{self.name} cannot be reached: {_reason(error)}; check its address and that it runs", sent=not unsent
            ) from None
        finally:
            self._waiting -= 1
        self._breaker.succeeded()
        return answer

    async def _exchange(
        self,
        method: str,
        url: str,
        content: bytes | None,
        headers: Mapping[str, str] | None,
        into: "Download | None",
        deadline: asyncio.Timeout,
    ) -> ExternalAnswer:
        if self._client is None:
            self._client = httpx2.AsyncClient(
                verify=self._tls or default_tls(),
                transport=self._transport,
                timeout=self._deadline_s,
                follow_redirects=False,
                trust_env=False,
                limits=httpx2.Limits(max_connections=self._at_once, keepalive_expiry=KEPT_S),
            )
            self._closing = closing = weakref.finalize(self, _close, self._client)
            closing.atexit = False
        # Uncompressed: a kilobyte of a compressed answer could become a gigabyte before its size is known.
        sent = {"accept-encoding": "identity", **(headers or {})}
        named: dict[str, str] = {}
        if self._may_reach is not None:
            host, url, sent["host"] = await self._checked(url, self._may_reach)
            named["sni_hostname"] = host  # under which the certificate is checked too
        async with self._client.stream(method, url, content=content, headers=sent, extensions=named) as answer:
            if answer.headers.get("content-encoding", "identity").lower() != "identity":
                raise httpx2.ReadError(COMPRESSED)
            body = bytearray()
            downloads = into if into is not None and answer.is_success else None
            take, most = (body.extend, self._max_bytes) if downloads is None else (downloads.take, downloads.max_bytes)
            size = 0
            async for piece in answer.aiter_bytes():
                size += len(piece)
                if size > most:
                    raise httpx2.ReadError(f"its answer is larger than {most} bytes; check its address")
                take(piece)
                if downloads is not None:
                    deadline.reschedule(asyncio.get_running_loop().time() + self._deadline_s)
            lowered = {name.lower(): value for name, value in answer.headers.items()}
            return ExternalAnswer(answer.status_code, lowered, bytes(body))

    async def _checked(self, url: str, may_reach: Callable[[IPv4Address | IPv6Address], bool]) -> tuple[str, str, str]:
        """The host, the URL with an address in its place, and the header that names the host."""
        parts = httpx2.URL(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        found = await asyncio.get_running_loop().getaddrinfo(parts.host, port, type=socket.SOCK_STREAM)
        addresses = [ip_address(str(each[4][0]).partition("%")[0]) for each in found]
        if not addresses or not all(may_reach(each) for each in addresses):
            raise ExternalUnavailable(
                f"{self.name} has an address that may not be called from here; name another one, or allow its network",
                sent=False,
            )
        return parts.host, str(parts.copy_with(host=str(addresses[0]))), parts.netloc.decode("ascii")


def _close(client: httpx2.AsyncClient) -> "Future[None]":
    return _runner().submit(client.aclose())


def stop_within(seconds: float) -> None:
    """The gateway ends: calls under way have `seconds` left, and later ones what then is left of them."""
    if _runner.cache_info().currsize:
        _runner().stop_within(seconds)


def resume() -> None:
    """The gateway has ended and its process continues: calls have their own deadlines again."""
    if _runner.cache_info().currsize:
        _runner().resume()


@cache
def default_tls() -> ssl.SSLContext:
    """The system's authorities, loaded once."""
    return ssl.create_default_context()


def _reason(error: Exception) -> str:
    """What went wrong, without the address; of our own bound in words."""
    said = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return "its certificate is not of an authority that is trusted here"
    return said if said.startswith("its answer is ") else type(error).__name__


class _Runner:
    """The event loop that all outside calls of this process run on."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_DaemonThreads())
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ends_at: float | None = None
        self._end: asyncio.TimerHandle | None = None
        threading.Thread(target=self.loop.run_forever, name="external calls", daemon=True).start()

    def submit(self, call: Any) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(self._tracked(call), self.loop)

    def stop_within(self, seconds: float) -> None:
        def begin() -> None:
            self._forget_the_end()
            self._ends_at = self.loop.time() + seconds
            self._end = self.loop.call_later(seconds, self._cancel)

        self.loop.call_soon_threadsafe(begin)

    def resume(self) -> None:
        self.loop.call_soon_threadsafe(self._forget_the_end)

    def _forget_the_end(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._ends_at = self._end = None

    async def _tracked(self, call: Any) -> Any:
        task = asyncio.current_task()
        if self._ends_at is not None and self.loop.time() >= self._ends_at:
            call.close()
            raise ExternalUnavailable(
                "this process ends, so it calls no outside service; call again after the restart", sent=False
            )
        if task is not None:
            self._tasks.add(task)
        try:
            return await call
        finally:
            self._tasks.discard(task)

    def _cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()


class _DaemonThreads(ThreadPoolExecutor):
    """Resolves names in daemon threads: a resolver that hangs must not hold the end of the process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="external names", daemon=True).start()
        return future


@cache
def _runner() -> _Runner:
    return _Runner()
