"""A backend as a running process: uvicorn, signals, the ready line, and the drain at the end."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import uvicorn
from starlette.types import ASGIApp

from backend.answer.fingerprint import fingerprint
from backend.answer.weights import Weights
from backend.chat.conversation import AUTO, NONE, ChatModel
from backend.engine.core.progress import Stage
from backend.engine_config import EngineConfig
from backend.errors import ConfigError
from backend.frontends.main_process import Backend, Hub
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.models.checkpoints.generation_config import SamplingDefaults
from backend.process.gpu_meter import GpuMeter, open_probe
from backend.process.messages import Loading
from backend.process.replicas import Engines, Fleet, engines_of
from backend.process.supervision import RESTARTS, supervise
from backend.server.app import GenerationApi
from backend.server.base_api import BaseApi, Identity
from backend.server.embedding_server import EmbeddingApi
from backend.server.evidence import EvidenceSource
from backend.server.heartbeat import beat
from backend.server.request_lock import RequestLock, TakenTokens, read_key
from backend.server.scoring_server import ScoringApi
from backend.server.tls import TlsFiles, reload_when_renewed, server_context
from backend.server.transfers import MIXED, PREFILL, Transfers, require_role

log = logging.getLogger(__name__)

DRAIN_S = 30  # how long answers may run after SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a backend is served.

    Attributes:
        served_name: the model's name in requests.
        tls: None: no TLS.
        heartbeat: a file to touch while the engine loop answers.
        tool_call_parser, reasoning_parser: as in `ChatModel`.
        generation_config: auto, the checkpoint's sampling defaults hold for what a request does not set; none, neutral
            values do.
        restarts: times in ten minutes that an engine which died is replaced.
        request_key: a public key, PEM: only requests with a token that it verifies are answered.
        data_parallel_size: engines, each with the whole model.
        http_processes: that serve HTTP; with more than one the main process has the engine and no connection.
        evidence: a program that says what the hardware attests (`backend.server.evidence`).
        role, transfer_port, transfer_timeout_s, transfer_memory: see `backend.server.transfers`.
    """

    served_name: str
    host: str
    port: int
    tls: TlsFiles | None
    identity: Identity
    heartbeat: Path | None = None
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    generation_config: str = AUTO
    restarts: int = RESTARTS
    request_key: Path | None = None
    data_parallel_size: int = 1
    http_processes: int = 1
    evidence: Path | None = None
    role: str = MIXED
    transfer_port: int = 0
    transfer_timeout_s: float = 10.0
    transfer_memory: bool = False


