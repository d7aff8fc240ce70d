"""A kept call, asked once more: does the same request still get the same answer?

The record keeps the body that left for the backend and the answer that the client received, where the policy keeps
them. The very body is sent again, and the answers are compared: token by token with its log probability where the call
asked for `logprobs`, else character by character. The reader of kept content is recorded before it is read, and what
came of it afterwards.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NamedTuple

from pydantic_core import from_json

from audit.events.event import ModelChanged
from audit.events.leaf import decode_leaf
from audit.events.privacy import ContentReplayed
from audit.privacy.rights import read
from audit.private.audit_context import AuditContext
from backend.wire import fingerprint_of
from gateway.apis.endpoints import upstream_of
from gateway.comparisons.recorded_call import NotComparable, fields_of, prepared_last, records_of, require_kept
from gateway.content.choice_texts import choice_texts_of
from gateway.content.retained_content import RetainedContent
from gateway.errors import BackendFailed
from gateway.openai.sse import DONE, EventSplitter
from gateway.upstream.client import BackendAnswer, Target, Upstream
from regions.fleet.fleet import Backend

MAX_ANSWER_BYTES = 64 << 20
AROUND = 24  # characters of either answer that are shown before and behind where they part
REASON = "replay"

AnswerPieces = Sequence[dict[str, Any]]
"""An answer by choice, as `gateway.content.retained_content` keeps it."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call as it is kept. `seq`: of its intent; `sent`: the body; `backend_id` and `region`: who answered;
    `fingerprint`: what the answer came from, if its backend named it; `changed`: what of its model is another since
    then, by the record, as (seq, what); `mark_period`: of the key that it was watermarked with, which an equal answer
    needs again."""

    tenant: str
    seq: int
    request_id: str
    path: str
    project: str
    stream: bool
    backend_id: str
    region: str
    sent: bytes
    output: AnswerPieces
    fingerprint: str | None = None
    changed: Sequence[tuple[int, str]] = ()
    mark_period: str | None = None


class Difference(NamedTuple):
    """Where two answers part. `at`: tokens (of `logprobs`) or characters that are equal before; `was`, `now`: what is
    kept and what came instead, a little of either; None where there is nothing."""

    choice: int
    field: str
    at: int
    was: Any
    now: Any


async def recorded_call(context: AuditContext, tenant: str, request_id: str, *, actor: str) -> RecordedCall:
    """What is kept of a call; that it is read goes on record first.

    Raises NotComparable where content was not kept, is gone, was redacted, or could not come out the same; and
    RestrictedError where its person's data may not be used.
    """
    intent_seq, intent, outcome_seq, outcome = await context.in_thread(lambda: records_of(context, tenant, request_id))
    input_seq, asking = await context.in_thread(lambda: prepared_last(context, tenant, request_id, intent_seq, intent))
    if asking.redaction is not None or outcome.redaction is not None:
        raise NotComparable(
            f"the call {request_id} was redacted, so its client received values that were put back or masked, "
            "and what the backend itself had sent is not kept; replay a call without redaction"
        )
    for seq, event, field in ((input_seq, asking, "input"), (outcome_seq, outcome, "output")):
        await require_kept(context, seq, event, field, "replay a later call")
    asked = {one.kept.field: one.value for one in await read(context, tenant, input_seq, actor=actor, reason=REASON)}
    _check_sampling(from_json(asked["input"]))
    values = {one.kept.field: one.value for one in await read(context, tenant, outcome_seq, actor=actor, reason=REASON)}
    model = outcome.model_served or intent.model_requested
    return RecordedCall(
        tenant=tenant,
        seq=intent_seq,
        request_id=request_id,
        path=upstream_of(intent.endpoint),
        project=intent.project,
        stream=intent.stream,
        backend_id=outcome.backend_id or intent.backend_id,
        region=outcome.region or intent.region,
        sent=asked["input"].encode(),
        output=values["output"],
        fingerprint=outcome.fingerprint,
        changed=await context.in_thread(lambda: _changes(context, tenant, model, intent_seq)),
        mark_period=outcome.mark_period,
    )


def _changes(context: AuditContext, tenant: str, model: str, since: int) -> list[tuple[int, str]]:
    changes = []
    with context.reading() as reader:
        for stored in reader.leaves(tenant, since):
            if b'"model.changed"' in stored.payload:
                event = decode_leaf(stored.payload).event
                if isinstance(event, ModelChanged) and event.model == model:
                    changes.append((stored.seq, event.what))
    return changes


def _check_sampling(body: dict[str, Any]) -> None:
    if body.get("temperature") != 0 and body.get("seed") is None:
        raise NotComparable(
            "the call was sampled without a `seed`, so that no two answers to it need be equal; replay a "
            "call with a `seed` or with `temperature` 0"
        )


async def ask_again(
    upstream: Upstream, target: Target, kept: RecordedCall, mark_key: bytes | None = None
) -> tuple[AnswerPieces, str | None]:
    """What `target` answers to the very body, and its fingerprint. mark_key: that of `kept.mark_period`. Raises
    GatewayError where it does not answer, or not to the end, and where it cannot be told the key."""
    retained = RetainedContent(b"", kept.sent, None, 1)
    fingerprints: list[str | None] = []
    request_id = f"replay-{token_hex(12)}"
    asked = upstream.call(target, kept.path, kept.sent, request_id, kept.request_id, kept.project, mark_key=mark_key)
    async with asked as answer:
        if kept.stream:
            async for piece in _whole_stream(answer, fingerprints):
                retained.add_piece(piece)
        else:
            try:
                body = from_json(await answer.body(MAX_ANSWER_BYTES))
                fingerprints.append(fingerprint_of(body))
                retained.add_answer(choice_texts_of(body))
            except (ValueError, TypeError, AttributeError, KeyError):
                raise BackendFailed("The backend's answer is not an OpenAI answer") from None
    output: AnswerPieces = retained.answered().values.get("output", [])
    return output, next(filter(None, fingerprints), None)


async def _whole_stream(answer: BackendAnswer, fingerprints: list[str | None]) -> AsyncIterator[bytes]:
    """The pieces of a stream, whose events' fingerprints are noted; raises BackendFailed for one that holds an error or
    has no end."""
    if not answer.is_event_stream:
        raise BackendFailed("The backend answered a stream with something else")
    splitter, ended = EventSplitter(), False
    async for piece in answer.pieces():
        for payload in splitter.feed(piece):
            ended = ended or payload == DONE
            if payload != DONE:
                event = _event(payload)
                if "error" in event:
                    raise BackendFailed("The backend broke its answer off by an error")
                fingerprints.append(fingerprint_of(event))
        yield piece
    if not ended:
        raise BackendFailed("The backend's stream has no end")


def _event(payload: bytes) -> dict[str, Any]:
    try:
        event = from_json(payload)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise BackendFailed("The backend streamed what is not an OpenAI answer")
    return event


async def record_replay(
    context: AuditContext,
    kept: RecordedCall,
    backend: Backend | None,
    equal: bool,
    same_weights: bool | None,
    *,
    actor: str,
) -> None:
    """`backend`: None for a server that is none of the directory's."""
    await context.record(ContentReplayed(**fields_of(kept, backend, actor), equal=equal, same_weights=same_weights))


