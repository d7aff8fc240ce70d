"""Whether a text is the tenant's models': the test for watermarks, and the search among the answers on record."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from audit.log.found_answers import Verdict as SearchVerdict
from backend.wire import MAX_MARKED_TEXT
from gateway.admin.calls.access import Context, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, Name, ResponseBody
from gateway.admin.record.reading import ReasonCode
from gateway.database.errors import NotReady
from gateway.identity.roles import Actor
from gateway.marks.detection import Verdict

router = APIRouter(tags=["marks"], route_class=IdempotentRoute)

Finder = Annotated[Actor, Depends(RequirePermission("answers.find"))]
Tester = Annotated[Actor, Depends(RequirePermission("marks.detect"))]


class TextAsked(Body):
    """`project`: by whose policy the text may be processed: it goes to a backend that this allows."""

    project: Name
    text: Annotated[str, Field(min_length=1, max_length=MAX_MARKED_TEXT)]


class TextSearched(Body):
    """`reason`: a code, no words: it goes on record."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_MARKED_TEXT)]
    reason: ReasonCode


class Answer(ResponseBody):
    """An answer on record: `seq` of the record that closes its call, with its `receipt`. `common`: fingerprints that
    the text has, of `prints`. `chance`: bound on the chance that an answer of another text has so many."""

    seq: int
    ts: str
    request_id: str
    project: str | None
    key_id: str | None
    model: str | None
    outcome: str
    letters: int
    common: int
    prints: int
    chance: float
    receipt: str


class AnswersFound(ResponseBody):
    """`answers`: the best first, at most 20 of `matches`. `compared`: answers with fingerprints in records before
    `end`. `letters`: letters and digits of the text. `unsearched_periods`: months whose salt was destroyed."""

    verdict: SearchVerdict
    answers: tuple[Answer, ...]
    matches: int
    compared: int
    end: int
    letters: int
    periods: tuple[str, ...]
    unsearched_periods: tuple[str, ...]


class TextTested(ResponseBody):
    """`period`: the month of the key that was found. `p_below`: how seldom an unmarked text is said to be marked by all
    `tests` together, in steps. `untested_models`: were marked too, and no backend of theirs is up."""

    verdict: Verdict
    period: str | None
    p_below: float | None
    tests: int
    tokens: int
    models: tuple[str, ...]
    untested_models: tuple[str, ...]


@router.post("/tenants/{tenant}/marks/detect")
async def detect_marks(actor: Tester, context: Context, tenant: str, asked: TextAsked) -> TextTested:
    """Whether a text was written by the tenant's models under a policy that demands a watermark.

    At most 60 texts an hour. That a text was tested goes on record, without the text.
    """
    if context.detect is None:
        raise NotReady("this gateway asks no backends; test the text with `domicile mark detect`")
    found = await context.detect(tenant, asked.project, asked.text, actor.name)
    return TextTested(**{name: getattr(found, name) for name in TextTested.model_fields})


@router.post("/tenants/{tenant}/answers/find")
async def find_answer(actor: Finder, context: Context, tenant: str, asked: TextSearched) -> AnswersFound:
    """Which answers on record a text is from, by fingerprints, where policy demanded them when it was given.

    At most 60 texts an hour. That it was asked, by whom and why goes on record, without the text.
    """
    if context.find_answer is None:
        raise NotReady("this process has no record of its own; ask a gateway, or `domicile audit find-answer`")
    await run_in_threadpool(context.inventory.tenant, tenant)
    found = await context.find_answer(tenant, asked.text, asked.reason, actor.name)
    return AnswersFound.model_validate(asdict(found))
