"""The life of a policy: submitted, approved by a second person, in force from an instant, kept permanently.

A document passes its own tests when it is submitted and again when it is put in force, under what is then above and
below it; where it does not, what is in force stays in force. People are distinguished by their ids, not by their
tokens.
"""

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256

from sqlmodel import Session, col, func, select

from audit.events.base import SYSTEM_TENANT
from gateway.database.errors import ControlError, Invalid, NotIndependent, NotReady
from gateway.database.tables.control import PolicyProposalRow, PolicyVersionRow, TenantRow
from gateway.identity.principal import PolicyInForce
from gateway.records.control import PolicyProposalRecord, PolicyVersionRecord
from gateway.store import lookup
from gateway.store.change import Administration, Change
from gateway.store.control.independence import SHELL, standing_of
from gateway.store.lookup import OPERATOR, TENANT_SCOPE, policy_record, proposal_record


class PolicyControl(Administration):
    """Policies of tenants, of their projects (`project`), and of the operator (`tenant` None)."""

    def activate_policy(self, tenant: str | None, document: str, *, project: str | None = None) -> PolicyVersionRecord:
        """Make `document` the policy from now on, without a second person; the version before it stays on file.

        For a shell on the installation's own folder: the first policy, and emergencies. It must compile, pass its own
        tests, and leave every active document below compiling under it. Raises Invalid with the policy's own words,
        NotFound.
        """
        with self._change() as change:
            owner, scope = self._living(change, tenant, project)
            return self._put_in_force(change, owner, scope, document, {"approval": "none"})

    def submit_policy(
        self, tenant: str | None, document: str, *, project: str | None = None, person: str = SHELL
    ) -> PolicyProposalRecord:
        """Propose `document`. Raises Invalid if it does not compile or fails a test, NotFound."""
        with self._change() as change:
            session = change.session
            owner, scope = self._living(change, tenant, project)
            in_force = self._check_policy(session, owner, scope, document)
            last = session.exec(
                select(func.max(PolicyProposalRow.number)).where(
                    PolicyProposalRow.tenant == owner, PolicyProposalRow.project == scope
                )
            ).one()
            row = PolicyProposalRow(
                tenant=owner,
                project=scope,
                number=(last or 0) + 1,
                sha256=sha256(document.encode()).hexdigest(),
                document=document,
                submitted_by=person,
                submitted_with=self._actor,
                **change.stamp,
            )
            change.insert(row, f"proposal {row.number}")
            record = proposal_record(row)
            detail = {"number": str(row.number), "sha256": row.sha256, "policy_hash": in_force.policy.hash}
            _report(change, "policy.submitted", owner, scope, None, record, detail)
        return record

    def approve_policy(
        self, tenant: str | None, number: int, *, person: str, project: str | None = None
    ) -> PolicyProposalRecord:
        """Say yes to a proposal, as another person than the one who submitted it.

        Approving twice changes nothing. Raises NotReady where the same person submitted it, or it was withdrawn, and
        NotIndependent, which is on record, where one of the two may have been invented by the other
        (`gateway.store.control.independence`); NotFound.
        """
        with self._change() as change:
            owner, scope = self._living(change, tenant, project)
            row = lookup.proposal(change.session, owner, scope, number)
            before = proposal_record(row)
            if row.withdrawn_at is not None:
                raise NotReady(f"proposal {number} was withdrawn: {row.withdrawn_because}; propose the policy again")
            if row.submitted_by == person:
                raise NotReady(f"proposal {number} is your own; a second person approves it")
            if row.approved_by is not None:
                return before
            self._check_independent(change, row, before, person)
            row.approved_by, row.approved_at, row.epoch = person, change.at, change.epoch
            record = proposal_record(row)
            detail = {"number": str(number), "sha256": row.sha256}
            _report(change, "policy.approved", owner, scope, before, record, detail)
        return record

    def _check_independent(
        self, change: Change, row: PolicyProposalRow, before: PolicyProposalRecord, person: str
    ) -> None:
        """Raises NotIndependent. The refusal is on record, though nothing changes."""
        session = change.session
        sides = {
            "approver": standing_of(session, person, self._actor),
            "submitter": standing_of(session, row.submitted_by, row.submitted_with or ""),
        }
        for side, standing in sides.items():
            if not standing.counts(change.at, self._approval_wait):
                detail = {"number": str(row.number), "sha256": row.sha256, "approver": person, "side": side}
                _report(change, "policy.approval_refused", row.tenant, row.project, before, before, detail)
                hours = self._approval_wait.total_seconds() / 3600
                raise NotIndependent(
                    f"the {side} of proposal {row.number}, or the token used, was made less than {hours:g} hours ago "
                    f"through the admin API, and no second person vouched for it; wait, or let another role run "
                    f"`domicile person vouch`"
                )

    def activate_proposal(
        self, tenant: str | None, number: int, *, project: str | None = None, at: datetime | None = None
    ) -> PolicyProposalRecord:
        """Put an approved proposal in force: now, or from `at` on, when a gateway does it.

        Raises NotReady if it was not approved, was withdrawn or is in force already; Invalid if by now it does not
        compile; NotFound.
        """
        with self._change() as change:
            owner, scope = self._living(change, tenant, project)
            row = lookup.proposal(change.session, owner, scope, number)
            before = proposal_record(row)
            if row.withdrawn_at is not None or row.version is not None or row.approved_by is None:
                wanted = " yet" if before.state == "submitted" else ""
                raise NotReady(f"proposal {number} is {before.state}, not approved{wanted}; see `domicile policy list`")
            if at is not None and at > change.at:
                row.activates_at, row.epoch = at, change.epoch
                record = proposal_record(row)
                when = at.isoformat(timespec="seconds")
                detail = {"number": str(number), "sha256": row.sha256, "activates_at": when}
                _report(change, "policy.scheduled", owner, scope, before, record, detail)
                return record
            change.confirm(before)
            self._activate(change, row)
            return proposal_record(row)

    def withdraw_policy(
        self, tenant: str | None, number: int, *, project: str | None = None, because: str = "withdrawn"
    ) -> PolicyProposalRecord:
        """Take a proposal back that is not in force yet. Twice changes nothing. Raises NotReady, NotFound."""
        with self._change() as change:
            owner, scope = self._living(change, tenant, project)
            row = lookup.proposal(change.session, owner, scope, number)
            if row.version is not None:
                raise NotReady(f"proposal {number} is in force or was; submit another one, or roll back")
            if row.withdrawn_at is None:
                _withdraw(change, row, because)
            return proposal_record(row)

    def roll_back_policy(self, tenant: str | None, *, project: str | None = None) -> PolicyVersionRecord:
        """Put the version that was in force before the present one in force again, as a new version.

        By one person, since two have approved it before; only one step back, so that no old version is within reach of
        one person alone. Rolling back again returns. Raises NotReady where there is none before, Invalid, NotFound.
        """
        with self._change() as change:
            session = change.session
            owner, scope = self._living(change, tenant, project)
            versions = session.exec(
                select(PolicyVersionRow)
                .where(PolicyVersionRow.tenant == owner, PolicyVersionRow.project == scope)
                .order_by(col(PolicyVersionRow.number).desc())
                .limit(2)
            ).all()
            if len(versions) < 2:
                raise NotReady("there is no version before the one in force; activate a document instead")
            back = versions[1]
            return self._put_in_force(change, owner, scope, back.document, {"rolled_back_to": str(back.number)})

    def activate_due(self) -> list[PolicyProposalRecord]:
        """Put in force what was scheduled for now or before, in that order.

        One that does not compile by now is withdrawn, saying why, and what is in force stays in force.
        """
        done = []
        for tenant, project, number in self._due():
            try:
                done.append(self._activate_one(tenant, project, number))
            except ControlError as error:
                done.append(
                    self.withdraw_policy(tenant, number, project=project, because=f"not activated: {error}"[:500])
                )
        return done

    def _due(self) -> list[tuple[str | None, str | None, int]]:
        with self._database.read() as session:
            rows = session.exec(
                select(PolicyProposalRow.tenant, PolicyProposalRow.project, PolicyProposalRow.number)
                .where(
                    PolicyProposalRow.cell == self._cell,
                    col(PolicyProposalRow.activates_at) <= self._now(),
                    col(PolicyProposalRow.version).is_(None),
                    col(PolicyProposalRow.withdrawn_at).is_(None),
                )
                .order_by(col(PolicyProposalRow.activates_at), col(PolicyProposalRow.number))
            )
            return [(tenant or None, project or None, number) for tenant, project, number in rows]

    def _activate_one(self, tenant: str | None, project: str | None, number: int) -> PolicyProposalRecord:
        with self._change() as change:
            owner, scope = self._living(change, tenant, project)
            row = lookup.proposal(change.session, owner, scope, number)
            if row.version is None and row.withdrawn_at is None:  # another gateway may have been faster
                self._activate(change, row)
            return proposal_record(row)

    def _activate(self, change: Change, row: PolicyProposalRow) -> None:
        detail = {
            "proposal": str(row.number),
            "submitted_by": row.submitted_by,
            "approved_by": row.approved_by or "",
        }
        record = self._put_in_force(change, row.tenant, row.project, row.document, detail)
        row.version, row.epoch = record.number, change.epoch

    def _living(self, change: Change, tenant: str | None, project: str | None) -> tuple[str, str]:
        """The columns of a scope. Raises NotFound, Invalid where tenant or project was revoked."""
        if tenant is None:
            if project is not None:
                raise Invalid("the operator's policy has no projects; leave the project out")
            return OPERATOR, TENANT_SCOPE
        lookup.living_tenant(change.session, tenant)
        if project is not None:
            lookup.living_project(change.session, tenant, project)
        return tenant, TENANT_SCOPE if project is None else project

    def _put_in_force(
        self, change: Change, tenant: str, scope: str, document: str, detail: dict[str, str]
    ) -> PolicyVersionRecord:
        session = change.session
        policy = self._check_policy(session, tenant, scope, document).policy
        before = lookup.active_policy(session, tenant, scope)
        before_record = policy_record(before) if before else None
        if before:
            before.active, before.epoch = False, change.epoch
            session.flush()  # before the insert: one active version at a time
        last = session.exec(
            select(func.max(PolicyVersionRow.number)).where(
                PolicyVersionRow.tenant == tenant, PolicyVersionRow.project == scope
            )
        ).one()
        row = PolicyVersionRow(
            tenant=tenant,
            project=scope,
            number=(last or 0) + 1,
            sha256=sha256(document.encode()).hexdigest(),
            document=document,
            active=True,
            activated_by=self._actor,
            **change.stamp,
        )
        change.insert(row, f"version {row.number}")
        record = policy_record(row)
        detail = {
            "number": str(row.number),
            "sha256": row.sha256,
            "policy_id": policy.policy_id,
            "policy_version": policy.version,
            "policy_hash": policy.hash,
            **detail,
        }
        _report(change, "policy.activated", tenant, scope, before_record, record, detail)
        return record

    def _check_policy(self, session: Session, tenant: str, scope: str, document: str) -> PolicyInForce:
        """With everything above it, and everything that is in force below it. Raises Invalid."""
        if tenant == OPERATOR:
            return self._check_operator(session, document)
        operator = _document(lookup.active_policy(session, OPERATOR, TENANT_SCOPE))
        if scope:
            own = lookup.active_policy(session, tenant, TENANT_SCOPE)
            if own is None:
                raise Invalid(
                    f"tenant {tenant!r} has no active policy that project {scope!r} could tighten"
                    "; activate one for the tenant first"
                )
            return self._checked(f"the policy of project {scope!r}", tenant, own.document, document, operator)
        in_force = self._checked(f"the policy of tenant {tenant!r}", tenant, document, None, operator)
        for project, below in _projects(session, tenant):
            self._checked(f"project {project!r} under the new policy", tenant, document, below, operator)
        return in_force

    def _check_operator(self, session: Session, document: str) -> PolicyInForce:
        """Under it every tenant's policy must stay what it may be; so there is one at least to try it on."""
        in_force: PolicyInForce | None = None
        for tenant, own in _tenants(session, self._cell):
            what = f"tenant {tenant!r} under the operator's policy"
            in_force = self._checked(what, tenant, own, None, document)
            for project, below in _projects(session, tenant):
                self._checked(f"project {tenant}/{project} under the operator's policy", tenant, own, below, document)
        if in_force is None:
            raise Invalid(
                "no tenant has a policy yet that the operator's could bound; activate a policy of a tenant first"
            )
        return in_force

    def _checked(
        self, what: str, tenant: str, document: str, project: str | None, operator: str | None
    ) -> PolicyInForce:
        try:
            return self._check(tenant, document, project, operator)
        except Exception as error:  # of any kind: a document that does not compile must not become active
            raise Invalid(f"{what}: {error}; correct the document") from error


