"""Runs the gateway on a socket until a stop signal; running answers are finished first."""

import asyncio
import errno
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import uvicorn
import uvloop
from starlette.types import ASGIApp

from gateway.configuration.settings import Listen, Requests
from gateway.server.connection import bounded

T = TypeVar("T")

BACKLOG = 2048
UNSENT = 32 << 10
"""Bytes that the kernel holds of an answer beyond what a client's window takes; by default it is up to 4 MB."""
KEEP_ALIVE_S = 75
"""How long an idle connection stays open: longer than load balancers and clients keep theirs (mostly 60 s), so that
they close it first. A connection that we close while a request is in flight fails that request, which may not be
repeated (RFC 9112 §9.3.1)."""
BODY_S = Requests().body_timeout_s
GRACE_S = 20  # what running answers get before they are cut
CUT_S = 5  # what those that are cut get to close their record and to tell their clients


class _Server(uvicorn.Server):
    """Signals are handled by the caller, so that the services behind the gateway are stopped after it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: ASGIApp, listen: Listen, body_timeout_s: float = BODY_S) -> AsyncIterator[int]:
    """Serve `app` inside the block; yields the port. `body_timeout_s`: what `app` gives a request's body to arrive.

    Raises OSError if the address cannot be bound.
    """
    config = uvicorn.Config(
        app,
        host=listen.host,
        port=listen.port,
        loop="uvloop",
        http=bounded(body_timeout_s),  # type: ignore[arg-type]  # called like the class that it makes
        ws="none",
        lifespan="off",
        access_log=False,  # paths and addresses of callers belong into the record, under its rules
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nothing here trusts what a caller says of itself
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=str(listen.cert_file) if listen.cert_file else None,
        ssl_keyfile=str(listen.key_file) if listen.key_file else None,
        ssl_context_factory=_tls if listen.cert_file else None,
    )
    config.load()
    listener = listening(listen.host, listen.port)
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if running.done():
                await running
                raise OSError(
                    f"the gateway could not listen on {listen.host}:{listen.port}"
                    "; choose another listen.host or listen.port"
                )
            await asyncio.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running
        listener.close()
        if (
            cut := server.server_state.tasks
        ):  # those tell their clients and the record, and are not waited for by uvicorn
            await asyncio.wait(set(cut), timeout=CUT_S)


def _tls(config: uvicorn.Config, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """TLS 1.2 and above, regardless of the system's OpenSSL settings (RFC 9325 §3.1.1)."""
    try:
        context = make()
    except OSError as error:  # ssl.SSLError is one; neither names a file
        named = f"listen.cert_file {config.ssl_certfile} or listen.key_file {config.ssl_keyfile}"
        missing = isinstance(error, FileNotFoundError | PermissionError)
        reason = (
            f"{error.strerror}; make both readable"
            if missing
            else "not a certificate with its key; name two files in PEM"
        )
        raise OSError(f"{named}: {reason}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def run(main: Coroutine[None, None, T]) -> T:
    """`asyncio.run` on uvloop, which costs the gateway half of what asyncio's own loop does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def listening(host: str, port: int) -> socket.socket:
    """Raises OSError with the address and what to do."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # The protocol is named: where it reads 0, asyncio leaves Nagle's algorithm on for every connection it accepts, and
    # short writes then wait 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted connections have it from the listener
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        hint = "stop the program that has it, or take another port" if taken else "change listen.host or listen.port"
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}; {hint}") from error
    return listener


def stop_signal() -> asyncio.Event:
    """Set on SIGINT or SIGTERM. Ask for it before serving: until then such a signal ends the process as it is."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
