"""Validators of the published OCSF schema (tests/vectors/ocsf), by class_uid."""

import json
from pathlib import Path

import jsonschema

_PUBLISHED = json.loads((Path(__file__).parents[1] / "vectors/ocsf/1.3.0.json").read_text())
_CLASSES = {
    schema["properties"]["class_uid"]["const"]: name
    for name, schema in _PUBLISHED["$defs"].items()
    if name.startswith("class_")
}
VALIDATORS = {
    uid: jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": _PUBLISHED["$defs"]})
    for uid, name in _CLASSES.items()
}


def problems(event: dict[str, object]) -> list[str]:
    """What the published schema finds wrong with an event."""
    return [error.message for error in VALIDATORS[event["class_uid"]].iter_errors(event)]  # type: ignore[index]
