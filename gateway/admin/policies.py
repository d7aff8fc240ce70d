"""Policies on their way into force: proposals, what they would change, and the way back."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from gateway.admin.access import Desk, DeskOf, IfMatch, Need
from gateway.admin.once import OnceRoute
from gateway.admin.shapes import Body, Name, tagged
from gateway.identity.roles import Actor
from gateway.policy_room import Draft, PolicyRoom
from gateway.store.errors import Invalid, NotReady
from gateway.store.records import PolicyProposalRecord, PolicyVersionRecord
from policy.errors import PolicyError
from policy.explain import explain_json, explain_source

router = APIRouter(prefix="/tenants/{tenant}", tags=["policies"], route_class=OnceRoute)

MAX_POLICY = 256 * 1024

Submitter = Annotated[Actor, Depends(Need("policies.submit"))]
Approver = Annotated[Actor, Depends(Need("policies.approve"))]
Activator = Annotated[Actor, Depends(Need("policies.activate"))]


class NewPolicy(Body):
    """`document`: YAML. `project`: make it this project's, tightening the tenant's."""

    document: Annotated[str, Field(max_length=MAX_POLICY)]
    project: Name | None = None


class Activation(Body):
    """Without `at`: now."""

    at: AwareDatetime | None = None


class Withdrawal(Body):
    because: Annotated[str, Field(min_length=1, max_length=200)] = "withdrawn"


class Rollback(Body):
    project: Name | None = None


class Simulation(Body):
    """A `document`, or `dpf_accepted` false for the tenant's own without the EU-US Data Privacy Framework.

    `since`: calls recorded from then on.
    """

    document: Annotated[str, Field(max_length=MAX_POLICY)] | None = None
    project: Name | None = None
    dpf_accepted: bool | None = None
    since: AwareDatetime | None = None


class Question(Body):
    """What a request of `project` for `model` would be told; `document`: by this document of the tenant instead."""

    project: Name
    model: Annotated[str, Field(max_length=256)]
    document: Annotated[str, Field(max_length=MAX_POLICY)] | None = None


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class Checked(Answer):
    """`problems`: each with its line; none if the document may be proposed."""

    ok: bool
    problems: tuple[str, ...]


class RuleDifference(Answer):
    rule: str
    before: str
    after: str
    note: str


class Impact(Answer):
    """Of the recorded `calls`, how many would stay the `same`; `changes` by effect, project, model and reason."""

    differences: tuple[RuleDifference, ...]
    calls: int
    same: int
    changes: tuple[dict[str, Any], ...]
    rules: dict[str, int]


class Explanation(Answer):
    decision: dict[str, Any]
    lines: tuple[str, ...]


@router.post("/policies/check", dependencies=[Depends(Need("policies.read"))])
def check_policy(desk: DeskOf, tenant: str, new: NewPolicy) -> Checked:
    with _room(desk) as room:
        problems = room.check(Draft(new.document, tenant, new.project))
    return Checked(ok=not problems, problems=tuple(problems))


@router.post("/policies/simulate", dependencies=[Depends(Need("policies.read"))])
def simulate_policy(desk: DeskOf, tenant: str, asked: Simulation) -> Impact:
    """What a draft would have done to recorded calls. Nothing is changed."""
    if (asked.document is None) == (asked.dpf_accepted is None) or asked.dpf_accepted:
        raise Invalid("send either a document, or dpf_accepted: false")
    with _room(desk) as room:
        draft = room.without_dpf(tenant) if asked.document is None else Draft(asked.document, tenant, asked.project)
        changed = room.differences(draft)
        (found,) = room.simulate(draft, asked.since)
    shown = tuple(RuleDifference(rule=d.rule, before=d.before, after=d.after, note=d.note) for d in changed)
    return Impact(differences=shown, **found.impact.as_json())


@router.post("/policies/explain", dependencies=[Depends(Need("policies.read"))])
def explain_policy(desk: DeskOf, tenant: str, asked: Question) -> Explanation:
    """Decide as a gateway would now, with the lines of the documents that say so."""
    draft = None if asked.document is None else Draft(asked.document, tenant)
    with _room(desk) as room:
        explained = room.explain(tenant, asked.project, asked.model, draft)
    lines = explain_source(explained.decision, explained.sources)
    return Explanation(decision=explain_json(explained.decision), lines=tuple(lines))


@router.post("/policies/rollback", status_code=201)
def roll_back_policy(
    actor: Activator, desk: DeskOf, expected: IfMatch, response: Response, tenant: str, back: Rollback
) -> PolicyVersionRecord:
    """Put the version before the one in force back, as a new version. One person may; it goes one step."""
    record = desk.control(actor.name, expected).roll_back_policy(tenant, project=back.project)
    tagged(response, record)
    return record


@router.get("/policy-proposals", dependencies=[Depends(Need("policies.read"))])
def list_proposals(desk: DeskOf, tenant: str) -> tuple[PolicyProposalRecord, ...]:
    """Every one there was, oldest first."""
    return tuple(desk.inventory.proposals(tenant))


@router.post("/policy-proposals", status_code=201)
def submit_policy(
    actor: Submitter, desk: DeskOf, response: Response, tenant: str, new: NewPolicy
) -> PolicyProposalRecord:
    """Propose a document. It must compile and pass its own tests; a second person approves it."""
    record = desk.control(actor.name).submit_policy(tenant, new.document, project=new.project, person=actor.person)
    tagged(response, record)
    return record


@router.get("/policy-proposals/{proposal}", dependencies=[Depends(Need("policies.read"))])
def show_proposal(
    desk: DeskOf, response: Response, tenant: str, proposal: int, project: Name | None = None
) -> PolicyProposalRecord:
    record = desk.inventory.proposal(tenant, proposal, project)
    tagged(response, record)
    return record


@router.post("/policy-proposals/{proposal}/approve")
def approve_policy(
    actor: Approver,
    desk: DeskOf,
    expected: IfMatch,
    response: Response,
    tenant: str,
    proposal: int,
    project: Name | None = None,
) -> PolicyProposalRecord:
    """Say yes to another person's proposal; 409 for one's own."""
    control = desk.control(actor.name, expected)
    record = control.approve_policy(tenant, proposal, person=actor.person, project=project)
    tagged(response, record)
    return record


@router.post("/policy-proposals/{proposal}/activate")
def activate_policy(
    actor: Activator,
    desk: DeskOf,
    expected: IfMatch,
    response: Response,
    tenant: str,
    proposal: int,
    when: Activation,
    project: Name | None = None,
) -> PolicyProposalRecord:
    """Put an approved proposal in force, now or at an instant. If it does not compile by then, what was stays."""
    at: datetime | None = when.at
    record = desk.control(actor.name, expected).activate_proposal(tenant, proposal, project=project, at=at)
    tagged(response, record)
    return record


@router.post("/policy-proposals/{proposal}/withdraw")
def withdraw_policy(
    actor: Submitter,
    desk: DeskOf,
    expected: IfMatch,
    response: Response,
    tenant: str,
    proposal: int,
    why: Withdrawal,
    project: Name | None = None,
) -> PolicyProposalRecord:
    """Take a proposal back that is not in force."""
    control = desk.control(actor.name, expected)
    record = control.withdraw_policy(tenant, proposal, project=project, because=why.because)
    tagged(response, record)
    return record


@contextmanager
def _room(desk: Desk) -> Iterator[PolicyRoom]:
    """What is wrong with a document is 422, in the policy's own words."""
    if desk.policy_room is None:
        raise NotReady("this gateway has no catalogue to judge by")
    try:
        yield desk.policy_room(desk.inventory)
    except PolicyError as error:
        raise Invalid(str(error)) from error
