"""The test of a text for the tenant's watermarks."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from backend.wire import MAX_MARKED_TEXT
from gateway.admin.calls.access import Context, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, Name, ResponseBody
from gateway.database.errors import NotReady
from gateway.identity.roles import Actor
from gateway.marks.detection import Verdict

router = APIRouter(tags=["marks"], route_class=IdempotentRoute)

Tester = Annotated[Actor, Depends(RequirePermission("marks.detect"))]


class TextAsked(Body):
    """`project`: by whose policy the text may be processed: it goes to a backend that this allows."""

    project: Name
    text: Annotated[str, Field(min_length=1, max_length=MAX_MARKED_TEXT)]


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
