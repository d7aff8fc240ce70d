"""The published JSON Schema (2020-12) of a leaf: any event with its stamp, as `docs/audit-format.md` explains it.

python -m audit.events.schema > docs/audit-event.schema.json
"""

import json
import sys
from typing import Any

from pydantic import TypeAdapter

from audit.events.event import AnyEvent
from audit.events.stamp import Stamp

SCHEMA_ID = "https://domicile.example/schema/audit-event-1.json"


def event_schema() -> dict[str, Any]:
    """What a leaf must be, beyond its canonical form: one of the event types, with the fields of the stamp beside."""
    schema: dict[str, Any] = TypeAdapter(AnyEvent).json_schema()
    stamp = Stamp.model_json_schema()
    for model in schema["$defs"].values():
        if "type" in model.get("properties", {}):
            model["properties"] = stamp["properties"] | model["properties"]
            model["required"] = [
                *stamp["required"],
                "v",
                "type",
                *(f for f in model.get("required", []) if f != "type"),
            ]
            _drop_nulls(model)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Audit leaf",
        **schema,
    }


def _drop_nulls(model: dict[str, Any]) -> None:
    """In a leaf an absent field is left out, never null."""
    for field in model["properties"].values():
        options = [option for option in field.get("anyOf", ()) if option.get("type") != "null"]
        if len(options) == 1:
            del field["anyOf"]
            field.update(options[0])
        if field.get("default", 0) is None:
            del field["default"]


if __name__ == "__main__":
    json.dump(event_schema(), sys.stdout, indent=1)
    sys.stdout.write("\n")
