"""Explanations of policy decisions without a request, and the regions that a tenant's policy allows."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field

from gateway.admin.calls.access import AdminContext, Context, RequirePermission, authenticated_actor
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, Day, Name, ResponseBody
from gateway.database.errors import Invalid, NotFound, NotReady
from gateway.policies.study import Draft, PolicyStudy
from policy.decision.explain import explain_json, explain_source
from policy.errors import PolicyError
from regions.catalogue.region_facts import place_facts
from regions.errors import CatalogueError

router = APIRouter(tags=["regions"], route_class=IdempotentRoute)

Document = Annotated[str, Field(max_length=256 * 1024)]
Reading = Depends(RequirePermission("policies.read"))


class Question(Body):
    """A request of `project` for `model` to decide. `document`: a document to use in place of the tenant's policy."""

    project: Name
    model: Annotated[str, Field(max_length=256)]
    document: Document | None = None


class PlacesAsked(Body):
    """Regions to check, by default all of the catalogue. `document`: a document to use in place of the tenant's
    policy."""

    regions: Annotated[tuple[Name, ...], Field(max_length=1000)] | None = None
    document: Document | None = None


class Explanation(ResponseBody):
    decision: dict[str, Any]
    lines: tuple[str, ...]


class Places(ResponseBody):
    """Regions with their facts on the day `on` and the sources of these. `catalogue`: its version."""

    catalogue: str
    on: date
    regions: tuple[dict[str, str | None], ...]


class Place(ResponseBody):
    catalogue: str
    on: date
    facts: dict[str, str | None]


class PlacesJudged(ResponseBody):
    catalogue: str
    verdicts: tuple[dict[str, Any], ...]


@router.post("/tenants/{tenant}/policies/explain", dependencies=[Reading], tags=["policies"])
def explain_policy(context: Context, tenant: str, asked: Question) -> Explanation:
    """Return the decision that a gateway would make now, with the lines of the documents that lead to it."""
    draft = None if asked.document is None else Draft(asked.document, tenant)
    with policy_study(context) as study:
        explained = study.explain(tenant, asked.project, asked.model, draft)
    lines = explain_source(explained.decision, explained.sources)
    return Explanation(decision=explain_json(explained.decision), lines=tuple(lines))


@router.post("/tenants/{tenant}/regions/check", dependencies=[Reading])
def check_regions(context: Context, tenant: str, asked: PlacesAsked) -> PlacesJudged:
    """Check for each region whether an ordinary request of the tenant may be answered there, and if not, which rule
    refuses it."""
    draft = None if asked.document is None else Draft(asked.document, tenant)
    with policy_study(context) as study:
        verdicts = study.evaluate_regions(tenant, asked.regions, draft)
        return PlacesJudged(catalogue=study.catalogue.version, verdicts=tuple(one.as_json() for one in verdicts))


@router.get("/regions", dependencies=[Depends(authenticated_actor)])
def list_regions(context: Context, on: Day | None = None) -> Places:
    """List the regions of the catalogue on a day, by default today, with the facts that decide about residency."""
    day = on or datetime.now(UTC).date()
    with policy_study(context) as study:
        known = study.catalogue
    rows = tuple(place_facts(known, region, day) for region in known.regions if region.valid_on(day))
    return Places(catalogue=known.version, on=day, regions=rows)


@router.get("/regions/{region}", dependencies=[Depends(authenticated_actor)])
def show_region(context: Context, region: Name, on: Day | None = None) -> Place:
    day = on or datetime.now(UTC).date()
    with policy_study(context) as study:
        known = study.catalogue
    try:
        return Place(catalogue=known.version, on=day, facts=place_facts(known, known.region(region, day), day))
    except CatalogueError as error:
        raise NotFound(str(error)) from error


@contextmanager
def policy_study(context: AdminContext) -> Iterator[PolicyStudy]:
    """Provide the study of policies. Raises Invalid with the message of an error in a document, NotReady without a
    catalogue."""
    if context.policy_study is None:
        raise NotReady("this gateway has no catalogue; start it with one in its data folder")
    try:
        yield context.policy_study(context.inventory)
    except (PolicyError, CatalogueError) as error:
        raise Invalid(str(error)) from error
