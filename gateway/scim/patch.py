"""PATCH of SCIM (RFC 7644 §3.5.2): operations on a resource in JSON, which is then validated and replaced as a whole.

Attribute names are case-insensitive (RFC 7643 §2.1). Operation names are too, because Microsoft Entra ID capitalises
them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from gateway.scim.errors import invalid
from gateway.scim.filters import equality

PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
MAX_OPERATIONS = 1000
_PATH = re.compile(r"(?:(urn:[\w.:-]+):)?([A-Za-z$][\w$-]*)(?:\[(.+)\])?(?:\.([A-Za-z$][\w$-]*))?")
_CORE = "urn:ietf:params:scim:schemas:core:2.0:"

Resource = dict[str, Any]


def patched(resource: Mapping[str, Any], body: Any, known: Mapping[str, str]) -> Resource:
    """Return `resource` after the operations in `body`. Raises ScimError.

    known: attribute names by their lower-case form. Other attributes are ignored when added, as RFC 7644 §3.3 specifies
    for attributes that a server does not store.
    """
    operations = _member(body, "operations") if isinstance(body, dict) else None
    if not isinstance(operations, list) or not 0 < len(operations) <= MAX_OPERATIONS or not _is_patch(body):
        raise invalid(f"the body is no PatchOp with 1 to {MAX_OPERATIONS} Operations; send one", "invalidSyntax")
    result = dict(resource)
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(_member(operation, "op"), str):
            raise invalid("an operation is no object with op; send op, path and value", "invalidSyntax")
        act = _ACTS.get(str(_member(operation, "op")).lower())
        if act is None:
            raise invalid("op is none of add, remove and replace; use one of these", "invalidSyntax")
        act(result, _member(operation, "path"), _member(operation, "value"), known)
    return result


def _add(result: Resource, path: Any, value: Any, known: Mapping[str, str]) -> None:
    for name, condition, each in _targets(path, value, known):
        if condition is not None:
            raise invalid("a value is added to a list, not to some of its items; leave the filter out", "invalidPath")
        if isinstance(result.get(name), list):
            result[name] = [*result[name], *(each if isinstance(each, list) else [each])]
        else:
            result[name] = each


def _replace(result: Resource, path: Any, value: Any, known: Mapping[str, str]) -> None:
    for name, condition, each in _targets(path, value, known):
        if condition is None:
            result[name] = each
            continue
        kept, chosen = _divided(result.get(name), condition)
        if not chosen:
            raise invalid("no item of the list is meant; look at what there is", "noTarget")
        result[name] = [*kept, *(each if isinstance(each, list) else [each])]


def _remove(result: Resource, path: Any, value: Any, known: Mapping[str, str]) -> None:
    if path is None:
        raise invalid("what is removed has no path; name one", "noTarget")
    for name, condition, each in _targets(path, value, known):
        if condition is not None:
            result[name] = _divided(result.get(name), condition)[0]
        elif each is not None and isinstance(result.get(name), list):  # Microsoft Entra ID names members this way
            named = {str(item.get("value")) for item in _items(each)}
            result[name] = [item for item in result[name] if str(item.get("value")) not in named]
        else:
            result.pop(name, None)


_ACTS: Mapping[str, Callable[[Resource, Any, Any, Mapping[str, str]], None]] = {
    "add": _add,
    "replace": _replace,
    "remove": _remove,
}


def _targets(path: Any, value: Any, known: Mapping[str, str]) -> list[tuple[str, str | None, Any]]:
    """Return (attribute, filter or None, value) for each stored attribute of an operation."""
    if path is None:
        if not isinstance(value, dict):
            raise invalid("an operation without a path needs an object as its value; name a path", "invalidValue")
        return [target for name, each in value.items() for target in _targets(name, each, known)]
    found = _PATH.fullmatch(path) if isinstance(path, str) and len(path) <= 1024 else None
    if found is None:
        raise invalid('the path is not attribute, attribute[value eq "…"] or attribute.part; correct it', "invalidPath")
    schema, name = found[1] or "", known.get(found[2].lower())
    if schema and not f"{schema}:".lower().startswith(_CORE.lower()):  # an extension's attribute of the same name
        return []
    if name is None or found[4] is not None:  # sub-attributes are not stored
        return []
    return [(name, found[3], value)]


def _divided(items: Any, condition: str) -> tuple[list[Any], list[Any]]:
    """Split items by a filter on ``value``: return those that do not match, and those that do."""
    attribute, wanted = equality(condition)
    if attribute != "value":
        raise invalid("items of a list are chosen by value alone; use value eq", "invalidFilter")
    listed = _items(items if items is not None else [])
    chosen = [item for item in listed if str(item.get("value")) == wanted]
    return [item for item in listed if item not in chosen], chosen


def _items(value: Any) -> list[dict[str, Any]]:
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(item, dict) for item in listed):
        raise invalid("an item of a list is no object; send objects with a value")
    return listed


def _member(body: Mapping[str, Any], name: str) -> Any:
    return next((value for key, value in body.items() if key.lower() == name), None)


def _is_patch(body: Mapping[str, Any]) -> bool:
    schemas = _member(body, "schemas")
    return isinstance(schemas, list) and PATCH in schemas
