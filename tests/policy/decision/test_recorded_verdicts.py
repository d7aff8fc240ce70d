"""Decisions stay as they were recorded: tests/vectors/policy/verdicts.jsonl, made by the code of 29 November 2026.

Each line is a tenant's and a project's document with requests and the verdict on each, or the error of the documents.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from policy.analysis.diff import effective
from policy.analysis.policy_tests import run_tests
from policy.decision.compile import compile_policy
from policy.decision.decision import Decision, decide
from policy.document.countries import builtin_countries
from policy.document.document import load_document
from policy.errors import PolicyError
from policy.facts import RequestFacts

LINES = (Path(__file__).parents[2] / "vectors/policy/verdicts.jsonl").read_text(encoding="utf-8").splitlines()
RECORDED: list[dict[str, Any]] = [json.loads(line) for line in LINES]


def verdict(decision: Decision) -> dict[str, Any]:
    return {
        "allowed": decision.allowed,
        "backends": list(decision.backends),
        "reasons": [str(reason) for reason in decision.reasons],
        "transfer_basis": dict(decision.transfer_basis),
        "retention": str(decision.retention),
        "priority": decision.priority,
        "holds_until": decision.holds_until.isoformat(),
        "hash": decision.hash,
    }


@pytest.mark.parametrize("line", RECORDED, ids=range(len(RECORDED)))
def test_a_policy_decides_as_it_did(line: dict[str, Any]) -> None:
    countries = builtin_countries()
    tenant = load_document(json.dumps(line["tenant"]))
    project = load_document(json.dumps(line["project"])) if line["project"] else None
    try:
        policy = compile_policy(tenant, project, countries)
    except PolicyError as error:
        assert f"{type(error).__name__}: {error}" == line["error"]
        return
    assert "error" not in line
    assert [verdict(decide(policy, RequestFacts.model_validate(facts))) for facts in line["facts"]] == line["verdicts"]
    assert effective(policy) == line["effective"]
    assert [str(outcome) for outcome in run_tests(policy, countries)] == line["tests"]


def test_the_recorded_verdicts_are_of_every_kind() -> None:
    verdicts = [one for line in RECORDED for one in line.get("verdicts", ())]
    rules = {reason.rpartition("[")[2].rstrip("]").partition(";")[0] for one in verdicts for reason in one["reasons"]}
    assert {"models", "purposes", "legal_basis", "data_classes", "data_classes.special", "hours", "rules.r1"} <= rules
    assert sum(one["allowed"] for one in verdicts) > 20 and sum("error" in line for line in RECORDED) > 20
