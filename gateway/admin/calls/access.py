"""Authentication and authorisation of calls of the admin API: the permission of a route is a dependency of it.

The route evaluates it before a byte of the body is read (`gateway.admin.calls.guarded_route`).
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, TypeVar

from fastapi import Depends, Header, Request

from audit.incidents.incident import Case
from audit.incidents.known_cases import Known, known_incidents, known_requests
from audit.incidents.pack_inputs import Evidence
from audit.incidents.subject_requests import Matter
from audit.log.changes import Newest, none_noted
from audit.log.found_answers import AnswerSearch
from audit.pack.shelf import PackShelf
from audit.privacy.kept_content import Reader as ContentReader
from audit.privacy.kept_content import none_kept
from audit.private.audit_context import AuditContext
from gateway.admin.calls.authentication import BEARER, Cookies, credential_of
from gateway.admin.calls.problems import Forbidden
from gateway.admin.calls.provider_pool import ProviderPool
from gateway.admin.calls.schemas import GRAMMAR
from gateway.comparisons.recomputation import Recomputation
from gateway.database.database import Database
from gateway.database.errors import Invalid, NotFound
from gateway.directory.directory import Address
from gateway.identity.grants import Grants, grants_of, groups_of, subject_digest
from gateway.identity.jwt import JwtRefused, looks_like_jwt, reason_of
from gateway.identity.keys import KeyHasher, KeyKind, KeyRefused, KeyUnknown, parse_key
from gateway.identity.roles import INSTALLATION, Actor, Permission, check
from gateway.marks.detection import Detected
from gateway.openai.asgi_client import caller_address
from gateway.policies.study import PolicyStudy
from gateway.records.fleet import DeploymentRecord
from gateway.records.provisioning import Mapped
from gateway.store.bearers import Bearer, find_bearer
from gateway.store.change import CheckPolicy, OnEvent
from gateway.store.control.control import Control
from gateway.store.control.independence import DEFAULT_WAIT
from gateway.store.control.provisioning import Provisioning
from gateway.store.idempotent_answers import Answers
from gateway.store.pagination import Pages
from gateway.store.reports.inventory import Inventory
from regions.fleet.cards import Cards
from regions.fleet.deployment import Deployment, Scale
from regions.fleet.fleet import Fleet

if TYPE_CHECKING:
    from gateway.identity.provider import IdentityProvider
    from gateway.identity.workloads import Workloads


Admitted = TypeVar("Admitted")


class OnRefused(Protocol):
    """Called from any thread."""

    def __call__(self, reason: str, address: Address | None = None, /) -> None: ...


class FindAnswer(Protocol):
    """The bounds of the period are RFC 3339 UTC, or a prefix of it."""

    async def __call__(
        self, tenant: str, text: str, reason: str, actor: str, *, since: str | None = None, until: str | None = None
    ) -> AnswerSearch: ...


Detect = Callable[[str, str, str, str], Awaitable[Detected]]
"""Takes tenant, project, text and actor."""


MakePlan = Callable[[str, Cards, Mapping[str, Any]], Mapping[str, Any]]
"""Of weights, cards, and what else the planner is asked."""


def _no_plan(weights: str, cards: Cards, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    raise Invalid("this process has no planner; ask the admin API of a gateway")


class WeakSetting(Protocol):
    """A weak setting. `code`: its name in docs/warnings.md. `says`: the finding. `fix`: what to do."""

    @property
    def code(self) -> str: ...
    @property
    def says(self) -> str: ...
    @property
    def fix(self) -> str: ...


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Services of the admin API.

    Attributes:
        hasher: returns the current hasher; the pepper may have been rotated since the last call.
        on_refused: is called with a code and the address of each caller that could not be authenticated.
        backend_keys: folder with the keys that servers of tenants require, one folder for each tenant.
        check_region: raises Invalid for a region that the catalogue does not have today.
        check_deployment: raises Invalid for a deployment that cannot run.
        check_scale: raises Invalid for figures with more replicas than can run.
        plan: returns the planner's prediction; raises Invalid.
        detect: tests a text for watermarks of a tenant, under the policy of a project.
        find_answer: finds the recorded answers that a text comes from.
        challenge: has a backend compute again what an answer commits to.
        audit: the log that the gateway writes.
        evidence: returns the registers of a tenant.
        kept_content: returns the reader for content of persons that is not in the log's value store.
        packs: evidence packs, which are created in the background.
        fleet: the backends as this gateway currently knows them.
        cases, requests: incidents and requests of persons, as last read.
        changes: where the newest changes are on record.
        weak_settings: findings of `domicile doctor`; it blocks.
        approval_wait: time for which a new person or token does not count as a second one.
        provisioned: mapping from users of the identity provider to persons, if it provisions them.
    """

    database: Database
    cell: str
    hasher: Callable[[], KeyHasher]
    check_policy: CheckPolicy
    on_event: OnEvent
    policy_study: Callable[[Inventory], PolicyStudy] | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    provider: "IdentityProvider | None" = None
    workloads: "Workloads | None" = None
    on_refused: OnRefused = lambda reason, address=None: None
    backend_keys: Path | None = None
    check_region: Callable[[str], None] = lambda region: None
    check_deployment: Callable[[Deployment], None] = lambda wanted: None
    check_scale: Callable[[DeploymentRecord, Scale], None] = lambda present, scale: None
    plan: MakePlan = _no_plan
    provider_pool: ProviderPool = field(default_factory=ProviderPool)
    detect: Detect | None = None
    find_answer: FindAnswer | None = None
    challenge: Recomputation | None = None
    audit: AuditContext | None = None
    evidence: Callable[[str], Evidence] = lambda tenant: Evidence()
    kept_content: Callable[[], ContentReader] = lambda: none_kept
    packs: PackShelf | None = None
    fleet: Fleet | None = None
    cases: Known[Case] = field(default_factory=known_incidents)
    requests: Known[Matter] = field(default_factory=known_requests)
    changes: Newest = none_noted
    weak_settings: Callable[[], Sequence[WeakSetting]] = tuple
    approval_wait: timedelta = DEFAULT_WAIT
    provisioned: Mapped | None = None

    @property
    def inventory(self) -> Inventory:
        return Inventory(self.database)

    @property
    def pages(self) -> Pages:
        return Pages(self.database)

    @property
    def cookies(self) -> Cookies | None:
        return None if self.provider is None else Cookies.at(self.provider.settings)

    def control(self, actor: str, expected: str | None = None) -> Control:
        return Control(
            self.database,
            cell=self.cell,
            hasher=self.hasher(),
            actor=actor,
            check_policy=self.check_policy,
            on_event=self.on_event,
            now=self.now,
            expected=expected,
            approval_wait=self.approval_wait,
        )

    def provisioning(self) -> Provisioning | None:
        """Return the provisioning by the identity provider; None without it."""
        if self.provisioned is None:
            return None
        return Provisioning(
            self.database,
            self.provisioned,
            cell=self.cell,
            hasher=self.hasher(),
            actor="machine:scim",
            check_policy=self.check_policy,
            on_event=self.on_event,
            now=self.now,
        )

    def answers(self, actor: Actor, credential: str) -> Answers:
        return Answers(self.database, self.cell, actor.name, credential)

    def actor(self, request: Request) -> Actor:
        """Return the caller. Raises a KeyRefused, also for a bootstrap token, Forbidden, ProviderUnavailable."""
        credential = credential_of(request, self.cookies)
        try:
            if self._takes_jwt and looks_like_jwt(credential):
                return self._machine(credential, request.path_params.get("tenant"))
            bearer = self._bearer(credential)
            if bearer.person is None:
                raise KeyUnknown("a bootstrap token is accepted by /bootstrap only; use an access token of a person")
        except KeyRefused as error:
            self.on_refused(reason_of(error), caller_address(request.scope))
            raise
        return Actor(bearer.person.id, bearer.person.tenant, bearer.person.roles, bearer.token)

    def session(self, request: Request) -> Bearer | None:
        """Return the owner of the browser's session cookie; None without a valid one."""
        cookies = self.cookies
        token = request.cookies.get(cookies.session, "") if cookies is not None else ""
        try:
            bearer = self._bearer(token) if token else None
        except KeyRefused:
            return None
        return bearer if bearer is not None and bearer.person is not None else None

    def needs_provider(self, request: Request) -> bool:
        """Return whether authentication of the caller may send requests to the identity provider."""
        sent = request.headers.get("authorization", "")
        return self._takes_jwt and looks_like_jwt(sent[len(BEARER) :].strip())

    @property
    def _takes_jwt(self) -> bool:
        return self.provider is not None or self.workloads is not None

    def bootstrap_token(self, request: Request) -> str:
        """Return the id of the bootstrap token that the request shows. Raises a KeyRefused."""
        try:
            bearer = self._bearer(credential_of(request, None))
            if bearer.person is not None:
                raise KeyUnknown("this call takes the bootstrap token; show it as the bearer token")
        except KeyRefused as error:
            self.on_refused(reason_of(error), caller_address(request.scope))
            raise
        return bearer.token

    def sign_in_bearer(self, credential: str) -> Bearer:
        """Return the owner of a one-time token for the console. Raises a KeyRefused."""
        return self._bearer(credential, "once")

    def _bearer(self, credential: str, kind: KeyKind = "admin") -> Bearer:
        return find_bearer(self.database, self.cell, self.hasher(), parse_key(credential, kind), self.now())

    def _machine(self, token: str, tenant: str | None) -> Actor:
        """Return the machine with this token: as staff if its groups or its issuer's settings make it staff, else in
        `tenant`, or in the first tenant in which it has roles. Raises JwtRefused, ProviderUnavailable."""
        claims, grants = self._granted(token)
        own = None if None in grants else tenant if tenant in grants else min(map(str, grants), default=None)
        if own not in grants or (own is not None and not self.inventory.has_living(own)):
            raise JwtRefused("jwt_groups", "no group in the token has a role here; add one of its groups to oidc.roles")
        name = subject_digest(claims["iss"], claims["sub"])[:16]
        return Actor(name, own, grants[own], name, "machine")

    def _granted(self, token: str) -> tuple[dict[str, Any], Grants]:
        if self.workloads is not None and self.workloads.issued(token):
            return self.workloads.roles(token)
        if self.provider is None:
            raise JwtRefused("jwt_issuer", "the issuer of the token is not trusted here; add it to workloads")
        claims = self.provider.machine(token)
        return claims, grants_of(groups_of(claims, self.provider.settings.groups_claim), self.provider.settings.roles)