def _document(row: PolicyVersionRow | None) -> str | None:
    return None if row is None else row.document


def _projects(session: Session, tenant: str) -> Iterator[tuple[str, str]]:
    for row in session.exec(
        select(PolicyVersionRow).where(
            PolicyVersionRow.tenant == tenant,
            PolicyVersionRow.project != TENANT_SCOPE,
            col(PolicyVersionRow.active).is_(True),
        )
    ):
        yield row.project, row.document


def _tenants(session: Session, cell: str) -> Iterator[tuple[str, str]]:
    for row in session.exec(
        select(PolicyVersionRow)
        .join(TenantRow, col(TenantRow.id) == PolicyVersionRow.tenant)
        .where(
            PolicyVersionRow.cell == cell,
            PolicyVersionRow.project == TENANT_SCOPE,
            col(PolicyVersionRow.active).is_(True),
            col(TenantRow.revoked_at).is_(None),
        )
    ):
        yield row.tenant, row.document


def _withdraw(change: Change, row: PolicyProposalRow, because: str) -> None:
    before = proposal_record(row)
    row.withdrawn_at, row.withdrawn_because, row.epoch = change.at, because, change.epoch
    detail = {"number": str(row.number), "sha256": row.sha256}
    _report(change, "policy.withdrawn", row.tenant, row.project, before, proposal_record(row), detail)


def _report(
    change: Change,
    action: str,
    tenant: str,
    scope: str,
    before: PolicyVersionRecord | PolicyProposalRecord | None,
    after: PolicyVersionRecord | PolicyProposalRecord,
    detail: dict[str, str],
) -> None:
    owner = tenant or SYSTEM_TENANT
    change.report(action, owner, scope or tenant or "operator", before, after, project=scope or None, detail=detail)
