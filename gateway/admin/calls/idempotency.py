"""``Idempotency-Key``: a call repeated with the same key gets the first response and changes nothing again.

After draft-ietf-httpapi-idempotency-key-header. A key belongs to one caller and is valid for 24 hours. Only successful
calls are stored; a refused one can be repeated, with or without corrections. `gateway.store.idempotent_answers`
describes how responses with a secret are stored, and the state after an interrupted call.
"""

import json
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Any

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from gateway.admin.calls.access import context_of
from gateway.admin.calls.authentication import credential_of
from gateway.admin.calls.guarded_route import GuardedRoute
from gateway.database.errors import DatabaseUnavailable, Invalid
from gateway.store.idempotent_answers import Answers, Claim, Pending, attempting

HEADER = "idempotency-key"
REPLAYED = "idempotency-replayed"
MAX_KEY = 255
KEY = re.compile(r'"[!#-~]+"|[!#-~]+')
METHODS = frozenset({"POST", "PUT"})
_KEPT_HEADERS = ("content-type", "etag", "cache-control")


class IdempotentRoute(GuardedRoute):
    """A route whose calls may have an idempotency key. The caller is authorised before the key is read."""

    def unguarded(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().unguarded()

        async def answer_once(request: Request) -> Response:
            if request.method not in METHODS or HEADER not in request.headers:
                return await answer(request)
            call = IdempotentCall(_answers(request), _key(request), await _fingerprint(request))
            known = await run_in_threadpool(call.claim, context_of(request).now())
            if known is not None:
                return known
            try:
                with attempting(call.attempt):
                    response = await answer(request)
            except Exception:
                with suppress(DatabaseUnavailable):  # then the claim ends with its lease
                    await run_in_threadpool(call.release)
                raise
            await run_in_threadpool(call.keep, response)
            return response

        return answer_once


class IdempotentCall:
    """A call with a key. `answers`: stored answers of its caller. `fingerprint`: hash of the request."""

    attempt: Claim

    def __init__(self, answers: Answers, key: str, fingerprint: str) -> None:
        self._answers = answers
        self._key = key
        self._fingerprint = fingerprint

    def claim(self, now: datetime) -> Response | None:
        """Return the response of the first call with the key; None if this is the first. Raises Invalid if that call
        was another one, Pending if it runs or its response cannot be shown."""
        claimed = self._answers.claim(self._key, now)
        if isinstance(claimed, Claim):
            self.attempt = claimed
            return None
        opened = self._answers.opened(self._key, claimed)
        if opened is None:
            raise Pending(
                "this Idempotency-Key was used with another token, so the answer cannot be shown again; use a new key"
            )
        kept = json.loads(opened)
        if kept["fingerprint"] != self._fingerprint:
            raise Invalid("this Idempotency-Key was used for another call; use a new one for each call")
        return Response(kept["body"], kept["status"], headers={**kept["headers"], REPLAYED: "true"})

    def keep(self, response: Response) -> None:
        kept = {
            "fingerprint": self._fingerprint,
            "status": response.status_code,
            "headers": {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers},
            "body": bytes(response.body).decode(),
        }
        self._answers.keep(self.attempt, json.dumps(kept).encode())

    def release(self) -> None:
        self._answers.release(self.attempt)


def _answers(request: Request) -> Answers:
    """Return the stored answers of the caller, whom the only guard of such a route has accepted."""
    (actor,) = request.state.admitted.values()
    context = context_of(request)
    return context.answers(actor, credential_of(request, context.cookies))


def _key(request: Request) -> str:
    """Return the key: a quoted string (RFC 8941), as in the draft, or without quotes, as most clients send it."""
    sent = request.headers.getlist(HEADER)
    if len(sent) != 1 or len(sent[0]) > MAX_KEY or not KEY.fullmatch(sent[0]):
        raise Invalid(
            f"this is not an Idempotency-Key; send one text of 1 to {MAX_KEY} printable ASCII characters without spaces"
        )
    return sent[0].strip('"')


async def _fingerprint(request: Request) -> str:
    asked = (request.method, request.url.path, request.url.query, request.headers.get("if-match", ""))
    return sha256("\0".join(asked).encode() + b"\0" + await request.body()).hexdigest()
