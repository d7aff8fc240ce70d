"""Items of a stored response, and a request body that continues from them. Pure functions over parsed JSON.

An item's id contains its response: ``msg_`` (or another kind), the 32 digits of its response and its place, ``i`` and
its place where it was input.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gateway.api_format import Earlier
from gateway.apis.body_fields import refused
from gateway.apis.responses.input_items import REFERENCE
from gateway.apis.responses.response_object import RESPONSE
from gateway.apis.responses.sealed_state import NotOurs, opened
from gateway.errors import ObjectNotFound

_RESPONSE: Final = re.compile(r"resp_[0-9a-f]{32}")
_ITEM: Final = re.compile(r"[a-z]{1,8}_([0-9a-f]{32})i?[0-9a-f]{4,8}")
_KINDS: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_SEALED: Final = "encrypted_content"
ITEM_FIX: Final = (
    "send the item itself; a client that sends names of items sends the items with store: false"
    " (AI SDK: providerOptions.openai.store)"
)


def is_response_id(said: str) -> bool:
    """Whether a response can be called so; anything else is no text for a database."""
    return _RESPONSE.fullmatch(said) is not None


def response_of(item: str) -> str | None:
    """The id of the response that an item of this id is of."""
    found = _ITEM.fullmatch(item)
    return None if found is None else RESPONSE + found[1]


def referenced(body: Mapping[str, Any]) -> list[str]:
    """The ids of the items that the ``input`` of a body only names."""
    items = body.get("input")
    return [item["id"] for item in items if _is_reference(item)] if isinstance(items, list) else []


def _is_reference(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == REFERENCE and isinstance(item.get("id"), str)


def input_items(response: str, value: Any, secret: bytes | None) -> list[dict[str, Any]]:
    """``input`` as items with ids, as ``input_items`` lists them. Thoughts that were sealed to one key are opened,
    since what is kept is the project's."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    return [_kept_item(response, number, item, secret) for number, item in enumerate(value)]


def _kept_item(response: str, number: int, item: Mapping[str, Any], secret: bytes | None) -> dict[str, Any]:
    made = {name: value for name, value in item.items() if value is not None}
    kind = made.setdefault("type", "message")
    made.setdefault("id", f"{_KINDS.get(kind, 'item')}_{response.removeprefix(RESPONSE)}i{number:04x}")
    made.setdefault("status", "completed")
    if kind == "message" and isinstance(text := made.get("content"), str):
        if made.get("role") == "assistant":
            made["content"] = [{"type": "output_text", "text": text, "annotations": []}]
        else:
            made["content"] = [{"type": "input_text", "text": text}]
    if kind == "reasoning":
        made.setdefault("summary", [])
        state = made.pop(_SEALED, None)
        if state is not None and not made.get("content"):
            made["content"] = [{"type": "reasoning_text", "text": _opened(state, secret)}]
    return made


def _opened(state: str, secret: bytes | None) -> str:
    try:
        return "" if secret is None else opened(state, secret)
    except NotOurs:  # the call that brought it was refused for that
        return ""


def turn(asked: Mapping[str, Any], answered: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of one kept response, in order: its own input, and its output."""
    output = ({name: value for name, value in item.items() if name != _SEALED} for item in answered.get("output") or ())
    return [*asked["input"], *output]


def spliced(
    body: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], Earlier]:
    """`body` with the items `earlier` before its own, and each item that it names by its content. `known`: those, by
    id. Raises ObjectNotFound for an item that is not among them."""
    own = body.get("input")
    was_text = isinstance(own, str)
    items = [{"role": "user", "content": own}] if was_text else own
    if not isinstance(items, list) or not items:
        raise refused(("input",), "it is neither a text nor a list of items", "send one of these", "invalid_type")
    made = {name: value for name, value in body.items() if name != "previous_response_id"}
    made["input"] = [*earlier, *_with_content(items, known)]
    previous = body.get("previous_response_id")
    return made, Earlier(previous if isinstance(previous, str) else None, len(earlier), was_text)


def _with_content(items: Iterable[Any], known: Mapping[str, Mapping[str, Any]]) -> Iterable[Any]:
    for number, item in enumerate(items):
        if not _is_reference(item):
            yield item
            continue
        found = known.get(item["id"])
        if found is None:
            place = f"input.{number}.id"
            raise ObjectNotFound(f"{place}: no such item is kept in this project; {ITEM_FIX}", param=place)
        yield found
