"""The second lock: behind mutual TLS, a call is answered only with a token that the cell signed for it.

The token names this tenant and this backend, the decision that let the call go, its method, path and project, and the
body's SHA-256; it holds for a minute, and once. It also brings the key that the answer is to be watermarked with, and
whether the answer commits to its activations, which so are no caller's to give. With a gateway's certificate alone, or
the socket, none can be made.
See `gateway.upstream.request_token`.
"""

import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from itertools import islice
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.apart.fetch import PrefillGrant
from backend.errors import BackendError, ConfigError
from backend.marks.scheme import KEY_BYTES
from backend.wire import (
    PING_PATH,
    PREFILL_HEADER,
    PROJECT_HEADER,
    REQUEST_TOKEN_HEADER,
    TRANSFER_METHOD,
    TRANSFER_PATH,
    ErrorBody,
    ErrorDetail,
)

MAX_TOKEN = 4096
MAX_BODY_BYTES = 8 << 20
MAX_TAKEN = 200_000
"""Tokens that are remembered until they end by themselves; beyond that none is taken."""
OPEN_PATHS = frozenset({"/healthz", PING_PATH})
"""What an orchestrator asks that has no token: whether the process lives and is ready."""
SKEW_S = 30.0
"""How far the gateway's clock may be from ours."""
MARK_KEY = "domicile.mark_key"
"""In the scope of a request: the 32 bytes that its answer is watermarked with, or None."""
PREFILL_KEY = "domicile.prefill"
"""In the scope of a request: the `PrefillGrant` that its token names, or None."""
COMMITS = "domicile.commits"
"""In the scope of a request: whether its answer commits to its activations (`backend.activations`)."""
_FIELD = REQUEST_TOKEN_HEADER.encode()
_PREFILL = PREFILL_HEADER.encode()
_PROJECT = PROJECT_HEADER.encode()


class TokenRefused(BackendError):
    """The message names the rule that the token breaks, and nothing of the token."""

    fix = "call the backend through its cell's gateway, or with a new token (`domicile backend create-token`)"


class TakenTokens:
    """The ids of tokens that were shown, until they end by themselves: one for all processes of a backend."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._taken: dict[str, float] = {}  # until when each could be shown again

    def take(self, id: str, expires: float) -> None:
        """Once. Raises TokenRefused. Those whose time is over are forgotten, oldest first: they are in the order of
        their arrival."""
        now = self._now()
        for known, until in list(islice(self._taken.items(), 8)):
            if until < now:
                del self._taken[known]
        if id in self._taken:
            raise TokenRefused("the request token was used already")
        if len(self._taken) >= MAX_TAKEN:
            raise TokenRefused("more request tokens are in use than can be remembered")
        self._taken[id] = expires + SKEW_S

    async def take_soon(self, id: str, expires: float) -> None:
        """`take`, in the form of one that asks another process."""
        self.take(id, expires)


class RequestLock:
    """An ASGI application around `app`: every call needs a token of its own, but for `OPEN_PATHS`; 401 otherwise.

    take: takes a token's id and end once, or raises TokenRefused; by default, of those that this object has seen.
    """

    def __init__(
        self,
        app: ASGIApp,
        key: Ed25519PublicKey,
        *,
        tenant: str,
        backend: str,
        now: Callable[[], float] = time.time,
        take: Callable[[str, float], Awaitable[None]] | None = None,
    ) -> None:
        self._app = app
        self._key = key
        self._tenant = tenant
        self._backend = backend
        self._now = now
        self._taken = TakenTokens(now)
        self._take = take or self._taken.take_soon

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        try:
            claims = self.check([value for name, value in scope["headers"] if name == _FIELD])
            self._match(claims, scope)
            messages = await _whole(receive)
            digest = sha256(b"".join(message.get("body", b"") for message in messages)).digest()
            if not compare_digest(digest, claims.body):
                raise TokenRefused("the body is not the one that the token is for")
            await self._take(claims.id, claims.expires)
        except TokenRefused as error:
            await _refuse(send, str(error))
            return

        async def again() -> Message:
            return messages.pop(0) if messages else await receive()

        granted = _granted(claims, [value for name, value in scope["headers"] if name == _PREFILL])
        await self._app(
            {**scope, MARK_KEY: claims.mark_key, PREFILL_KEY: granted, COMMITS: claims.commits}, again, send
        )

    def admit_transfer(self, token: bytes, peer: str) -> str:
        """The project that a transfer of blocks is for, whose token a backend with the URI `peer` shows; the token is
        used up. Raises TokenRefused."""
        claims = self.check([token])
        if (claims.method, claims.path) != (TRANSFER_METHOD, TRANSFER_PATH):
            raise TokenRefused("the request token is for another call")
        if not claims.asker or claims.asker != peer:
            raise TokenRefused("the request token is for another backend to show")
        self._taken.take(claims.id, claims.expires)
        return claims.project

    def check(self, sent: list[bytes]) -> "Claims":
        """What the one token in `sent` is for. Raises TokenRefused."""
        if len(sent) != 1 or len(sent[0]) > MAX_TOKEN:
            raise TokenRefused("a call needs one request token")
        signed, _, signature = sent[0].rpartition(b".")
        try:
            self._key.verify(_decoded(signature), signed)
            head, claims = (json.loads(_decoded(part)) for part in signed.split(b"."))
            issued, expires = float(claims["iat"]), float(claims["exp"])
            whom = claims["ten"], claims["aud"]
            words = one, method, path, project = [claims[name] for name in ("jti", "htm", "htu", "prj")]
            if not all(isinstance(word, str) for word in words):
                raise ValueError
            digest = _decoded(claims["bod"].encode())
            named = Claims(one, method, path, project, digest, expires, **_wishes(claims))
        except (InvalidSignature, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise TokenRefused("the request token is not one of this cell's") from None
        if head != {"alg": "EdDSA", "typ": "domicile-request+jwt"}:
            raise TokenRefused("the request token is of another kind")
        if whom != (self._tenant, self._backend):
            raise TokenRefused("the request token is for another backend")
        if not issued - SKEW_S <= self._now() <= expires + SKEW_S:
            raise TokenRefused("the request token is out of its time")
        return named

    def _match(self, claims: "Claims", scope: Scope) -> None:
        projects = [value for name, value in scope["headers"] if name == _PROJECT]
        if (claims.method, claims.path) != (scope["method"], scope["path"]) or scope.get("query_string"):
            raise TokenRefused("the request token is for another call")
        if projects != ([claims.project.encode()] if claims.project else []):
            raise TokenRefused("the request token is for another project")


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token is for. `body`: its SHA-256. `expires`: seconds since 1970. `mark_key`: see `backend.marks`.
    `asker`: of a transfer of blocks, the URI of the backend that may show it. `prefill`: the backend that is to compute
    the prompt, with `id`, `uri`, `host` and `port`. `commits`: see `COMMITS`."""

    id: str
    method: str
    path: str
    project: str
    body: bytes
    expires: float
    mark_key: bytes | None = field(default=None, repr=False)
    asker: str = ""
    prefill: dict[str, Any] | None = None
    commits: bool = False


