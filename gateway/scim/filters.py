"""Filters of SCIM (RFC 7644 §3.4.2.2): one comparison by ``eq`` or ``sw``, which is what provisioning clients send."""

import json
import re
from collections.abc import Mapping
from typing import TypeVar

from gateway.records.provisioning import Comparison
from gateway.scim.errors import invalid

MAX = 1024
_FILTER = re.compile(r'\s*([A-Za-z$][\w$.:-]*)\s+(eq|sw)\s+("(?:[^"\\\x00-\x1f]|\\.)*"|true|false)\s*', re.IGNORECASE)
Field = TypeVar("Field", bound=str)


def equality(text: str) -> tuple[str, str]:
    """Return attribute, in lower case, and value of ``attribute eq "value"``. Raises ScimError (invalidFilter)."""
    attribute, operator, value = comparison(text)
    if operator != "eq":
        raise invalid("this is compared by eq alone; send a comparison by eq", "invalidFilter")
    return attribute, value


def comparison(text: str) -> tuple[str, Comparison, str]:
    """Return attribute, in lower case, operator and value of a comparison. Raises ScimError (invalidFilter)."""
    found = _FILTER.fullmatch(text) if len(text) <= MAX else None
    if found is None:
        raise invalid(
            'only filters such as userName eq "ada" are supported; send one comparison by eq or sw', "invalidFilter"
        )
    operator, written = found[2].lower(), found[3]
    try:
        value = json.loads(written) if written.startswith('"') else written.lower()
    except ValueError as error:
        raise invalid("the filter's value is no JSON string; quote it as one", "invalidFilter") from error
    return found[1].lower(), "sw" if operator == "sw" else "eq", str(value)


def searched(text: str, fields: Mapping[str, Field]) -> tuple[Field, Comparison, str]:
    """Return the field, the operator and the value to search for. fields: by attribute in lower case. Raises ScimError
    (invalidFilter)."""
    attribute, operator, value = comparison(text)
    attribute = attribute.rpartition(":")[2]
    if attribute not in fields:
        raise invalid(f"there is no filter by this attribute; use one of {', '.join(fields)}", "invalidFilter")
    return fields[attribute], operator, value
