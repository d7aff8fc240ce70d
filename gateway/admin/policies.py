"""Policies: versions, checks and simulations, proposals with approval and activation, and rollback.

The routes exist twice: for policies of a tenant and its projects, and for those of the operator, which take precedence.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from gateway.admin.calls.access import Context, IfMatch, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, Instant, Limit, Name, ResponseBody, Whole, tagged
from gateway.admin.explain import policy_study
from gateway.database.errors import Invalid
from gateway.identity.roles import OF_OPERATOR, Actor, Permission
from gateway.policies.study import Draft
from gateway.records.control import PolicyProposalRecord, PolicyVersionRecord
from gateway.store.pagination import Page
from policy.analysis.policy_tests import PolicyTestOutcome

MAX_POLICY = 256 * 1024

_Owner = Callable[..., str | None]
_Needs = Callable[[Permission], Permission]

Document = Annotated[str, Field(max_length=MAX_POLICY)]


class NewPolicy(Body):
    """A policy document. `document`: YAML. `project`: the policy is for this project and may only restrict the
    tenant's."""

    document: Document
    project: Name | None = None


class Activation(Body):
    """`at`: time of the activation, by default now."""

    at: Instant | None = None


class Withdrawal(Body):
    because: Annotated[str, Field(min_length=1, max_length=200)] = "withdrawn"


class Rollback(Body):
    project: Name | None = None


class Simulation(Body):
    """A draft: a `document`, or with `dpf_accepted` false the policy in force without the EU-US Data Privacy Framework.

    `since`: only calls recorded from then on are used.
    """

    document: Document | None = None
    project: Name | None = None
    dpf_accepted: bool | None = None
    since: Instant | None = None


class TestOutcome(ResponseBody):
    """Result of a test in a document. `reasons`: why its request was refused, if it was."""

    name: str
    expect: str
    passed: bool
    reasons: tuple[str, ...]


class Checked(ResponseBody):
    """Result of a check. `problems`: with their lines; empty if the document can be proposed. `tests`: results of the
    document's own tests, if it compiles."""

    ok: bool
    problems: tuple[str, ...]
    tests: tuple[TestOutcome, ...]


class RuleDifference(ResponseBody):
    rule: str
    before: str
    after: str
    note: str


class TenantImpact(ResponseBody):
    """Effect on the recorded `calls` of a tenant. `same`: number of unchanged decisions. `changes`: by effect, project,
    model and reason."""

    tenant: str
    calls: int
    same: int
    changes: tuple[dict[str, Any], ...]
    rules: dict[str, int]


class Impact(ResponseBody):
    """Effect of a draft. `differences`: from the policy in force; empty if there is none. `tenants`: those that it
    concerns."""

    differences: tuple[RuleDifference, ...]
    tenants: tuple[TenantImpact, ...]


def _routes(prefix: str, owner: _Owner, needs: _Needs) -> APIRouter:
    """Return the routes for policies of a tenant, or of the operator.

    `owner`: dependency that returns the tenant, None for the operator. `needs`: maps a permission for policies of a
    tenant to the one required here.
    """
    router = APIRouter(prefix=prefix, tags=["policies"], route_class=IdempotentRoute)
    _add_reading(router, owner, needs)
    _add_rollback(router, owner, needs)
    _add_proposals(router, owner, needs)
    _add_decisions(router, owner, needs)
    return router


def _add_reading(router: APIRouter, owner: _Owner, needs: _Needs) -> None:
    """Add the read-only routes: the versions, and the checks and simulations of a draft."""
    reading = [Depends(RequirePermission(needs("policies.read")))]
    of = Annotated[str | None, Depends(owner)]

    @router.get("/policies", dependencies=reading)
    def list_policies(
        context: Context,
        tenant: of,
        project: Name | None = None,
        after: Annotated[Whole, Query(ge=0, le=2**31 - 1)] = 0,
        limit: Limit = 50,
    ) -> Page[PolicyVersionRecord]:
        """List all versions that have been in force, oldest first, of the tenant's policy or of one of its projects."""
        return context.pages.policies(tenant, project, after, limit)

    @router.post("/policies/check", dependencies=reading)
    def check_policy(context: Context, tenant: of, new: NewPolicy) -> Checked:
        """Compile a document together with the policies above it, and run its tests."""
        draft = Draft(new.document, tenant, new.project)
        with policy_study(context) as study:
            problems, outcomes = study.check(draft)
        return Checked(ok=not problems, problems=tuple(problems), tests=tuple(map(_test_outcome, outcomes)))

    @router.post("/policies/diff", dependencies=reading)
    def diff_policy(context: Context, tenant: of, new: NewPolicy) -> tuple[RuleDifference, ...]:
        """Compare a document with the policy in force, by rule, with all levels combined."""
        with policy_study(context) as study:
            return _shown(study.differences(Draft(new.document, tenant, new.project)))

    @router.post("/policies/simulate", dependencies=reading)
    def simulate_policy(context: Context, tenant: of, asked: Simulation) -> Impact:
        """Return how a draft would have decided recorded calls. Nothing is changed."""
        if (asked.document is None) == (asked.dpf_accepted is None) or asked.dpf_accepted:
            raise Invalid(
                "the document is missing, or dpf_accepted is sent beside it; send either a document, or "
                "dpf_accepted: false"
            )
        with policy_study(context) as study:
            draft = (
                study.without_dpf(tenant) if asked.document is None else Draft(asked.document, tenant, asked.project)
            )
            changed = study.differences(draft) if study.in_force(tenant) else []
            found = study.simulate(draft, asked.since)
        tenants = tuple(TenantImpact(tenant=one.tenant, **one.impact.as_json()) for one in found)
        return Impact(differences=_shown(changed), tenants=tenants)