def _wishes(claims: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Claims` that not every token has. Raises ValueError for a claim of another form, AttributeError."""
    mark, asker, prefill, commits = (claims.get(name) for name in ("wmk", "ask", "pre", "act"))
    fits = (
        isinstance(asker, str | None)
        and (prefill is None or _names_backend(prefill))
        and (commits is None or isinstance(commits, bool))
    )
    if not fits:
        raise ValueError
    key = None if mark is None else _key(_decoded(mark.encode()))
    return {"mark_key": key, "asker": asker or "", "prefill": prefill, "commits": bool(commits)}


def _names_backend(claim: Any) -> bool:
    return (
        isinstance(claim, dict)
        and all(isinstance(claim.get(name), str) for name in ("id", "uri", "host"))
        and isinstance(claim.get("port"), int)
        and 0 < claim["port"] < 1 << 16
    )


def _granted(claims: Claims, tokens: list[bytes]) -> PrefillGrant | None:
    """None where the token names no backend for the prompt, or its own token is not beside it."""
    if claims.prefill is None or len(tokens) != 1 or len(tokens[0]) > MAX_TOKEN:
        return None
    named = claims.prefill
    return PrefillGrant(named["id"], named["uri"], named["host"], named["port"], tokens[0])


def _key(found: bytes) -> bytes:
    if len(found) != KEY_BYTES:
        raise ValueError(f"the key of a mark has {len(found)} bytes; send {KEY_BYTES}")
    return found


def read_key(path: Path) -> Ed25519PublicKey:
    """PEM. Raises ConfigError."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} holds no public key: {error}; name a file with an Ed25519 public key in PEM"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} holds a key that is not Ed25519; name a file with an Ed25519 public key in PEM")
    return key


async def _whole(receive: Receive) -> list[Message]:
    """The messages of a body up to its end, or to where the client left, or it grew too large for anybody."""
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return messages
        if size > MAX_BODY_BYTES:
            raise TokenRefused(f"the body is larger than {MAX_BODY_BYTES} bytes")


async def _refuse(send: Send, because: str) -> None:
    detail = ErrorDetail(message=because, type="invalid_request_error", code="request_token")
    body = ErrorBody(error=detail).model_dump_json().encode()
    headers: Any = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _decoded(value: bytes) -> bytes:
    """Base64url without padding, and in its one spelling. Raises ValueError."""
    decoded = urlsafe_b64decode(value + b"=" * (-len(value) % 4))
    if urlsafe_b64encode(decoded).rstrip(b"=") != value:
        raise ValueError("not base64url")
    return decoded
