"""Effective limits of a key: those that administrators set for the key, its project and its tenant, and the policy's.

A policy's limits apply to the project. If an administrator set one of the same kind, the lower one applies.
"""

from collections.abc import Mapping

from gateway.limits.limit_kinds import BY_NAME
from gateway.limits.limiter import Counter, Level, Limits, counters
from policy.document.document import Limits as PolicyLimits

NO_LIMITS = Limits()


def binding(
    tenant: str,
    project: str,
    key: str,
    configured: Mapping[tuple[str, str, str], Limits],
    policy: PolicyLimits | None = None,
) -> tuple[Counter, ...]:
    """Counters of all limits that apply to `key`. `configured`: by (tenant, project, key), with '' for the levels
    above."""
    of_project = configured.get((tenant, project, ""), NO_LIMITS)
    if policy is not None:
        of_policy = Limits.of(**{name: getattr(policy, name, None) for name in BY_NAME})
        of_project = of_project.lower(of_policy)
    return counters(
        (
            Level(tenant, f"tenant {tenant}", configured.get((tenant, "", ""), NO_LIMITS)),
            Level(f"{tenant}/{project}", f"project {project}", of_project),
            Level(f"{tenant}/{project}/{key}", f"key {key}", configured.get((tenant, project, key), NO_LIMITS)),
        )
    )
