import pytest

from audit.files.secret_file import LoosePermissions
from gateway.policies.compiled import PolicyCompiler
from policy.document.countries import builtin_countries
from policy.errors import LooseningError, PolicyDocumentError, PolicyTestError
from tests.policy.redact.layouts import LAYOUTS

POLICY = """\
policy: acme-default
version: 3
residency: {process_in: EEA, store_in: [FR, DE]}
redaction: {input: {email: hash}}
"""
FAILING = POLICY + "tests: [{name: the US is fine, given: {compute_country: US}, expect: allow}]\n"


@pytest.fixture
def compiler():
    return PolicyCompiler(builtin_countries(), bytes(32))


def redact(compiler, tenant):
    body = {"model": "m", "messages": [{"role": "user", "content": "write to a@example.org"}]}
    return compiler.compile(tenant, POLICY).redactor.redact_body(body, LAYOUTS["chat"], "k7f3").body


def test_a_document_becomes_rules_and_their_redactor(compiler):
    in_force = compiler.compile("acme", POLICY)
    assert (in_force.policy.policy_id, in_force.policy.version) == ("acme-default", "3")
    assert in_force.redactor.plan == in_force.policy.redaction


def test_a_project_tightens_and_never_loosens(compiler):
    tighter = "policy: support\nversion: 1\nresidency: {store_in: [FR]}\n"
    assert compiler.compile("acme", POLICY, tighter).policy.policy_id == "acme-default+support"
    with pytest.raises(LooseningError):
        compiler.compile("acme", POLICY, tighter.replace("FR", "US"))


def test_only_a_check_runs_the_documents_own_tests(compiler):
    assert compiler.compile("acme", FAILING)
    with pytest.raises(PolicyTestError, match="the US is fine"):
        compiler.check("acme", FAILING)
    assert compiler.check("acme", POLICY).policy.hash == compiler.compile("acme", POLICY).policy.hash


def test_hashes_of_one_value_differ_between_tenants_and_installations(compiler):
    elsewhere = PolicyCompiler(builtin_countries(), bytes([1] * 32))
    assert redact(compiler, "acme") == redact(compiler, "acme")
    assert redact(compiler, "acme") != redact(compiler, "globex")
    assert redact(compiler, "acme") != redact(elsewhere, "acme")
    assert "a@example.org" not in str(redact(compiler, "acme"))


@pytest.mark.parametrize("document", ["", "policy: x", "- a", POLICY.replace("EEA", "Europe")])
def test_what_is_no_policy_is_refused(compiler, document):
    with pytest.raises(PolicyDocumentError):
        compiler.compile("acme", document)


def test_the_secret_is_made_once_and_kept_private(tmp_path):
    path = tmp_path / "redaction"
    first, again = (PolicyCompiler.open(builtin_countries(), path) for _ in range(2))
    assert redact(first, "acme") == redact(again, "acme")
    path.chmod(0o644)
    with pytest.raises(LoosePermissions):
        PolicyCompiler.open(builtin_countries(), path)
    with pytest.raises(ValueError, match="32 bytes"):
        PolicyCompiler(builtin_countries(), b"short")
