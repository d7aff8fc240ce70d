"""The JSON Schema of a policy, for editors: ``python -m policy.document.schema > docs/policy.schema.json``.

Draft 2020-12. It knows every key and every word; what hangs on several keys together (whether a project tightens its
tenant, whether a country was adequate on a day) only ``domicile policy check`` can say.
"""

import json
from typing import Any

from policy.document.document import COUNTRY_SCHEMA, PolicyDocument

SCHEMA_ID = "https://domicile.example/schema/policy-1.json"


def policy_schema() -> dict[str, Any]:
    schema = _countries_once(PolicyDocument.model_json_schema(by_alias=True))
    schema["$defs"]["Country"] = {"description": "ISO 3166-1 alpha-2", **COUNTRY_SCHEMA}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}


def _countries_once(part: Any) -> Any:
    """`part` with a reference in place of each list of all countries."""
    if part == COUNTRY_SCHEMA:
        return {"$ref": "#/$defs/Country"}
    if isinstance(part, dict):
        return {key: _countries_once(value) for key, value in part.items()}
    return [_countries_once(item) for item in part] if isinstance(part, list) else part


def schema_text() -> str:
    return json.dumps(policy_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
