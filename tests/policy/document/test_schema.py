import json
from pathlib import Path

import jsonschema
import pytest

from policy.document.document import load_document
from policy.document.marked_yaml import parse_yaml
from policy.document.schema import policy_schema, schema_text
from policy.errors import PolicyDocumentError
from policy.presets import PRESETS, preset_text
from tests.policy.conftest import TENANT

PUBLISHED = Path(__file__).parents[3] / "docs" / "policy.schema.json"


def judged(text):
    jsonschema.validate(parse_yaml(text).value, policy_schema(), cls=jsonschema.Draft202012Validator)


def test_the_published_schema_is_that_of_the_code():
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text(), (
        "run `python -m policy.document.schema > docs/policy.schema.json`"
    )
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))


@pytest.mark.parametrize("text", [TENANT, *map(preset_text, PRESETS)], ids=["tenant", *PRESETS])
def test_an_editor_finds_no_fault_with_what_loads(text):
    judged(text)


@pytest.mark.parametrize(
    "wrong",
    ["proces_in: EEA", "version: 0", "priority: urgent", "models: []", "residency: {store_in: [UK]}",
     "residency: {process_in: Europe}", "hours: {days: [mon]}", "special_categories: {health: yes}",
     "rules: [{when: {}}]", "residency: {process_in: [fr]}", "backend: {kind: vllm}"],
)  # fmt: skip
def test_an_editor_finds_what_does_not_load(wrong):
    text = f"policy: a\nversion: 1\n{wrong}\n".replace("version: 1\nversion: 0", "version: 0")
    with pytest.raises(jsonschema.ValidationError):
        judged(text)
    with pytest.raises(PolicyDocumentError):
        load_document(text)
