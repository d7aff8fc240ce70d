"""Authentication and authorisation of admin API calls: a dependency that names the permission of each route.

The route evaluates it before a byte of the body is read (`gateway.admin.calls.guarded_route`).
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, TypeVar

from fastapi import Depends, Header, Request

from audit.incidents.evidence import Evidence
from audit.incidents.incident import Case
from audit.incidents.known_cases import Known, known_incidents, known_requests
from audit.incidents.subject_requests import Matter
from audit.log.found_answers import AnswerSearch
from audit.pack.shelf import PackShelf
from audit.privacy.kept_content import Reader as ContentReader
from audit.privacy.kept_content import none_kept
from audit.private.audit_context import AuditContext
from gateway.admin.calls.authentication import BEARER, Cookies, credential_of
from gateway.admin.calls.problems import Forbidden
from gateway.admin.calls.provider_pool import ProviderPool
from gateway.admin.calls.schemas import GRAMMAR
from gateway.database.database import Database
from gateway.database.errors import NotFound
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
from gateway.store.control.control import CheckPolicy, Control, OnEvent
from gateway.store.control.independence import DEFAULT_WAIT
from gateway.store.control.provisioning import Provisioning
from gateway.store.idempotent_answers import Answers
from gateway.store.pagination import Pages
from gateway.store.reports.inventory import Inventory
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
"""Of tenant, project, text and actor."""


class WeakSetting(Protocol):
    """`code`: its name in docs/warnings.md; `says`: the finding; `fix`: what to do."""

    @property
    def code(self) -> str: ...
    @property
    def says(self) -> str: ...
    @property
    def fix(self) -> str: ...


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The services of the admin API. `hasher` returns the current one: the pepper may have been rotated meanwhile.

    `on_refused` gets a code and the address of each caller that could not be authenticated. `backend_keys`: the folder
    with the keys that servers of tenants ask for, a folder a tenant. `check_region` raises Invalid for a place that the
    catalogue does not have today, `check_deployment` for a deployment that could not run, `check_scale` for figures
    that ask for more replicas than could run. `detect` tests a text for a tenant's watermarks, by a project's policy;
    `find_answer` finds the answers on record that a text is from. `audit`: the log that the gateway writes.
    `evidence`: the registers of a tenant; `kept_content`: what reads content of persons outside of the log's value
    store. `packs`: evidence packs made in the background. `fleet`: the backends as this gateway sees them now.
    `cases`, `requests`: incidents, and requests of persons, as they were last read. `weak_settings`: what `domicile
    doctor` finds; it blocks. `provisioned`: how people that the identity provider provisions become persons here, where
    it does.
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
    provider_pool: ProviderPool = field(default_factory=ProviderPool)
    detect: Detect | None = None
    find_answer: FindAnswer | None = None
    audit: AuditContext | None = None
    evidence: Callable[[str], Evidence] = lambda tenant: Evidence()
    kept_content: Callable[[], ContentReader] = lambda: none_kept
    packs: PackShelf | None = None
    fleet: Fleet | None = None
    cases: Known[Case] = field(default_factory=known_incidents)
    requests: Known[Matter] = field(default_factory=known_requests)
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
        """What the identity provider provisions; None where it does not."""
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
        """Raises a KeyRefused, Forbidden, ProviderUnavailable; a bootstrap token is refused here."""
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
        """The bearer of the browser's session cookie; None without a valid one."""
        cookies = self.cookies
        token = request.cookies.get(cookies.session, "") if cookies is not None else ""
        try:
            bearer = self._bearer(token) if token else None
        except KeyRefused:
            return None
        return bearer if bearer is not None and bearer.person is not None else None

    def needs_provider(self, request: Request) -> bool:
        """Whether authentication of the caller may ask the identity provider."""
        sent = request.headers.get("authorization", "")
        return self._takes_jwt and looks_like_jwt(sent[len(BEARER) :].strip())

    @property
    def _takes_jwt(self) -> bool:
        return self.provider is not None or self.workloads is not None

    def bootstrap_token(self, request: Request) -> str:
        """Its id. Raises a KeyRefused."""
        try:
            bearer = self._bearer(credential_of(request, None))
            if bearer.person is not None:
                raise KeyUnknown("this call takes the bootstrap token; show it as the bearer token")
        except KeyRefused as error:
            self.on_refused(reason_of(error), caller_address(request.scope))
            raise
        return bearer.token

    def sign_in_bearer(self, credential: str) -> Bearer:
        """Whose one-time token for the console it is. Raises a KeyRefused."""
        return self._bearer(credential, "once")

    def _bearer(self, credential: str, kind: KeyKind = "admin") -> Bearer:
        return find_bearer(self.database, self.cell, self.hasher(), parse_key(credential, kind), self.now())

    def _machine(self, token: str, tenant: str | None) -> Actor:
        """As staff, if its groups or its pin say so; else in the tenant that it asks for, or the only one that it has
        roles in."""
        claims, grants = self._granted(token)
        own = None if None in grants else tenant if tenant in grants else min(map(str, grants), default=None)
        if own not in grants:
            raise JwtRefused(
                "jwt_groups", "no group that the token names has a role here; add one of its groups to oidc.roles"
            )
        if own is not None and not self.inventory.has_living(own):
            raise JwtRefused(
                "jwt_groups", "no group that the token names has a role here; add one of its groups to oidc.roles"
            )
        name = subject_digest(claims["iss"], claims["sub"])[:16]
        return Actor(name, own, grants[own], name, "machine")

    def _granted(self, token: str) -> tuple[dict[str, Any], Grants]:
        if self.workloads is not None and self.workloads.issued(token):
            return self.workloads.roles(token)
        if self.provider is None:
            raise JwtRefused("jwt_issuer", "the token is of no issuer that is trusted here; add it to workloads")
        claims = self.provider.machine(token)
        return claims, grants_of(groups_of(claims, self.provider.settings.groups_claim), self.provider.settings.roles)


