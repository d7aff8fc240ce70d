"""Runs the gateway on a socket until it is told to stop; running answers are finished first."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from gateway.settings import Listen

GRACE_S = 20  # what running answers get before they are cut


class _Server(uvicorn.Server):
    """Signals are handled by whoever runs us, so that what stands behind the gateway is stopped after it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: ASGIApp, listen: Listen) -> AsyncIterator[int]:
    """Serve `app` inside the block; yields the port. Raises OSError when the address cannot be had."""
    config = uvicorn.Config(
        app,
        host=listen.host,
        port=listen.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,  # paths and addresses of callers belong into the record, under its rules
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=str(listen.cert_file) if listen.cert_file else None,
        ssl_keyfile=str(listen.key_file) if listen.key_file else None,
    )
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        listener = socket.create_server((listen.host, listen.port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"cannot listen on {listen.host}:{listen.port}: {os.strerror(error.errno or 0)}") from error
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if running.done():
                await running
                raise OSError(f"the gateway could not listen on {listen.host}:{listen.port}")
            await asyncio.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running
        listener.close()


def stop_signal() -> asyncio.Event:
    """Set on SIGINT or SIGTERM. Ask for it before serving: until then such a signal ends the process as it is."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
