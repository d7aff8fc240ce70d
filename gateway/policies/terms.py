"""Terms of every policy that was ever in force (retention, redaction, places), for an evidence pack."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from audit.incidents.pack_inputs import OPERATOR_SCOPE, Ruling, Terms
from gateway.policies.history import scope_of
from gateway.records.control import PolicyVersionRecord, ProjectRecord
from policy.decision.compile import CompiledPolicy, compile_policy
from policy.decision.policy_identity import identity_of
from policy.document.document import PolicyDocument, load_document
from policy.errors import PolicyError
from policy.facts import CountrySets

TENANT_SCOPE = ""


def terms_of(
    rulings: Iterable[Ruling], versions: Iterable[PolicyVersionRecord], countries: CountrySets
) -> tuple[Terms, ...]:
    """The terms of each ruling, compiled from its documents. A ruling that no longer compiles is left out; the pack
    then reports the terms of its calls as missing."""
    texts = {(scope_of(one), one.number): one.document for one in versions}
    return tuple(_compiled(rulings, texts, countries))


def deciding(projects: Iterable[ProjectRecord], versions: Sequence[PolicyVersionRecord]) -> dict[str, str]:
    """The hash of the policy that decides the calls of each project now. A project without one is left out."""
    active = {scope_of(one): one.document for one in versions if one.active}
    found = {}
    for project in projects:
        try:
            levels = _levels({scope: active[scope] for scope in _above(project.id) if scope in active})
        except PolicyError:
            continue
        if levels is not None:
            operator, tenant, own = levels
            found[project.id] = identity_of(tenant, own, operator=operator).hash
    return found


def _above(project: str) -> tuple[str, str, str]:
    return OPERATOR_SCOPE, TENANT_SCOPE, project


def _compiled(
    rulings: Iterable[Ruling], texts: Mapping[tuple[str, int], str], countries: CountrySets
) -> Iterator[Terms]:
    for ruling in rulings:
        try:
            levels = _levels({part.scope: texts[part.scope, part.number] for part in ruling.made_of})
            if levels is not None:
                operator, tenant, project = levels
                yield _terms(ruling.policy_hash, compile_policy(tenant, project, countries, operator=operator))
        except (PolicyError, KeyError):
            continue


def _levels(
    texts: Mapping[str, str],
) -> tuple[PolicyDocument | None, PolicyDocument, PolicyDocument | None] | None:
    """Operator, tenant and project documents out of texts by scope; None without a tenant's."""
    read = {scope: load_document(text) for scope, text in texts.items()}
    if TENANT_SCOPE not in read:
        return None
    own = next((one for scope, one in read.items() if scope not in (OPERATOR_SCOPE, TENANT_SCOPE)), None)
    return read.get(OPERATOR_SCOPE), read[TENANT_SCOPE], own


def _terms(policy_hash: str, policy: CompiledPolicy) -> Terms:
    return Terms(
        policy_hash=policy_hash,
        metadata_days=policy.retention.metadata_days,
        content_days=policy.retention.content_days,
        redacts_prompts=dict(sorted(policy.redaction.input.items())),
        redacts_answers=dict(sorted(policy.redaction.output.items())),
        process_in=policy.process_in.name,
        store_in=policy.store_in.name,
        transfer_bases=tuple(sorted(policy.transfer.accepted)),
        notices=tuple(one.name for one in policy.notices),
        unredacted_to=", ".join(f"{name} {rule.name}" for name, rule in policy.on_failure.bounds.items()),
    )
