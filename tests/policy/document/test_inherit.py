import pytest

from policy.decision.compile import compile_policy
from policy.decision.decision import decide
from policy.document.document import load_document
from policy.document.inherit import MAX_BASES, bases_of
from policy.errors import LooseningError, PolicyDocumentError


def document(name, extends=None, more=""):
    return load_document(f"policy: {name}\nversion: 1\n" + (f"extends: {extends}\n" if extends else "") + more)


def library(*documents):
    return {one.policy: one for one in documents}.__getitem__


def test_what_is_extended_stands_above_the_topmost_first():
    known = library(document("a"), document("b", "a"), document("c", "b"))
    assert [base.policy for base in bases_of(document("d", "c"), known)] == ["a", "b", "c"]
    assert bases_of(document("d"), known) == []


@pytest.mark.parametrize(
    ("known", "way"),
    [
        ([], "d -> d"),
        ([("c", "d")], "d -> c -> d"),
        ([("c", "b"), ("b", "c")], "d -> c -> b -> c"),
    ],
)
def test_a_circle_is_an_error_that_shows_it_with_its_line(known, way):
    start = document("d", known[0][0] if known else "d")
    with pytest.raises(
        PolicyDocumentError, match=f"line 3: extends: the documents extend each other in a circle: {way}"
    ):
        bases_of(start, library(*(document(*one) for one in known)))


def test_a_chain_has_an_end():
    long = [document(f"n{number}", f"n{number + 1}") for number in range(MAX_BASES + 2)]
    with pytest.raises(PolicyDocumentError, match="extend each other"):
        bases_of(document("d", "n0"), library(*long))


def test_a_name_that_is_not_there_is_an_error_with_its_line():
    with pytest.raises(
        PolicyDocumentError, match="line 3: extends: there is no document eu-stric to extend; name one of the library"
    ):
        bases_of(document("d", "eu-stric"), library())


def test_a_tenant_may_extend_a_preset_and_say_nothing_more(countries, request_facts, backend):
    policy = compile_policy(document("acme", "eu-strict"), None, countries)
    assert policy.policy_id == "acme" and policy.redaction.input["national_id"] == "block"
    assert decide(policy, request_facts()).allowed
    assert not decide(policy, request_facts(backend(compute_country="NO"))).allowed
    assert policy.tests == ()


def test_a_document_that_loosens_its_preset_is_refused_with_its_line_and_whose_bound_it_is(countries):
    with pytest.raises(LooseningError, match=r"reaches beyond the preset eu-strict's EU: IS, LI, NO \(line 4\)"):
        compile_policy(document("acme", "eu-strict", "residency: {process_in: EEA}\n"), None, countries)


def test_the_hash_covers_what_is_extended(countries):
    one = compile_policy(document("acme", "eu-strict"), None, countries)
    two = compile_policy(document("acme", "health"), None, countries)
    assert len({one.hash, two.hash}) == 2
