"""Every record is valid OCSF: events drawn from the published schema of leaves, with and without optional members."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit.events.declared import CLASS_OF
from audit.events.ocsf import ocsf
from tests.audit.published_ocsf import problems

LEAF: dict[str, Any] = json.loads((Path(__file__).parents[3] / "docs/audit-event.schema.json").read_text())
DEFINITIONS: dict[str, Any] = LEAF["$defs"]
WORDS = st.sampled_from(
    ["a", " ", "Zoë Ωmega 東京 \U0001f600", "2001:db8::7", "[::ffff:203.0.113.9]:443", '"};{"', "\u202eevil", "x" * 256]
) | st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=256)


def instances(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that the JSON Schema admits; the keywords are those that the schema of a leaf has."""
    if "$ref" in schema:
        return instances(DEFINITIONS[schema["$ref"].rpartition("/")[2]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*map(instances, schema["anyOf"]))
    return _OF_TYPE[schema["type"]](schema)


def _text(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    if "pattern" in schema:
        most = schema.get("maxLength", 1000)
        return st.from_regex(schema["pattern"].replace("$", r"\Z"), fullmatch=True).filter(lambda s: len(s) <= most)
    least, most = schema.get("minLength", 0), schema.get("maxLength", 256)
    return WORDS.filter(lambda text: least <= len(text) <= most)


def _object(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    if "patternProperties" in schema:
        ((name, value),) = schema["patternProperties"].items()
        return st.dictionaries(st.from_regex(name.replace("$", r"\Z"), fullmatch=True), instances(value), max_size=3)
    if "properties" not in schema:
        return st.dictionaries(WORDS, instances(schema["additionalProperties"]), max_size=3)
    fields = {name: instances(one) for name, one in schema["properties"].items()}
    needed = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: one for name, one in fields.items() if name in needed},
        optional={name: one for name, one in fields.items() if name not in needed},
    )


_OF_TYPE: dict[str, Any] = {
    "string": _text,
    "integer": lambda schema: st.integers(schema.get("minimum", -(2**53) + 1), schema.get("maximum", 2**53 - 1)),
    "number": lambda schema: st.floats(schema.get("minimum"), schema.get("maximum"), allow_nan=False),
    "boolean": lambda schema: st.booleans(),
    "null": lambda schema: st.none(),
    "array": lambda schema: st.lists(instances(schema.get("items", {})), max_size=min(3, schema.get("maxItems", 3))),
    "object": _object,
}


def defined(kind: str) -> dict[str, Any]:
    """The definition of a type's leaf, for that type alone and with the tenant, which the log fills in."""
    schema = DEFINITIONS[LEAF["discriminator"]["mapping"][kind].rpartition("/")[2]]
    return schema | {
        "properties": schema["properties"] | {"type": {"const": kind}, "ts": {"const": "2026-03-01T09:30:00.123Z"}},
        "required": [*schema["required"], "tenant"],
    }


@pytest.mark.parametrize("kind", CLASS_OF)
def test_every_record_of_every_type_is_valid_by_the_published_schema_of_ocsf(kind: str) -> None:
    schema = defined(kind)
    bare = schema | {"properties": {name: schema["properties"][name] for name in schema["required"]}}

    @settings(max_examples=4, suppress_health_check=list(HealthCheck), deadline=None, database=None, derandomize=True)
    @given(st.one_of(instances(bare), instances(schema)))
    def holds(event: dict[str, Any]) -> None:
        mapped = ocsf(2**53 - 1, event)
        assert problems(mapped) == [], (event, mapped)
        assert mapped["unmapped"] == event | {"seq": 2**53 - 1}

    holds()
