"""docs/policy-reference.md names everything a policy can say, and its example is one."""

import re
from pathlib import Path

import pytest

from policy.decision import decision
from policy.document.document import (
    BackendRule,
    Condition,
    Given,
    Hours,
    Limits,
    OperatorRule,
    PolicyDocument,
    Redaction,
    Residency,
    Retention,
    Rule,
    Sovereign,
    load_document,
)
from policy.document.purpose import LEGAL_BASES, RISK_CLASSES
from policy.facts import CountrySets
from policy.redact import stream
from policy.redact.actions.plan import INPUT_LABELS, STRICTNESS

PAGE = (Path(__file__).parents[2] / "docs" / "policy-reference.md").read_text(encoding="utf-8")


SECTIONS = (
    PolicyDocument, Residency, OperatorRule, BackendRule, Redaction, Sovereign,
    Retention, Limits, Hours, Condition, Rule, Given,
)  # fmt: skip


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_documented(section):
    keys = [field.alias or key for key, field in section.model_fields.items()]
    missing = [key for key in keys if not re.search(rf"\b{key}\b", PAGE)]
    assert missing == []


def test_every_word_a_policy_may_use_is_documented():
    words = [*INPUT_LABELS, *STRICTNESS, *LEGAL_BASES, *RISK_CLASSES, "EU", "EEA", "EEA+adequate"]
    assert [word for word in words if f"`{word}`" not in PAGE] == []


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