def context_of(request: Request) -> AdminContext:
    context: AdminContext = request.app.state.context
    return context


def authenticated_actor(request: Request) -> Actor:
    return context_of(request).actor(request)


class Guard(ABC, Generic[Admitted]):
    """A FastAPI dependency that admits or refuses the caller. The route evaluates it once for each request."""

    def __call__(self, request: Request) -> Admitted:
        admitted: Admitted = request.state.admitted[self]
        return admitted

    @abstractmethod
    def admit(self, request: Request) -> Admitted:
        """Raises a KeyRefused, Forbidden, NotFound, ProviderUnavailable, DatabaseUnavailable."""


@dataclass(frozen=True)
class RequireBootstrapToken(Guard[str]):
    """The id of the bootstrap token that was shown."""

    def admit(self, request: Request) -> str:
        return context_of(request).bootstrap_token(request)


@dataclass(frozen=True)
class RequireToken(Guard[Actor]):
    """Whoever shows a valid access token or session, whatever their roles."""

    def admit(self, request: Request) -> Actor:
        return authenticated_actor(request)


@dataclass(frozen=True)
class RequirePermission(Guard[Actor]):
    """The actor, if they may. Another tenant is 404, whether it exists or not; 403 says why."""

    permission: Permission

    def admit(self, request: Request) -> Actor:
        actor = authenticated_actor(request)
        tenant = request.path_params.get("tenant")
        if not all(GRAMMAR[name].fullmatch(value) for name, value in request.path_params.items()):
            raise NotFound(
                "there is nothing of such a name; check the names in the URL"
            )  # nor is it repeated: it may be anything
        if tenant is not None and not actor.sees(tenant):
            raise NotFound(f"there is no tenant {tenant!r}; check the name of the tenant")
        verdict = check(actor, self.permission, None if self.permission in INSTALLATION else tenant)
        if not verdict.allowed:
            raise Forbidden(verdict.because)
        return actor


def if_match(if_match: Annotated[str | None, Header(description="ETag of what is to be changed")] = None) -> str | None:
    """The digest in the header; None where any state will do (RFC 9110 §13.1.1). A weak tag matches nothing."""
    return None if if_match is None or if_match.strip() == "*" else if_match.strip().removeprefix('"').removesuffix('"')


Context = Annotated[AdminContext, Depends(context_of)]
IfMatch = Annotated[str | None, Depends(if_match)]