def context_of(request: Request) -> AdminContext:
    context: AdminContext = request.app.state.context
    return context


def authenticated_actor(request: Request) -> Actor:
    return context_of(request).actor(request)


class Guard(ABC, Generic[Admitted]):
    """A FastAPI dependency that accepts or refuses the caller. The route evaluates it once for each request."""

    def __call__(self, request: Request) -> Admitted:
        admitted: Admitted = request.state.admitted[self]
        return admitted

    @abstractmethod
    def admit(self, request: Request) -> Admitted:
        """Return what the route needs of the caller. Raises a KeyRefused, Forbidden, NotFound, ProviderUnavailable,
        DatabaseUnavailable."""


@dataclass(frozen=True)
class RequireBootstrapToken(Guard[str]):
    """Requires a bootstrap token, whose id it returns."""

    def admit(self, request: Request) -> str:
        return context_of(request).bootstrap_token(request)


@dataclass(frozen=True)
class RequireToken(Guard[Actor]):
    """Requires a valid access token or session, with any role."""

    def admit(self, request: Request) -> Actor:
        return authenticated_actor(request)


@dataclass(frozen=True)
class RequirePermission(Guard[Actor]):
    """Requires a permission. Another tenant is answered with 404, whether it exists or not; 403 contains the reason."""

    permission: Permission

    def admit(self, request: Request) -> Actor:
        actor = authenticated_actor(request)
        tenant = request.path_params.get("tenant")
        if not all(GRAMMAR[name].fullmatch(value) for name, value in request.path_params.items()):
            # the names are not repeated, because they may contain anything
            raise NotFound("the URL contains an invalid name; check the names in the URL")
        if tenant is not None and not actor.sees(tenant):
            raise NotFound(f"there is no tenant {tenant!r}; check the name of the tenant")
        verdict = check(actor, self.permission, None if self.permission in INSTALLATION else tenant)
        if not verdict.allowed:
            raise Forbidden(verdict.because)
        return actor


def if_match(if_match: Annotated[str | None, Header(description="ETag of the object to change")] = None) -> str | None:
    """Return the digest in the header; None if any state is accepted (RFC 9110 §13.1.1). A weak tag matches nothing."""
    return None if if_match is None or if_match.strip() == "*" else if_match.strip().removeprefix('"').removesuffix('"')


Context = Annotated[AdminContext, Depends(context_of)]
IfMatch = Annotated[str | None, Depends(if_match)]
