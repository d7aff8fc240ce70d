"""Errors of backends for an invalid request, in OpenAI's format; other servers use their own.

Shapes seen: OpenAI's own (also vLLM, whose ``code`` is a number, and Ollama); SGLang's and older vLLM's, the same
without ``error`` around it; TGI's ``{"error": "...", "error_type": "..."}``; FastAPI's ``{"detail": ...}``
(``transformers serve``).
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

INVALID = "invalid_request_error"
MOST_FAULTS = 10
MAX_MESSAGE = 2000
"""Characters of a message that reach the client: servers quote requests."""
CODE = re.compile("[a-z][a-z0-9_.-]{0,63}")
TYPE = re.compile("[A-Za-z][A-Za-z0-9_. -]{0,63}")
PARAM = re.compile(r"[\w.\[\]/$-]{1,128}")
_NOT_TEXT = re.compile(  # ANSI escape sequences; controls, line breaks and changes of direction
    "(?:\x1b\\[[0-?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069])+"
)


def refusal(raw: bytes) -> dict[str, Any] | None:
    """``message``, ``type``, ``param``, ``code``, and what is next to them in OpenAI's shape.

    None where it is none of those shapes.
    """
    try:
        said = from_json(raw, allow_inf_nan=False)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    inner = said.get("error")
    if isinstance(inner, dict):
        words = _spelt(inner)
        return None if words is None else {**inner, **words}
    if isinstance(inner, str):
        return _spelt({"message": inner, "type": said.get("error_type")})
    if said.get("object") == "error":
        return _spelt(said)
    if "detail" in said:
        return _spelt({"message": _detail(said["detail"])})
    return None


def _spelt(said: Mapping[str, Any]) -> dict[str, Any] | None:
    message, kind, param, code = (said.get(name) for name in ("message", "type", "param", "code"))
    if not isinstance(message, str):
        return None
    return {
        "message": _NOT_TEXT.sub(" ", message)[:MAX_MESSAGE].strip(),
        "type": kind if isinstance(kind, str) and TYPE.fullmatch(kind) else INVALID,
        "param": param if isinstance(param, str) and PARAM.fullmatch(param) else None,
        "code": code if isinstance(code, str) and CODE.fullmatch(code) else None,  # it is recorded
    }


def _detail(detail: Any) -> str | None:
    """A sentence, or where each fault is and what is wrong there, without the value that FastAPI quotes."""
    if isinstance(detail, str):
        return detail
    if not isinstance(detail, list):
        return None
    faults = [one for one in detail[:MOST_FAULTS] if isinstance(one, dict) and isinstance(one.get("loc"), list)]
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one.get('msg')}" for one in faults) or None