def _add_rollback(router: APIRouter, owner: _Owner, needs: _Needs) -> None:
    """Add the route that restores the previous version without a proposal."""
    activator = Annotated[Actor, Depends(RequirePermission(needs("policies.activate")))]
    of = Annotated[str | None, Depends(owner)]

    @router.post("/policies/rollback", status_code=201)
    def roll_back_policy(
        actor: activator, context: Context, expected: IfMatch, response: Response, tenant: of, back: Rollback
    ) -> PolicyVersionRecord:
        """Restore the previous version as a new version. This takes one person and goes back one version."""
        return tagged(response, context.control(actor.name, expected).roll_back_policy(tenant, project=back.project))


def _add_proposals(router: APIRouter, owner: _Owner, needs: _Needs) -> None:
    """Add the routes to propose a document and to read proposals."""
    reading = [Depends(RequirePermission(needs("policies.read")))]
    submitter = Annotated[Actor, Depends(RequirePermission(needs("policies.submit")))]
    of = Annotated[str | None, Depends(owner)]

    @router.get("/policy-proposals", dependencies=reading)
    def list_proposals(context: Context, tenant: of) -> tuple[PolicyProposalRecord, ...]:
        """List all proposals, oldest first."""
        return tuple(context.inventory.proposals(tenant))

    @router.post("/policy-proposals", status_code=201)
    def submit_policy(
        actor: submitter, context: Context, response: Response, tenant: of, new: NewPolicy
    ) -> PolicyProposalRecord:
        """Propose a document. It must compile and pass its own tests. A second person has to approve it."""
        record = context.control(actor.name).submit_policy(
            tenant, new.document, project=new.project, person=actor.person
        )
        return tagged(response, record)

    @router.get("/policy-proposals/{proposal}", dependencies=reading)
    def show_proposal(
        context: Context, response: Response, tenant: of, proposal: int, project: Name | None = None
    ) -> PolicyProposalRecord:
        return tagged(response, context.inventory.proposal(tenant, proposal, project))


def _add_decisions(router: APIRouter, owner: _Owner, needs: _Needs) -> None:
    """Add the routes that decide about a proposal: approve, activate, withdraw."""
    submitter = Annotated[Actor, Depends(RequirePermission(needs("policies.submit")))]
    approver = Annotated[Actor, Depends(RequirePermission(needs("policies.approve")))]
    activator = Annotated[Actor, Depends(RequirePermission(needs("policies.activate")))]
    of = Annotated[str | None, Depends(owner)]

    @router.post("/policy-proposals/{proposal}/approve")
    def approve_policy(
        actor: approver,
        context: Context,
        expected: IfMatch,
        response: Response,
        tenant: of,
        proposal: int,
        project: Name | None = None,
    ) -> PolicyProposalRecord:
        """Approve a proposal of another person. 409 for the caller's own."""
        control = context.control(actor.name, expected)
        return tagged(response, control.approve_policy(tenant, proposal, person=actor.person, project=project))

    @router.post("/policy-proposals/{proposal}/activate")
    def activate_policy(
        actor: activator,
        context: Context,
        expected: IfMatch,
        response: Response,
        tenant: of,
        proposal: int,
        when: Activation,
        project: Name | None = None,
    ) -> PolicyProposalRecord:
        """Activate an approved proposal, now or at a given time. If it does not compile then, the earlier policy stays
        in force."""
        at: datetime | None = when.at
        record = context.control(actor.name, expected).activate_proposal(tenant, proposal, project=project, at=at)
        return tagged(response, record)

    @router.post("/policy-proposals/{proposal}/withdraw")
    def withdraw_policy(
        actor: submitter,
        context: Context,
        expected: IfMatch,
        response: Response,
        tenant: of,
        proposal: int,
        why: Withdrawal,
        project: Name | None = None,
    ) -> PolicyProposalRecord:
        """Withdraw a proposal that is not in force."""
        control = context.control(actor.name, expected)
        return tagged(response, control.withdraw_policy(tenant, proposal, project=project, because=why.because))


def _test_outcome(outcome: PolicyTestOutcome) -> TestOutcome:
    """Convert the result of one of a document's own tests."""
    reasons = tuple(map(str, outcome.decision.reasons))
    return TestOutcome(name=outcome.test.name, expect=outcome.test.expect, passed=outcome.passed, reasons=reasons)


def _shown(differences: list[Any]) -> tuple[RuleDifference, ...]:
    return tuple(RuleDifference(rule=d.rule, before=d.before, after=d.after, note=d.note) for d in differences)


def _in_the_path(tenant: str) -> str:
    return tenant


def _of_the_operator() -> None:
    return None


tenant_router = _routes("/tenants/{tenant}", _in_the_path, lambda permission: permission)
operator_router = _routes("/operator", _of_the_operator, OF_OPERATOR.__getitem__)
