import pytest

from policy.document.document import load_document
from policy.errors import PolicyDocumentError
from tests.policy.conftest import TENANT


def problems(text):
    with pytest.raises(PolicyDocumentError) as error:
        load_document(text)
    return [str(problem) for problem in error.value.problems]


def test_the_example_of_the_design_loads():
    document = load_document(TENANT)
    assert document.policy == "acme-default" and document.residency.store_in == ("FR", "DE")
    assert document.redaction.input["national_id"] == "block" and document.tests[0].expect == "deny"


def test_norway_is_a_country_and_not_false():
    assert load_document(TENANT.replace("[FR, DE]", "[SE, NO]")).residency.store_in == ("SE", "NO")


INVALID = "the value is not valid;"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("process_in", "proces_in", "line 5: residency.proces_in: unknown key; did you mean process_in?"),
        ("head_office", "headoffice", "line 7: residency.operator.headoffice: unknown key; did you mean head_office?"),
        ("limits:", "limit:", "line 15: limit: unknown key; did you mean limits?"),
        ("given", "gven", "line 18: tests[0].gven: unknown key; did you mean given?"),
        ("policy: acme-default", "policy: Acme Default", f"line 2: policy: {INVALID} string should match pattern"),
        ("version: 3", "version: 0", f"line 3: version: {INVALID} input should be greater than 0"),
        ("version: 3", "version: three", f"line 3: version: {INVALID} input should be a valid integer"),
        ("version: 3\n", "", "version: this key is missing; add it"),
        ("process_in: EEA", "process_in: Europe", "line 5: residency.process_in: 'Europe' is no country set"),
        ("process_in: EEA", "process_in: FR", "for one country write [FR]"),
        ("process_in: EEA", "process_in: []", f"line 5: residency.process_in: {INVALID} tuple should have at least 1"),
        ("process_in: EEA", "process_in: 7", "line 5: residency.process_in: 7 is no country set"),
        ("[FR, DE]", "[FR, UK]", "line 6: residency.store_in[1]: UK is no ISO 3166 code; did you mean GB?"),
        ("[FR, DE]", "[FR, EU]", "line 6: residency.store_in[1]: EU is a set, not a country"),
        ("[FR, DE]", "[FR, de]", "'de' is no ISO 3166 alpha-2 country code; did you mean DE?"),
        ("[FR, DE]", "[FR, XX]", "line 6: residency.store_in[1]: 'XX' is no ISO 3166 alpha-2 country code"),
        ("[intra_eea]", "[handshake]", f"line 8: residency.transfer_basis[0]: {INVALID} input should be 'intra_eea'"),
        ("iban: mask", "iban: pseudonymise", f"line 11: redaction.output.iban: {INVALID} input should be 'tag'"),
        ("iban: mask", "ibn: mask", "looked for in answers; did you mean iban?"),
        ("metadata: 12mo", "metadata: a while", "line 13: retention.metadata: 'a while' is no period"),
        ("content: none", "content: 30d", "line 14: retention.content: '30d': content is kept encrypted or not at all"),
        ("rpm: 600", "rpm: -1", f"line 15: limits.rpm: {INVALID} input should be greater than 0"),
        ("art50_notice: header", "art50_notice: banner", f"transparency.art50_notice: {INVALID} input should be"),
        ("expect: deny", "expect: maybe", f"line 18: tests[0].expect: {INVALID} input should be 'allow' or 'deny'"),
        ("version: 3", "version: 3\nversion: 4", "line 4: version: this key is given twice"),
        ("store_in: [FR, DE]", "store_in: &s [FR, DE]", "line 6: anchors and aliases are not allowed"),
        ("version: 3", "version: !!int 3", "line 3: tag tag:yaml.org,2002:int is not allowed"),
        ("version: 3", "version: !!python/object:os.system 3", "is not allowed"),
        ("version: 3", "version: [3", "line 4: not YAML"),
        ("version: 3", "<<: {a: 1}", "line 3: <<: unknown key"),
        ("version: 3", "? [a]\n: 3", "line 3: a key is not plain text"),
        ("version: 3", "version: 3\n---\na: 1", "a second document begins here"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_and_what_was_meant(old, new, expected):
    assert any(expected in problem for problem in problems(TENANT.replace(old, new, 1))), problems(
        TENANT.replace(old, new, 1)
    )


def test_all_mistakes_are_told_at_once_in_their_order():
    text = TENANT.replace("process_in", "proces_in").replace("rpm: 600", "rpm: x").replace("EEA, ult", "UK, ult")
    assert [problem.split(":")[0] for problem in problems(text)] == ["line 5", "line 7", "line 15"]


@pytest.mark.parametrize("text", ["", "# only a comment\n", "just text", "- a\n- b", "42", "a: \x00", "\t- x", "a: *b"])
def test_what_is_no_policy_at_all_is_an_error_and_no_crash(text):
    assert problems(text)


def test_a_bomb_of_aliases_is_refused_before_it_grows():
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
    )
    assert problems(bomb) == ["line 1: anchors and aliases are not allowed; write the value out"]


def test_a_very_deep_or_very_long_document_is_refused():
    assert "nested deeper than 24 levels" in problems("a: " + "[" * 5000)[0]
    assert problems("a: " + "x" * 1_000_000) == ["line 1: 1000003 characters are too many; write at most 262144"]
    assert problems("a: 1\n" * 200_000)[0].startswith("line 52429: ")


def test_rules_and_tests_are_bounded_and_the_bound_is_told():
    rules = "".join(f"  - {{name: r{n}, deny: true}}\n" for n in range(501))
    told = problems(f"{TENANT.split('rules:')[0].split('tests:')[0]}rules:\n{rules}")
    assert any("rules: at most 500 are accepted" in problem for problem in told), told


def test_a_document_of_very_many_values_is_given_up_early():
    told = problems("policy: x\nversion: 1\nmodels: [" + "a," * 120_000)
    assert told == ["line 3: more than 50000 keys and values; write fewer"]
