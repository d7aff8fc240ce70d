"""History of policies in force, by the hash under which calls name them, from all versions that were ever activated.

A call is decided by the operator's, the tenant's and the project's documents together, as of that moment.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from audit.incidents.pack_inputs import OPERATOR_SCOPE, Part, Ruling
from gateway.records.control import PolicyVersionRecord
from policy.decision.policy_identity import Identity, identity_of
from policy.document.document import PolicyDocument, load_document
from policy.errors import PolicyError


def rulings(operator: Iterable[PolicyVersionRecord], own: Iterable[PolicyVersionRecord]) -> tuple[Ruling, ...]:
    """Every combination that was in force at some time, once. `operator`: versions of the document above all tenants,
    `own`: of one tenant's and of its projects'. What does not read any more (or extends what is gone) is left out."""
    above, versions = list(operator), list(own)
    projects = sorted({version.project for version in versions if version.project is not None})
    found: dict[tuple[Part, ...], Ruling] = {}
    for project in (None, *projects):
        scopes = [above, _of(versions, None), _of(versions, project) if project else []]
        for parts in _together(scopes):
            made_of = tuple(_part(part) for part in parts if part is not None)
            if made_of not in found and (identity := _identity(parts)) is not None:
                found[made_of] = Ruling(
                    policy_hash=identity.hash,
                    policy_id=identity.policy_id,
                    policy_version=identity.version,
                    canonical=identity.canonical.decode(),
                    made_of=made_of,
                )
    return tuple(found.values())


def scope_of(version: PolicyVersionRecord) -> str:
    return OPERATOR_SCOPE if version.tenant is None else version.project or ""


def _of(versions: Sequence[PolicyVersionRecord], project: str | None) -> list[PolicyVersionRecord]:
    return [version for version in versions if version.project == project]


def _together(scopes: Sequence[Sequence[PolicyVersionRecord]]) -> Iterator[list[PolicyVersionRecord | None]]:
    """What was in force side by side, from each activation on in which the tenant had a policy at all."""
    moments = sorted({version.created_at for scope in scopes for version in scope})
    for moment in moments:
        parts = [_last(version for version in scope if version.created_at <= moment) for scope in scopes]
        if parts[1] is not None:
            yield parts


def _last(versions: Iterable[PolicyVersionRecord]) -> PolicyVersionRecord | None:
    return max(versions, key=lambda version: version.number, default=None)


def _part(version: PolicyVersionRecord) -> Part:
    return Part(scope=scope_of(version), number=version.number, sha256=version.sha256)


def _identity(parts: Sequence[PolicyVersionRecord | None]) -> Identity | None:
    try:
        operator, tenant, project = (None if part is None else _read(part.document) for part in parts)
        return None if tenant is None else identity_of(tenant, project, operator=operator)
    except PolicyError:
        return None


@lru_cache(maxsize=256)
def _read(text: str) -> PolicyDocument:
    return load_document(text)
