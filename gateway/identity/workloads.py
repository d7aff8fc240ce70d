"""Workload identity: machines authenticate with a token from their platform instead of a secret.

A Kubernetes service account or a CI job has a short-lived token signed by its issuer. A token is accepted if issuer,
audience and subject match the configuration; no other claim grants anything.
"""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.configuration.settings import Oidc, WorkloadGrant, WorkloadIssuer
from gateway.identity.grants import Grants
from gateway.identity.jwt import JwtRefused, stated_issuer
from gateway.identity.provider import IdentityProvider

UNPINNED = "no subject of this issuer that the token names has a role here; add it to workloads.grants"


@dataclass(frozen=True, slots=True)
class _Issuer:
    settings: WorkloadIssuer
    provider: IdentityProvider


Make = Callable[[WorkloadIssuer], IdentityProvider]


def provider_of(settings: WorkloadIssuer) -> IdentityProvider:
    """Return the provider for an issuer. Raises OSError if its CA file cannot be read."""
    tls = None if settings.ca_file is None else ssl.create_default_context(cafile=str(settings.ca_file))
    oidc = Oidc(issuer=settings.issuer, audience=settings.audience)
    return IdentityProvider(oidc, tls=tls, bearer_file=settings.token_file)


class Workloads:
    """Verification of workload tokens. Thread-safe."""

    def __init__(self, issuers: Sequence[WorkloadIssuer], make: Make = provider_of) -> None:
        self._issuers = {each.issuer: _Issuer(each, make(each)) for each in issuers}

    def issued(self, token: str) -> bool:
        """Whether a token claims one of these issuers. The token is not verified."""
        return stated_issuer(token) in self._issuers

    def roles(self, token: str) -> tuple[dict[str, Any], Grants]:
        """Verify a token. Returns its claims and the roles that are configured for its subject, by tenant.

        Raises JwtRefused, ProviderUnavailable.
        """
        claims, pinned = self._pinned(token)
        roles: dict[str | None, tuple[Any, ...]] = {}
        for grant in pinned:
            if grant.role is not None:
                roles[grant.tenant] = tuple(dict.fromkeys((*roles.get(grant.tenant, ()), grant.role)))
        if not roles:
            raise JwtRefused("jwt_subject", UNPINNED)
        return claims, roles

    def project(self, token: str) -> tuple[dict[str, Any], str, str]:
        """Verify a token. Returns its claims, and the tenant and project of its subject. Raises as `roles`."""
        claims, pinned = self._pinned(token)
        projects = {(grant.tenant, grant.project) for grant in pinned if grant.tenant and grant.project}
        if len(projects) != 1:
            raise JwtRefused(
                "jwt_subject",
                "the token's subject is not pinned to one project here; pin it to one in workloads.grants",
            )
        ((tenant, project),) = projects
        return claims, tenant, project

    def _pinned(self, token: str) -> tuple[dict[str, Any], list[WorkloadGrant]]:
        issuer = self._issuers.get(stated_issuer(token) or "")
        if issuer is None:
            raise JwtRefused("jwt_issuer", "the token is of no issuer of workloads; add its issuer to workloads")
        claims = issuer.provider.machine(token)
        if claims["exp"] - claims["iat"] > issuer.settings.max_minutes * 60:
            raise JwtRefused(
                "jwt_times",
                f"the token lives longer than {issuer.settings.max_minutes} minutes; let its issuer make shorter ones",
            )
        pinned = [grant for grant in issuer.settings.grants if grant.subject == claims["sub"]]
        if not pinned:
            raise JwtRefused("jwt_subject", UNPINNED)
        return claims, pinned
