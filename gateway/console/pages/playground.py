"""Chat with a project's model through the complete request path, under the project's policy: what was typed, what the
model saw, and the receipt.

The call uses a short-lived key of the project, which is revoked afterwards. Both are recorded. So the same limits,
policy and record apply as to a call of an application.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from gateway.console.admin_calls import Refused, exchange
from gateway.console.page import Page, form
from gateway.console.visit import Visit

CHAT: Final = "/v1/chat/completions"
KEY_LIFE: Final = timedelta(minutes=5)
TRIES: Final = 40
EVERY_S: Final = 0.1
"""A new key is known to this gateway within a second."""
MAX_TOKENS: Final = 512
DEBUG: Final = "x-domicile-debug"
"""Its value ``upstream`` adds to the answer what left for the backend."""
MAX_TURNS: Final = 20
TURN: Final = frozenset({"prompt", "answer", "receipt", "record"})
_MARK: Final = re.compile(
    r"<(?P<placeholder>[^<>\s]{1,64}?)_[0-9]{1,12}_[a-z0-9]{4,40}>"
    r"|\[(?P<mask>[A-Z][A-Z0-9_-]{0,63})(?::[0-9A-Za-z]{4,64})?\]"
)
"""How redaction writes what stands for a value: ``<EMAIL_1_k7f3>``, ``[EMAIL]`` or ``[EMAIL:9f3c…]``."""


async def show(visit: Visit) -> Response:
    return await _show(visit)


async def _show(visit: Visit, **said: Any) -> Response:
    projects = (await visit.of_tenant("projects", limit=200))["items"]
    visit.need("keys.manage")
    models: set[str] = set()
    if visit.may("backends.read"):
        backends = (await visit.of_tenant("backends", limit=200))["items"]
        models = {model for each in backends if each["revoked_at"] is None for model in each["models"]}
    shown: dict[str, Any] = {
        "answer": None,
        "error": None,
        "headers": {},
        "call": None,
        "seen": (),
        "masked": {},
        "typed": visit.form.get("prompt", ""),
        "prompt": visit.form.get("prompt", ""),
        "turns": earlier(visit.form.get("turns", "")),
    }
    return visit.render(
        "playground.html",
        shown_tenant=visit.tenant,
        active="playground",
        models=sorted(models),
        projects=[each for each in projects if each["revoked_at"] is None],
        **(shown | said),
    )


async def ask(visit: Visit) -> Response:
    """Send the conversation so far and the new prompt. The page keeps it, and nothing else does: each turn is a call
    with a decision, a masking and a receipt of its own."""
    sent = visit.form
    prompt, turns = sent.get("prompt", ""), earlier(sent.get("turns", ""))
    if len(turns) >= MAX_TURNS:
        raise Refused(422, f"a conversation here has at most {MAX_TURNS} turns; begin another")
    body = {
        "model": sent.get("model", ""),
        "messages": [*messages_of(turns), {"role": "user", "content": prompt}],
        "max_tokens": MAX_TOKENS,
    }
    new = {
        "project": sent.get("project", ""),
        "label": "playground",
        "expires_at": (visit.context.now() + KEY_LIFE).isoformat(),
        "scopes": {"endpoints": ["chat/completions"]},
    }
    key = (await visit.change("POST", "tenants", visit.tenant, "keys", body=new)).body
    try:
        status, headers, answered = await _call(visit, key["key"], json.dumps(body).encode())
    finally:
        await visit.api.call("POST", ("tenants", visit.tenant, "keys", key["id"], "revoke"))
    said = json.loads(answered)
    sent_on = said.get("domicile", {}).get("upstream_request", {})
    typed = "\n".join([*(each["prompt"] for each in turns), prompt])
    seen = [(role, list(marked(text, typed))) for role, text in texts_of(sent_on)]
    answer = said["choices"][0]["message"].get("content") if status == 200 else None
    call = await _on_record(visit, headers.get("x-request-id", ""))
    if answer is not None:
        receipt, record = headers.get("x-domicile-receipt", ""), "" if call is None else str(call["seq"])
        turns.append({"prompt": prompt, "answer": answer, "receipt": receipt, "record": record})
    return await _show(
        visit,
        turns=turns,
        prompt="" if answer is not None else prompt,
        typed=prompt,
        answer=answer,
        error=None if status == 200 else said["error"]["message"],
        headers=headers,
        seen=seen,
        masked=Counter(kind for _, pieces in seen for _, kind in pieces if kind),
        call=call,
    )


def earlier(text: str) -> list[dict[str, str]]:
    """The turns that the page sent back, oldest first. What is no such list is none: it is the user's own text."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list):
        return []
    return [
        each
        for each in found
        if isinstance(each, dict) and each.keys() == TURN and all(isinstance(one, str) for one in each.values())
    ]


def messages_of(turns: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    said = []
    for each in turns:
        said.append({"role": "user", "content": each["prompt"]})
        said.append({"role": "assistant", "content": each["answer"]})
    return said


async def _call(visit: Visit, key: str, content: bytes) -> tuple[int, dict[str, str], bytes]:
    """Call once this process knows the key. Raises Refused if it does not learn it in time."""
    headers = {
        "authorization": f"Bearer {key}",
        "content-type": "application/json",
        "content-length": str(len(content)),
        "host": "console",
        DEBUG: "upstream",
    }
    for _ in range(TRIES):
        status, received, answered = await exchange(visit.inference(), "POST", CHAT, headers, content, visit.api.client)
        if status != 401:
            return status, received, answered
        await asyncio.sleep(EVERY_S)
    raise Refused(409, "the gateway does not know the new key yet; try again in a moment")


async def _on_record(visit: Visit, request_id: str) -> Any:
    """Return the recorded call, if the user may read it."""
    if not request_id or not visit.may("record.read"):
        return None
    return next(iter((await visit.of_tenant("calls", request=request_id, limit=1))["items"]), None)


def texts_of(request: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield role and text of each message of a request as it left for the backend."""
    for message in request.get("messages", ()):
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        texts = [part if isinstance(part, str) else str(part.get("text", "")) for part in parts if part]
        yield str(message.get("role", "")), "\n".join(texts)


def marked(seen: str, typed: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a text that the model saw, each with the kind of value that it stands for, or ``""``. What
    was typed like a mark is none."""
    at = 0
    for found in _MARK.finditer(seen):
        if found[0] in typed:
            continue
        if found.start() > at:
            yield seen[at : found.start()], ""
        yield found[0], (found["placeholder"] or found["mask"]).lower()
        at = found.end()
    if at < len(seen):
        yield seen[at:], ""


PAGES: Final = (
    Page("/t/{tenant}/playground", show),
    form("/t/{tenant}/playground", ask, show),
)