def serve(config: EngineConfig, options: ServerOptions) -> None:
    """Run until SIGTERM or SIGINT; then no connection is taken, running answers get DRAIN_S to end, and what waits for
    its start is refused, so that the client can ask another backend.

    One JSON line on stdout, ``{"event": "ready", "port": …, "pid": …}``, says when requests are welcome, with
    ``transfer_port`` of a backend that computes prompts for others; until then ``/readyz`` says how far loading is.
    Raises ConfigError, ModelError or EngineDead before that.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if options.generation_config not in (AUTO, NONE):
        raise ConfigError(
            f"generation_config {options.generation_config!r} is not known; set --generation-config to auto or none"
        )
    context = server_context(options.tls) if options.tls else None
    key = read_key(options.request_key) if options.request_key else None
    require_role(options.role, options.data_parallel_size, options.tls, locked=key is not None)
    checkpoint = Checkpoint(resolve(config.model), config.max_model_len)
    require_one_process(options, checkpoint)
    listeners = _listeners(options)
    fleet = engines_of(config, options.data_parallel_size)
    engine = fleet.engines
    meter = _meter(config, engine, options.data_parallel_size)
    app, api = app_of(checkpoint, engine, meter, options)
    api.evidence = EvidenceSource(options.evidence, options.tls.cert if options.tls else None)
    api.speculation = config.speculation
    api.weights = Weights(None if config.load_format == "dummy" else resolve(config.model))
    transfers = None
    unlocked = app
    if key is not None:
        app = lock = RequestLock(app, key, tenant=options.identity.tenant, backend=options.identity.backend_id)
        transfers = _transfers(options, lock, fleet)
    settings = uvicorn_settings(app, context)
    if context is None:
        log.warning(
            "no TLS: anyone on this machine who can reach %s:%d is served; set --cert, --key, --ca and --peer-uri",
            *listeners[0].getsockname()[:2],
        )
    if options.http_processes == 1:
        server: Server | Hub = Server(settings, engine.leave, listeners)
    else:
        server = Hub(_behind(options, engine, unlocked, api), listeners)
    backend = _Backend(config, options, fleet, api, settings, server, listeners[0], context, transfers)
    if meter is not None:
        meter.start()
    try:
        with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
            runner.run(backend.live())
    finally:
        if meter is not None:
            meter.stop()


def _behind(options: ServerOptions, engine: Engines, app: ASGIApp, api: BaseApi) -> Backend:
    """What several processes of the server are in front of. app: without the lock, which each of them has."""
    return Backend(
        engine=engine,
        app=app,
        metrics=api.metrics,
        take_token=TakenTokens().take_soon,
        fingerprint=lambda: api.fingerprint if isinstance(api, GenerationApi) else None,
        told=told_of(options),
        leave=engine.leave,
        drain_s=DRAIN_S,
    )


def _transfers(options: ServerOptions, lock: RequestLock, fleet: Fleet) -> Transfers | None:
    """None for a backend that neither computes prompts for others nor fetches any."""
    if options.role == MIXED or options.tls is None:
        return None
    listener = _listen(options.host, options.transfer_port) if options.role == PREFILL else None
    windows = fleet.clients[0] if options.transfer_memory else None
    return Transfers(options.role, options.tls, lock, options.transfer_timeout_s, listener, windows)


def app_of(
    checkpoint: Checkpoint, engine: Engines, meter: GpuMeter | None, options: ServerOptions
) -> tuple[ASGIApp, BaseApi]:
    """The application that serves the checkpoint, and its API."""
    name, identity = options.served_name, options.identity
    if checkpoint.embedding is not None and checkpoint.scores_pairs:
        scoring = ScoringApi(engine, checkpoint.pair_text, checkpoint.embedding, name, identity, meter)
        return scoring.app(), scoring
    if checkpoint.embedding is not None:
        embedding = EmbeddingApi(engine, checkpoint.embedding_text, checkpoint.embedding, name, identity, meter)
        return embedding.app(), embedding
    chats = ChatModel(checkpoint.text, options.tool_call_parser, options.reasoning_parser)
    defaults = SamplingDefaults() if options.generation_config == NONE else checkpoint.sampling_defaults
    api = GenerationApi(engine, checkpoint.text, name, identity, chats, meter, defaults)
    return api.app(), api


def uvicorn_settings(app: ASGIApp, context: ssl.SSLContext | None) -> uvicorn.Config:
    """Settings of a server over TLS with this context, or without TLS."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
        ssl_context_factory=(lambda _config, _default: context) if context else None,
    )


@dataclass(frozen=True, slots=True)
class _Backend:
    """What `serve` has put together, to be run on an event loop."""

    config: EngineConfig
    options: ServerOptions
    fleet: Fleet
    api: BaseApi
    settings: uvicorn.Config
    server: "Server | Hub"
    listener: socket.socket
    context: ssl.SSLContext | None
    transfers: Transfers | None = None

    async def live(self) -> None:
        """Start engine and server, and serve until a signal; then stop both. Raises what `EngineClient.start` does."""
        engine, server = self.fleet.engines, self.server
        serving = asyncio.create_task(server.serve_all())
        bar = LoadingBar(sys.stderr)
        self.api.weights.begin()  # before the engine reads the files
        measuring = asyncio.create_task(self._measure())
        starting = asyncio.create_task(engine.start(bar))
        supervising: list[asyncio.Task[None]] = []
        beside = self._reloading()
        if self.transfers is not None:
            beside += self.transfers.begin(self.api)
        try:
            await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                ready = starting.result()
                log.info("engine ready: %d KV blocks, context %d", ready.stats.total_blocks, ready.max_model_len)
                await server.up.wait()  # long since, as a rule
                _say_ready(self.listener, self.transfers)
                beside += self._beating()
                supervising = [
                    asyncio.create_task(supervise(client, self.options.restarts, bar)) for client in self.fleet.clients
                ]
            await serving
        finally:
            server.should_exit = True
            self.api.weights.stop()
            for task in (starting, *supervising, *beside):
                task.cancel()
            await asyncio.gather(serving, starting, measuring, *supervising, return_exceptions=True)
            await engine.stop()
            await self.api.close()

    def _reloading(self) -> list[asyncio.Task[None]]:
        """The task that loads renewed certificates; none without TLS."""
        if self.context is None or self.options.tls is None:
            return []
        return [asyncio.create_task(reload_when_renewed(self.context, self.options.tls))]

    def _beating(self) -> list[asyncio.Task[None]]:
        """The task that touches the heartbeat file; none without such a file."""
        if self.options.heartbeat is None:
            return []
        return [asyncio.create_task(beat(self.fleet.engines.ping, self.options.heartbeat))]

    async def _measure(self) -> None:
        """Hash the checkpoint beside its load and the first requests; no start waits for it."""
        measured = await self.api.weights.measure()
        if measured is not None and isinstance(self.api, GenerationApi):
            self.api.fingerprint = fingerprint(measured.sha256, self.config)
            log.info("fingerprint %s, weights %s", self.api.fingerprint, measured.sha256)


