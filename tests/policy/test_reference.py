"""docs/policy-reference.md names everything a policy can say, and its example is one."""

import re
from pathlib import Path

import pytest

from policy.conditions.hours import Hours
from policy.conditions.registry import reference
from policy.decision import decision
from policy.document.document import (
    BackendRule,
    Given,
    Limits,
    OperatorRule,
    PolicyDocument,
    Redaction,
    Residency,
    Retention,
    Rule,
    RuleFilter,
    Sovereign,
    load_document,
)
from policy.facts import CountrySets
from policy.purpose import LEGAL_BASES, RISK_CLASSES
from policy.redact import stream
from policy.redact.actions.plan import INPUT_LABELS, STRICTNESS

PAGE = (Path(__file__).parents[2] / "docs" / "policy-reference.md").read_text(encoding="utf-8")


BEGIN, END = "<!-- conditions: written by `python -m tests.policy.test_reference` -->", "<!-- end of conditions -->"
SECTIONS = (
    PolicyDocument, Residency, OperatorRule, BackendRule, Redaction, Sovereign,
    Retention, Limits, Hours, RuleFilter, Rule, Given,
)  # fmt: skip


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_documented(section):
    keys = [field.alias or key for key, field in section.model_fields.items()]
    missing = [key for key in keys if not re.search(rf"\b{key}\b", PAGE)]
    assert missing == []


def test_every_word_a_policy_may_use_is_documented():
    words = [*INPUT_LABELS, *STRICTNESS, *LEGAL_BASES, *RISK_CLASSES, "EU", "EEA", "EEA+adequate"]
    assert [word for word in words if f"`{word}`" not in PAGE] == []


def with_conditions(page: str) -> str:
    """The page with the table of conditions as the code has it."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n{reference()}\n{END}{rest.split(END)[1]}"


def test_the_table_of_conditions_is_that_of_the_code():
    assert with_conditions(PAGE) == PAGE, "run: PYTHONPATH=. python -m tests.policy.test_reference"


def test_every_rule_a_decision_can_name_is_documented():
    source = Path(decision.__file__).read_text(encoding="utf-8")
    rules = set(
        re.findall(
            r'"((?:residency|facts|isolation|data_classes|risk_class|candidates|model|backend)\.[a-z_.]+)"', source
        )
    )
    assert len(rules) >= 14 and [rule for rule in sorted(rules) if f"`{rule}`" not in PAGE] == []


def test_the_example_loads_and_the_bounds_are_those_of_the_code(countries: CountrySets):
    example = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    assert load_document(example).version == 3
    assert f"at most {stream.LONGEST_RUN} characters" in PAGE and f"several words: {stream.LONGEST_GROUPED})" in PAGE
    assert f"{stream.LONGEST_PEM // 1024} KiB" in PAGE


if __name__ == "__main__":
    (Path(__file__).parents[2] / "docs" / "policy-reference.md").write_text(with_conditions(PAGE), encoding="utf-8")
