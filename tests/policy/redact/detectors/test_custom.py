import pytest

from policy.decision.compile import compile_policy
from policy.document.countries import builtin_countries
from policy.document.document import load_document
from policy.errors import LooseningError, PolicyDocumentError, RedactionError
from policy.redact.actions.plan import RedactionPlan
from policy.redact.detectors.custom import check_pattern, custom_detector
from policy.redact.redactor import Redactor
from tests.policy.redact.layouts import LAYOUTS

BASE = "policy: acme\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"
RULES = (
    "redaction:\n  dictionaries: {projects: [Falke, Falke Nord, Größe]}\n  patterns: {customer: 'KD-[0-9]{8}'}\n"
    "  input: {custom.projects: mask, custom.customer: pseudonymise}\n"
)


def found(text, words=(), **patterns):
    detector = custom_detector({"projects": tuple(words)}, patterns)
    return [(text[start:end], kind) for start, end, kind in detector.find(text, 0)]


def test_words_are_found_whole_in_any_case_the_longer_first():
    text = "FALKE and Falke Nord, not Falkenauge; die größe."
    assert found(text, ["Falke", "Falke Nord", "Größe"]) == [
        ("FALKE", "projects"), ("Falke Nord", "projects"), ("größe", "projects")]  # fmt: skip


def test_a_pattern_is_found_where_letters_of_several_bytes_stand_before_it():
    assert found("Größe: KD-12345678", customer="KD-[0-9]{8}") == [("KD-12345678", "customer")]


@pytest.mark.parametrize("pattern", ["", "a*", "(?=x)", r"(a)\1", "(", "x" * 501, "(a{1000}){1000}"])
def test_a_pattern_that_re2_or_reason_refuses_is_refused(pattern):
    with pytest.raises(ValueError, match="pattern"):
        check_pattern(pattern)


def test_a_pattern_made_to_blow_up_stays_linear():
    assert found("a" * 200_000 + "!", evil="(a+)+$") == []  # by backtracking it would take longer than the universe


def test_a_policy_may_look_for_its_tenants_own_words_and_numbers():
    policy = compile_policy(load_document(BASE + RULES), None, builtin_countries())
    body = {"model": "m", "messages": [{"role": "user", "content": "KD-12345678 asks about Falke Nord."}]}
    redacted = Redactor(policy.redaction).redact_body(body, LAYOUTS["chat"], "k7f3")
    assert redacted.body["messages"][0]["content"] == "<CUSTOM_1_k7f3> asks about [CUSTOM]."
    assert redacted.counts == {"custom.customer": 1, "custom.projects": 1}


def test_a_project_adds_words_and_cannot_change_a_pattern():
    tenant = load_document(BASE + RULES)
    more = load_document("policy: shop\nversion: 1\nredaction: {dictionaries: {projects: [Adler]}}\n")
    assert compile_policy(tenant, more, builtin_countries()).redaction.words["projects"][-1] == "Adler"
    other = load_document("policy: shop\nversion: 1\nredaction: {patterns: {customer: 'X[0-9]'}}\n")
    with pytest.raises(LooseningError):
        compile_policy(tenant, other, builtin_countries())


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("input: {custom.nothing: mask}", "no dictionary"),
        ("patterns: {x: '('}", "RE2"),
        ("dictionaries: {X: [word]}", "pattern"),
        ("dictionaries: {x: [a]}", "2 to 200"),
        ("output: {custom.x: mask}", "answers"),
    ],
)
def test_what_cannot_work_is_refused_before_it_is_active(section, said):
    with pytest.raises(PolicyDocumentError, match=said):
        compile_policy(load_document(BASE + f"redaction: {{{section}}}\n"), None, builtin_countries())


def test_a_plan_that_names_an_unknown_list_makes_no_redactor():
    with pytest.raises(RedactionError, match=r"custom\.x"):
        Redactor(RedactionPlan({"custom.x": "mask"}))