def _meter(config: EngineConfig, engine: Engines, engines: int) -> GpuMeter | None:
    probe = open_probe(config.device, config.ranks * engines)
    return None if probe is None else GpuMeter(probe, lambda: engine.stats.running if engine.stats else 0)


class LoadingBar:
    """How far each stage of a start is: a bar where someone watches, a line a tenth in a log."""

    WIDTH = 30

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._stage: Stage | None = None
        self._last = -1
        self._begin = time.monotonic()

    def __call__(self, loading: Loading) -> None:
        share = loading.done / loading.total if loading.total else 1.0
        if loading.stage is not self._stage:
            self._stage, self._last, self._begin = loading.stage, -1, time.monotonic()
        weights = loading.stage is Stage.WEIGHTS
        whole = f"{loading.total / 2**30:.1f} GiB" if weights else str(loading.total)
        if self._out.isatty():
            filled = int(share * self.WIDTH)
            end = "\n" if loading.done >= loading.total else ""
            bar = "█" * filled + "·" * (self.WIDTH - filled)
            self._out.write(f"\r{loading.stage:8} {bar} {share:4.0%} of {whole}{end}")
            self._out.flush()
        elif (tenth := int(share * 10)) > self._last:
            self._last = tenth
            seconds = max(1e-9, time.monotonic() - self._begin)
            rate = f", {loading.done / 1e9 / seconds:.2f} GB/s" if weights else ""
            log.info("%s: %d %% of %s%s", loading.stage, share * 100, whole, rate)


class Server(uvicorn.Server):
    """Says when it is `up`, and takes signals without raising them again after its end: the engine is to be stopped
    first. ``leave`` is called at the first signal."""

    def __init__(self, config: uvicorn.Config, leave: Callable[[], None], listeners: list[socket.socket]) -> None:
        super().__init__(config)
        self._leave = leave
        self._listeners = listeners
        self.up = asyncio.Event()

    async def serve_all(self) -> None:
        await self.serve(sockets=self._listeners)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        self._leave()
        self.handle_exit(number, None)


def _say_ready(listener: socket.socket, transfers: Transfers | None) -> None:
    said = {"event": "ready", "port": listener.getsockname()[1], "pid": os.getpid()}
    if transfers is not None and transfers.port is not None:
        said["transfer_port"] = transfers.port
    print(json.dumps(said), flush=True)


def require_one_process(options: ServerOptions, checkpoint: Checkpoint) -> None:
    """Raises ConfigError for a server of several processes that has to be one."""
    if options.http_processes == 1:
        return
    if checkpoint.embedding is not None:
        raise ConfigError("several processes serve models that write text; leave --http-processes out")
    if options.role != MIXED:
        raise ConfigError(f"a backend of role {options.role} is served by one process; leave --http-processes out")


def told_of(options: ServerOptions) -> dict[str, Any]:
    """What each of several processes needs of the options; see `server_options`."""
    tls = options.tls
    return {
        "served_name": options.served_name,
        "identity": [options.identity.tenant, options.identity.region, options.identity.backend_id],
        "tls": None if tls is None else [str(tls.cert), str(tls.key), str(tls.ca), tls.peer_uri],
        "request_key": None if options.request_key is None else str(options.request_key),
        "engines": options.data_parallel_size,
        "parsers": [options.tool_call_parser, options.reasoning_parser, options.generation_config],
    }


def server_options(told: dict[str, Any]) -> ServerOptions:
    """The inverse of `told_of`. Host and port are those of a socket that is inherited."""
    tls = told["tls"]
    tool_call_parser, reasoning_parser, generation_config = told["parsers"]
    return ServerOptions(
        served_name=told["served_name"],
        host="",
        port=0,
        identity=Identity(*told["identity"]),
        tls=None if tls is None else TlsFiles(cert=Path(tls[0]), key=Path(tls[1]), ca=Path(tls[2]), peer_uri=tls[3]),
        request_key=None if told["request_key"] is None else Path(told["request_key"]),
        data_parallel_size=told["engines"],
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        generation_config=generation_config,
    )


def _listeners(options: ServerOptions) -> list[socket.socket]:
    """One for each process, all of one port. Raises ConfigError when the address cannot be bound."""
    shared = options.http_processes > 1
    first = _listen(options.host, options.port, shared=shared)
    port = first.getsockname()[1]
    return [first, *(_listen(options.host, port, shared=True) for _ in range(options.http_processes - 1))]


def _listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """shared: others of this user's processes may listen there, too; the kernel divides connections among them. Raises
    ConfigError when the address cannot be bound."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from None
    return listener
