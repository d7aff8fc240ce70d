"""Policy documents as text, compiled: what the directory keeps in force, and what activation insists on."""

from collections.abc import Callable

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.identity.principal import PolicyInForce
from policy.check import check_policy
from policy.compile import CompiledPolicy, compile_policy
from policy.document import load_document
from policy.facts import CountrySets
from policy.redact.redactor import Redactor


def compile_text(tenant_document: str, project_document: str | None, countries: CountrySets) -> CompiledPolicy:
    """Raises a PolicyError that says what is wrong, with the line."""
    project = load_document(project_document) if project_document is not None else None
    return compile_policy(load_document(tenant_document), project, countries)


def activation_check(countries: CountrySets) -> Callable[[str, str | None], CompiledPolicy]:
    """For `gateway.store.control`: compiles and runs the tests a policy carries; one that fails is not activated."""

    def check(tenant_document: str, project_document: str | None) -> CompiledPolicy:
        compiled = compile_text(tenant_document, project_document, countries)
        check_policy(compiled, countries)
        Redactor(compiled.redaction, hash_key=bytes(32))  # a plan that no detector can carry out is refused here
        return compiled

    return check


def in_force(countries: CountrySets, secret: bytes) -> Callable[[str, str, str | None], PolicyInForce]:
    """For `gateway.directory`. `secret`: what the tenants' hash keys are derived from (HKDF, RFC 5869)."""

    def compiled(tenant: str, tenant_document: str, project_document: str | None) -> PolicyInForce:
        policy = compile_text(tenant_document, project_document, countries)
        hash_key = HKDF(SHA256(), 32, salt=None, info=b"domicile redaction hash " + tenant.encode()).derive(secret)
        return PolicyInForce(policy, Redactor(policy.redaction, hash_key=hash_key))

    return compiled
