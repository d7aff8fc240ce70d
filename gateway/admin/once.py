"""``Idempotency-Key``: a call repeated with the same key gets the first one's answer, and changes nothing twice.

After draft-ietf-httpapi-idempotency-key-header. A key is one caller's own, for 24 hours. Only a call that changed
something is remembered; what was refused may be repeated, corrected or not. See `gateway.store.answers` for how answers
that hold a secret are kept.
"""

import json
import re
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from gateway.admin.problems import STATUS
from gateway.store.answers import Answers, Pending
from gateway.store.errors import Invalid

HEADER = "idempotency-key"
REPLAYED = "idempotency-replayed"
MAX_KEY = 255
KEY = re.compile(r'"[!#-~]+"|[!#-~]+')
METHODS = frozenset({"POST", "PUT"})
_KEPT_HEADERS = ("content-type", "etag", "cache-control")
_NOTHING_CHANGED: tuple[type[Exception], ...] = (*STATUS, HTTPException, RequestValidationError)


class Replay(Exception):
    """Not an error: the answer is known already."""

    def __init__(self, response: Response) -> None:
        super().__init__("answered before")
        self.response = response


class OnceRoute(APIRoute):
    """A route whose calls may carry a key. Whoever calls is known, and may, before the key is looked at (`Need`)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_once(request: Request) -> Response:
            if request.method not in METHODS or HEADER not in request.headers:
                return await answer(request)
            call = request.state.once = Call(_key(request), await _fingerprint(request))
            try:
                response = await answer(request)
            except Replay as replay:
                return replay.response
            except _NOTHING_CHANGED:
                await run_in_threadpool(call.release)
                raise
            await run_in_threadpool(call.keep, response)
            return response

        return answer_once


class Call:
    """One call with a key. `fingerprint`: of everything that it asks for."""

    def __init__(self, key: str, fingerprint: str) -> None:
        self._key = key
        self._fingerprint = fingerprint
        self._answers: Answers | None = None

    def claim(self, answers: Answers, now: Any) -> None:
        """Raises Replay where it was answered before, Invalid where that was another call, Pending."""
        sealed = answers.claim(self._key, now)
        if sealed is None:
            self._answers = answers  # ours to keep or release from here on
            return
        opened = answers.opened(self._key, sealed)
        if opened is None:
            raise Pending("this Idempotency-Key was used with another token; the answer cannot be shown again")
        kept = json.loads(opened)
        if kept["fingerprint"] != self._fingerprint:
            raise Invalid("this Idempotency-Key was used for another call")
        raise Replay(Response(kept["body"], kept["status"], headers={**kept["headers"], REPLAYED: "true"}))

    def keep(self, response: Response) -> None:
        if self._answers is not None:
            kept = {
                "fingerprint": self._fingerprint,
                "status": response.status_code,
                "headers": {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers},
                "body": bytes(response.body).decode(),
            }
            self._answers.keep(self._key, json.dumps(kept).encode())

    def release(self) -> None:
        if self._answers is not None:
            self._answers.release(self._key)


def _key(request: Request) -> str:
    """The draft has a quoted string (RFC 8941), most clients send it bare."""
    sent = request.headers.getlist(HEADER)
    if len(sent) != 1 or len(sent[0]) > MAX_KEY or not KEY.fullmatch(sent[0]):
        raise Invalid(f"an Idempotency-Key is one text of 1 to {MAX_KEY} printable ASCII characters without spaces")
    return sent[0].strip('"')


async def _fingerprint(request: Request) -> str:
    asked = (request.method, request.url.path, request.url.query, request.headers.get("if-match", ""))
    return sha256("\0".join(asked).encode() + b"\0" + await request.body()).hexdigest()
