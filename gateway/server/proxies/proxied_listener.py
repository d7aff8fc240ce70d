"""Listener of connections that need something before the event loop takes them over: a PROXY header, or their turn for
a TLS handshake.

Each connection of a proxy begins with a header of the PROXY protocol. It precedes TLS, so exactly its bytes are read
from the socket. Connections from other addresses are served directly: a PROXY header there is an error of HTTP or TLS.

A handshake costs some .3 ms of the event loop, and the loop reads up to 1,024 connections in one turn. So connections
wait for each other's handshakes once their first bytes have come, from one address after another.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from itertools import count

from gateway.server.connection import Turns
from gateway.server.proxies.proxy_header import MAX_BYTES, ProxyHeader, ProxyHeaderError, parse

log = logging.getLogger("domicile.gateway")

HEADER_S = 5.0
"""Time for a header to arrive (§3 of the specification: at least 3 s)."""
ACCEPT_PAUSE_S = 1.0
"""Pause after a failed accept, for example with too many open files; the same as in asyncio's servers."""
ACCEPTED_AT_ONCE = 16
"""In one turn of the event loop."""
HANDSHAKE_S = 10.0
"""For a TLS handshake, first for its beginning and then for the rest."""
LOG_PAUSE_S = 60.0
"""Least time between two log lines on refused connections."""

Client = tuple[str, int] | None
Make = Callable[[Client], asyncio.Protocol]
"""Creates the protocol of a connection; the argument is the client that the header names."""


class ProxiedListener:
    """Accepts connections at `listener`, a non-blocking socket. `networks`: networks of the proxies. `direct` creates
    the protocol of other connections. `close` and `wait_closed` are as in `asyncio.Server`."""

    def __init__(
        self,
        listener: socket.socket,
        networks: Sequence[IPv4Network | IPv6Network],
        make: Make,
        direct: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._listener, self._networks, self._make, self._direct, self._tls = listener, networks, make, direct, tls
        self._loop = asyncio.get_running_loop()
        self._turns = Turns()
        self._opening: set[asyncio.Task[None]] = set()
        self._logged = -LOG_PAUSE_S
        self._accepting = asyncio.create_task(self._accept(), name="proxied listener")

    def close(self) -> None:
        """Stop accepting. Accepted connections that still wait for their header are served."""
        self._accepting.cancel()
        self._listener.close()

    def drop_unopened(self) -> None:
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self._opening, return_exceptions=True)

    async def _accept(self) -> None:
        for number in count(1):
            if number % ACCEPTED_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                connection, peer = await self._loop.sock_accept(self._listener)
            except OSError as error:
                if self._listener.fileno() < 0:
                    return
                log.error("connections could not be accepted: %s; raise the limit of open files", error.strerror)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            task = asyncio.create_task(self._open(connection, peer[0]), name="proxied connection")
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, peer: str) -> None:
        handed_over = False
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            make = self._direct
            if self._speaks_for_others(peer):
                header = await self._header(connection)

                def make() -> asyncio.Protocol:
                    return self._make(header.source)

            if self._tls is not None:
                async with asyncio.timeout(HANDSHAKE_S):
                    await self._readable(connection)
                await self._turn(peer)
            handed_over = True  # the loop closes it from here on
            seconds = None if self._tls is None else HANDSHAKE_S
            await self._loop.connect_accepted_socket(make, connection, ssl=self._tls, ssl_handshake_timeout=seconds)
        except ProxyHeaderError as error:
            self._refused(peer, str(error))
        except OSError:  # the client disconnected, or TLS failed or did not come (ssl.SSLError, TimeoutError)
            pass
        finally:
            if not handed_over:
                connection.close()

    async def _turn(self, peer: str) -> None:
        turn = self._loop.create_future()

        def take() -> None:
            if not turn.done():
                turn.set_result(None)

        self._turns.take(take, peer, goes_on=False)
        await turn

    async def _header(self, connection: socket.socket) -> ProxyHeader:
        """Read the header. Raises ProxyHeaderError, and OSError if the proxy closes the connection."""
        try:
            async with asyncio.timeout(HEADER_S):
                return await self._read_header(connection)
        except TimeoutError:
            raise ProxyHeaderError(f"no PROXY header came within {HEADER_S:g} s") from None

    async def _read_header(self, connection: socket.socket) -> ProxyHeader:
        data = b""
        while True:
            await self._readable(connection)
            with suppress(BlockingIOError):
                seen = connection.recv(MAX_BYTES, socket.MSG_PEEK)
                if not seen:
                    raise ConnectionResetError
                header = parse(data + seen)
                wanted = len(seen) if header is None else header.length - len(data)
                data += connection.recv(wanted)
                if header is not None:
                    return header

    async def _readable(self, connection: socket.socket) -> None:
        ready = self._loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        self._loop.add_reader(connection, wake)
        try:
            await ready
        finally:
            self._loop.remove_reader(connection)

    def _speaks_for_others(self, peer: str) -> bool:
        address: IPv4Address | IPv6Address = ip_address(peer.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)

    def _refused(self, peer: str, reason: str) -> None:
        """Log a refusal, at most one line a minute, so that connections cannot fill the log."""
        if (now := time.monotonic()) - self._logged >= LOG_PAUSE_S:
            self._logged = now
            log.warning(
                "a connection from %s was refused: %s; let the proxy send it, or take its network out of "
                "listen.proxy_protocol_from",
                peer,
                reason,
            )
