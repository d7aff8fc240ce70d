"""Role of a backend, prefill, decode or both, and the server for its transfers of KV cache.

A `prefill` backend listens on a second port, where only backends of its tenant get through the handshake, and each
transfer needs a token of the gateway that names both. A `decode` backend fetches what a call's token names. Both also
answer calls as any backend does.
"""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from functools import partial

from backend.apart.fetch import Fetcher
from backend.apart.source import Refused, Source
from backend.errors import ConfigError
from backend.process.engine_client import EngineClient
from backend.server.app import GenerationApi
from backend.server.base_api import BaseApi
from backend.server.request_lock import RequestLock, TokenRefused
from backend.server.tls import TlsFiles, context_for_backends, context_to_backend, reload_when_renewed

ROLES = MIXED, PREFILL, DECODE = "mixed", "prefill", "decode"


def require_role(role: str, engines: int, tls: TlsFiles | None, *, locked: bool) -> None:
    """locked: calls need request tokens. Raises ConfigError if a backend cannot have such a role."""
    if role not in ROLES:
        raise ConfigError(f"role {role!r} is not known; set --role to one of {', '.join(ROLES)}")
    if role == MIXED:
        return
    if tls is None or not locked:
        raise ConfigError(
            f"a backend of role {role} exchanges keys and values with others of its tenant only"
            "; add --request-key, --cert, --key, --ca and --peer-uri"
        )
    if engines > 1:
        raise ConfigError(f"a backend of role {role} is one engine; leave --data-parallel-size out")
    context_for_backends(tls)


@dataclass(frozen=True, slots=True)
class Transfers:
    """silence_s: how long a transfer may be silent. listener: of a `prefill` backend. windows: the engine, if blocks
    may go through memory that backends of one host share; None: they go in frames."""

    role: str
    tls: TlsFiles
    lock: RequestLock
    silence_s: float
    listener: socket.socket | None
    windows: EngineClient | None = None

    @property
    def port(self) -> int | None:
        return None if self.listener is None else int(self.listener.getsockname()[1])

    def begin(self, api: BaseApi) -> list[asyncio.Task[None]]:
        """What runs beside the server. Raises ConfigError for a model whose keys and values cannot travel."""
        if not isinstance(api, GenerationApi):
            raise ConfigError(f"a model that writes no text has no decode; leave --role {self.role} out")
        if self.listener is None:
            to_backend = partial(context_to_backend, self.tls)
            api.fetcher = Fetcher(to_backend, lambda: api.statement, api.metrics, self.silence_s, self.windows)
            return []
        source = Source(api.engine, lambda: api.statement, self._admit, api.metrics, self.silence_s, self.windows)
        context: ssl.SSLContext = context_for_backends(self.tls)
        return [
            asyncio.create_task(source.serve(self.listener, context)),
            asyncio.create_task(reload_when_renewed(context, self.tls)),
        ]

    def _admit(self, token: bytes, peer: str) -> str:
        try:
            return self.lock.admit_transfer(token, peer)
        except TokenRefused as refused:
            raise Refused(str(refused)) from None
