"""One of several processes that serve HTTP: ``python -m backend.server.front FD SOCKET``, started only by
`backend.frontends.main_process`.

It reads requests, makes token ids of them and text of tokens, as a server of one process does; what is of the whole
backend (health, metrics, scrub, sleep, adapters, weights) it hands on to the main process, once the lock has let it in.
"""

import asyncio
import faulthandler
import logging
import signal
import socket
import sys

from starlette.types import ASGIApp, Receive, Scope, Send

from backend.answer.error_bodies import error_response
from backend.frontends.messages import Setup, State, from_hub
from backend.frontends.remote import RemoteEngine, RemoteMetrics
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.process.gpu_meter import GpuMeter, open_probe
from backend.process.messages import read
from backend.process.parent import die_with_parent
from backend.server.app import GenerationApi
from backend.server.base_api import MAX_BODY_BYTES, BodyTooLarge
from backend.server.request_lock import RequestLock, TokenRefused, read_key
from backend.server.serving import Server, ServerOptions, app_of, server_options, uvicorn_settings
from backend.server.tls import reload_when_renewed, server_context
from backend.wire import MARKS_PATH

OWN = frozenset({"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", MARKS_PATH})
"""Paths of calls that each process answers itself."""


def main() -> None:
    faulthandler.enable()
    die_with_parent()
    # Ctrl-C and a group-wide SIGTERM reach us too; the main process says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    channel, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    import uvloop

    uvloop.run(live(channel, listener))


async def live(channel: socket.socket, listener: socket.socket) -> None:
    """Serve until the main process says stop, or is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=channel)
    setup = await read(reader, from_hub)
    assert isinstance(setup, Setup)  # noqa: S101
    options, config = server_options(setup.told), setup.config
    checkpoint = Checkpoint(resolve(config.model), config.max_model_len)
    api: GenerationApi | None = None

    def on_state(state: State) -> None:
        if api is not None:
            api.fingerprint = state.fingerprint

    engine = RemoteEngine(config, writer, on_state)
    probe = open_probe(config.device, config.ranks * options.data_parallel_size)
    meter = None if probe is None else GpuMeter(probe, lambda: engine.stats.running if engine.stats else 0)
    app, made = app_of(checkpoint, engine, meter, options)
    assert isinstance(made, GenerationApi)  # noqa: S101
    api = made
    api.metrics = RemoteMetrics(options.served_name, engine, api.metrics)
    context = server_context(options.tls) if options.tls else None
    served = locked(Forwarding(app, engine), engine, options)
    server = Server(uvicorn_settings(served, context), lambda: None, [listener])
    serving = asyncio.create_task(server.serve_all())
    beside = [asyncio.create_task(_stop_when_asked(engine, server))]
    if context is not None and options.tls is not None:
        beside.append(asyncio.create_task(reload_when_renewed(context, options.tls)))
    if meter is not None:
        meter.start()
    try:
        await server.up.wait()
        beside.append(asyncio.create_task(engine.listen(reader)))  # its first answer says that we listen
        await serving
        await writer.drain()
    finally:
        if meter is not None:
            meter.stop()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await api.close()
        writer.close()


async def _stop_when_asked(engine: RemoteEngine, server: Server) -> None:
    await engine.stop_asked.wait()
    server.should_exit = True


def locked(app: ASGIApp, engine: RemoteEngine, options: ServerOptions) -> ASGIApp:
    """Behind the lock that a server of one process has; a token is taken once of all processes."""
    if options.request_key is None:
        return app

    async def take(id: str, expires: float) -> None:
        if why := await engine.take_token(id, expires):
            raise TokenRefused(why)

    identity = options.identity
    return RequestLock(
        app, read_key(options.request_key), tenant=identity.tenant, backend=identity.backend_id, take=take
    )


class Forwarding:
    """An ASGI application: `app` for the calls that this process answers, the main process for all others."""

    def __init__(self, app: ASGIApp, engine: RemoteEngine) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["path"] in OWN and scope["method"] == "POST"):
            await self._app(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                too_large = BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes; send a smaller body")
                await error_response(too_large)(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
        try:
            answered = await self._engine.forward(
                scope["method"], scope["path"], scope.get("query_string", b""), scope["headers"], bytes(body)
            )
        except Exception as error:
            await error_response(error)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": answered.status, "headers": answered.headers})
        await send({"type": "http.response.body", "body": answered.body})


if __name__ == "__main__":
    main()