def first_difference(was: AnswerPieces, now: AnswerPieces, tolerance: float = 0.0) -> Difference | None:
    """Where an answer parts first from the kept one; None where they are equal. `tolerance`: nats by which the log
    probability of a token may be another; by default not a bit of it."""
    theirs = {choice["index"]: choice for choice in now}
    for kept in was:
        there = theirs.pop(kept["index"], None)
        if there is None:
            return Difference(kept["index"], "choice", 0, "there", None)
        for field in sorted(kept.keys() | there.keys(), key=_order):
            one, other = kept.get(field), there.get(field)
            if one == other or (field == "logprobs" and one and other and _parting(one, other, tolerance) is None):
                continue
            return _difference(kept["index"], field, one, other, tolerance)
    return Difference(min(theirs), "choice", 0, None, "there") if theirs else None


def _order(field: str) -> tuple[bool, bool, str]:
    """Tokens before text, text before how it ended."""
    return field != "logprobs", field == "finish_reason", field


def _difference(choice: int, field: str, was: Any, now: Any, tolerance: float) -> Difference:
    if isinstance(was, list) and isinstance(now, list):
        at = _parting(was, now, tolerance) or 0
        return Difference(choice, field, at, next(iter(was[at:]), None), next(iter(now[at:]), None))
    if isinstance(was, str) and isinstance(now, str):
        at = _parting(was, now) or 0
        shown = slice(max(0, at - AROUND), at + AROUND)
        return Difference(choice, field, at, was[shown], now[shown])
    if isinstance(was, dict) and isinstance(now, dict):  # of calls of tools: by place, then name and arguments
        name = min(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
        return _difference(choice, f"{field}.{name}", was.get(name), now.get(name), tolerance)
    return Difference(choice, field, 0, was, now)


def _parting(was: Sequence[Any], now: Sequence[Any], tolerance: float = 0.0) -> int | None:
    """Place of the first token that differs, or that only one answer has."""
    for at, (left, right) in enumerate(zip(was, now, strict=False)):
        if left != right and not (tolerance and _near(left, right, tolerance)):
            return at
    return None if len(was) == len(now) else min(len(was), len(now))


def _near(left: Sequence[Any], right: Sequence[Any], tolerance: float) -> bool:
    """Whether both are the same token, with about the same log probability."""
    (word, value), (other, there) = left, right
    return bool(word == other and None not in (value, there) and abs(value - there) <= tolerance)
