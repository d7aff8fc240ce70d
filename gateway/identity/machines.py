"""Machines that show a token of the identity provider, or of the place where they run (`gateway.identity.workloads`),
where others show a key (RFC 6750 §2.1, RFC 9068).

Each calls for one project, that of its groups or of its subject, under the project's policy and limits. A token is
checked whole when it is first seen, in threads of their own, since the provider may have to be asked; what was found
holds for a minute.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Any, Protocol, Self

from gateway.configuration.settings import ProjectGrant
from gateway.identity.grants import groups_of, subject_digest
from gateway.identity.jwt import JwtRefused
from gateway.identity.login import ProviderUnavailable

HOLDS_FOR_S = 60.0
"""How long a key that the provider withdraws is still accepted for what it opened just before."""
MAX_KNOWN = 4096
MAX_WAITING = 256
THREADS = 4


class Provider(Protocol):
    def machine(self, token: str) -> dict[str, Any]:
        """The claims of a token that is to be believed. Raises JwtRefused, ProviderUnavailable."""
        ...


class WorkloadProjects(Protocol):
    def issued(self, token: str) -> bool:
        """Whether it says that it is of an issuer of workloads."""
        ...

    def project(self, token: str) -> tuple[dict[str, Any], str, str]:
        """Claims, tenant and project. Raises JwtRefused, ProviderUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Machine:
    """`name`: as the record names it, by a digest of who it is at the provider. `expires_at`: until when its token is
    accepted, with the clock skew that is allowed; seconds since 1970."""

    name: str
    tenant: str
    project: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class _Known:
    """`until`: an instant of a monotonic clock."""

    machine: Machine
    until: float


class Machines:
    """Use as ``async with Machines(...) as machines``. `groups_claim`: where tokens name groups. `skew_s`: how long
    the provider accepts a token after its end."""

    def __init__(
        self,
        provider: Provider | None,
        grants: Iterable[ProjectGrant],
        groups_claim: str,
        *,
        skew_s: float = 0.0,
        workloads: WorkloadProjects | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._provider = provider
        self._workloads = workloads
        self._grants = tuple(grants)
        self._groups_claim = groups_claim
        self._skew_s = skew_s
        self._monotonic = monotonic
        self._now = now
        self._known: dict[bytes, _Known] = {}
        self._waiting = 0
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="machines")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def identify(self, token: str) -> Machine:
        """Raises JwtRefused; ProviderUnavailable, also where more wait for it than it could answer in time."""
        digest = sha256(token.encode()).digest()  # the token itself is not kept
        known = self._known.get(digest)
        if known is not None and self._monotonic() <= known.until and self._now() < known.machine.expires_at:
            return known.machine
        machine = await self._in_thread(self._admitted, token)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[digest] = _Known(machine, self._monotonic() + HOLDS_FOR_S)
        return machine

    def _admitted(self, token: str) -> Machine:
        if self._workloads is not None and self._workloads.issued(token):
            return self._named(*self._workloads.project(token))
        if self._provider is None:
            raise JwtRefused("jwt_issuer", "the token is of no issuer that is trusted here; add it to workloads")
        return self._machine(self._provider.machine(token))

    async def _in_thread(self, work: Callable[[str], Machine], token: str) -> Machine:
        if self._waiting >= MAX_WAITING:
            raise ProviderUnavailable("too many tokens wait for the identity provider; try again")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, token)
        finally:
            self._waiting -= 1

    def _machine(self, claims: dict[str, Any]) -> Machine:
        groups = groups_of(claims, self._groups_claim)
        projects = {(grant.tenant, grant.project) for grant in self._grants if grant.group in groups}
        if not projects:
            raise JwtRefused(
                "jwt_groups",
                "no group that the token names may call models here; add one of its groups to oidc.projects",
            )
        if len(projects) > 1:
            raise JwtRefused("jwt_groups", "the token's groups may call for several projects; it must be for one")
        ((tenant, project),) = projects
        return self._named(claims, tenant, project)

    def _named(self, claims: dict[str, Any], tenant: str, project: str) -> Machine:
        name = f"machine:{subject_digest(claims['iss'], claims['sub'])[:16]}"
        return Machine(name, tenant, project, claims["exp"] + self._skew_s)
