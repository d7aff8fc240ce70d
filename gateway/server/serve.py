"""Runs the gateway on a socket until a stop signal; running answers are finished first."""

import asyncio
import errno
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network
from typing import TypeVar

import uvicorn
import uvloop
from starlette.types import ASGIApp

from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import Listen, Requests
from gateway.server.connection import BoundedConnection, bounded
from gateway.server.logs.log_lines import say
from gateway.server.proxies.proxied_listener import Client, ProxiedListener

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
CUT_S = 5  # for those that are cut, to close their record and to answer their clients


class _Server(uvicorn.Server):
    """Signals are handled by the caller, so that the services behind the gateway are stopped after it.

    `proxies`: networks whose connections begin with a header of the PROXY protocol.
    """

    def __init__(self, config: uvicorn.Config, proxies: Sequence[IPv4Network | IPv6Network]) -> None:
        super().__init__(config)
        self._proxies = proxies
        self._proxied: list[ProxiedListener] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if not self._proxies and self.config.ssl is None:
            return await super().startup(sockets)
        await self.lifespan.startup()
        self._proxied = [
            ProxiedListener(each, self._proxies, self._connection_of, self._connection, self.config.ssl)
            for each in sockets or ()
        ]
        self.servers = [*self._proxied]  # type: ignore[list-item]  # uvicorn calls `close` and `wait_closed`
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for each in self._proxied:
            each.drop_unopened()  # one that is opened later would be waited for
        await super().shutdown(sockets)

    def _connection(self) -> BoundedConnection:
        make: Callable[..., BoundedConnection] = self.config.http_protocol_class  # type: ignore[assignment]  # `bounded`
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _connection_of(self, client: Client) -> BoundedConnection:
        connection = self._connection()
        connection.speaks_for(client)
        return connection

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class RunningServer:
    """A server that takes connections at `port`."""

    def __init__(self, server: _Server, port: int, listen: Listen) -> None:
        self.port = port
        self._server = server
        self._listen = listen
        self._loaded = _contents(listen)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return not self._server.server_state.tasks

    def hand_over(self) -> None:
        """Another process takes the connections to come, from the same socket; those that are open are asked to leave.
        A connection that is taken and not used yet would be closed with the first request on its way."""
        for each in self._server.servers:
            each.close()
        self.ask_to_leave()

    def ask_to_leave(self) -> None:
        """Each answer from now on closes its connection: clients with kept connections open their next one elsewhere
        (RFC 9112 §9.6)."""
        config, state = self._server.config, self._server.server_state
        config.encoded_headers = [*config.encoded_headers, (b"connection", b"close")]  # what the next second's are of
        state.default_headers = [*state.default_headers, (b"connection", b"close")]

    def renew_certificate(self) -> bool:
        """Read the certificate and its key again, for connections to come; whether they changed.

        Raises OSError with the setting where they cannot be used; then the ones before stay.
        """
        read = _contents(self._listen)
        if read == self._loaded or self._server.config.ssl is None:
            return False
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._listen)  # a pair that does not fit harms no live context
        _load(self._server.config.ssl, self._listen)
        self._loaded = read
        return True


@asynccontextmanager
async def serving(app: ASGIApp, listen: Listen, body_timeout_s: float = BODY_S) -> AsyncIterator[int]:
    """`running_server`, with one bound that stays; yields the port."""
    async with running_server(app, listen, Bounds(Requests(body_timeout_s=body_timeout_s))) as server:
        yield server.port


@asynccontextmanager
async def running_server(
    app: ASGIApp, listen: Listen, bounds: Bounds, listener: socket.socket | None = None
) -> AsyncIterator[RunningServer]:
    """Serve `app` inside the block, on `listener` if one is given. `bounds` say what `app` gives a request's body to
    arrive.

    Raises OSError if the address cannot be bound, or the certificate cannot be used.
    """
    config = uvicorn.Config(
        app,
        host=listen.host,
        port=listen.port,
        loop="uvloop",
        http=bounded(lambda: bounds.now.body_timeout_s),  # type: ignore[arg-type]  # called like the class that it makes
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
        ssl_context_factory=(lambda config, default: _tls(listen)) if listen.cert_file else None,
    )
    config.load()
    listener = listener or listening(listen.host, listen.port)
    listener.setblocking(False)
    server = _Server(config, listen.proxy_protocol_from or ())
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
        yield RunningServer(server, listener.getsockname()[1], listen)
    finally:
        server.should_exit = True
        await running
        listener.close()
        if (
            cut := server.server_state.tasks
        ):  # those answer their clients and are recorded, and are not waited for by uvicorn
            await asyncio.wait(set(cut), timeout=CUT_S)


def _tls(listen: Listen) -> ssl.SSLContext:
    """TLS 1.2 and above, regardless of the system's OpenSSL settings (RFC 9325 §3.1.1)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, listen)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _load(context: ssl.SSLContext, listen: Listen) -> None:
    """Raises OSError that names the settings."""
    try:
        context.load_cert_chain(str(listen.cert_file), str(listen.key_file), password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; neither names a file
        named = f"listen.cert_file {listen.cert_file} or listen.key_file {listen.key_file}"
        reason = "not a certificate with its key; name two files in PEM"
        if isinstance(error, FileNotFoundError | PermissionError):
            reason = f"{error.strerror}; name files that the gateway may read"
        raise OSError(f"{named}: {reason}") from error


def _no_password() -> str:
    """Where a key is encrypted OpenSSL would ask at the terminal, and wait."""
    raise ValueError("the key is encrypted; write it without a password")


def _contents(listen: Listen) -> tuple[bytes, ...]:
    """The certificate's file and its key's, to see whether they change. Raises OSError."""
    files = (listen.cert_file, listen.key_file)
    return tuple(sha256(file.read_bytes()).digest() for file in files if file is not None)


def run(main: Coroutine[None, None, T]) -> T:
    """`asyncio.run` on uvloop, which costs the gateway half of what asyncio's own loop does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def listening_together(host: str, port: int, places: int) -> list[socket.socket]:
    """A listener for each of several processes on one port, among which the kernel spreads connections. Raises OSError
    as `listening`: the address has to be free, since another gateway could share it unseen."""
    listening(host, port).close()
    first = listening(host, port, shared=True)
    others = range(1, places)
    return [first, *(listening(host, first.getsockname()[1], shared=True) for _ in others)]


def listening(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """`shared`: others of this user may listen there too. Raises OSError with the address and what to do."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # The protocol is named: where it reads 0, asyncio leaves Nagle's algorithm on for every connection it accepts, and
    # short writes then wait 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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


TO_STOP = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Those of `numbers`, in the order in which they come; SIGTERM and SIGINT ask to stop. Make it before serving:
    until then each ends the process as it is."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._come: asyncio.Queue[signal.Signals] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for number in numbers:
            loop.add_signal_handler(number, self._come.put_nowait, number)

    async def stop_when(self, over: asyncio.Event) -> None:
        """Act as at SIGTERM once `over` is set."""
        await over.wait()
        self._come.put_nowait(signal.SIGTERM)

    async def next(self) -> signal.Signals:
        return await self._come.get()

    async def stop(self, reload: Callable[[], Awaitable[object]]) -> signal.Signals:
        """The signal to stop; `reload` is run at each SIGHUP before it."""
        while (number := await self._come.get()) is signal.SIGHUP:
            await reload()
        return number


def say_listening(listen: Listen, port: int) -> None:
    """The line from which people and scripts take the address."""
    scheme = "https" if listen.cert_file else "http"
    say(f"listening on {scheme}://{listen.host}:{port}/v1")
