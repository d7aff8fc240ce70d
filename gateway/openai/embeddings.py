"""POST /v1/embeddings: what comes back of an answer, whoever made it. What is asked is in `backend.wire`."""

from math import isfinite
from typing import Any

from backend.wire import Usage
from gateway.errors import BackendFailed
from gateway.openai.finite_json import read
from gateway.openai.usage import usage_of


def read_embeddings(raw: bytes) -> tuple[dict[str, Any], Usage | None]:
    """A backend's answer, with nothing in it but vectors, their places, the model and the usage.

    What else a server says of its input, nobody has looked at. Raises BackendFailed for what is no such answer.
    """
    try:
        said = read(raw)
        usage = usage_of(said.get("usage"))
        data = [
            {"object": "embedding", "index": int(each["index"]), "embedding": _vector(each["embedding"])}
            for each in said["data"]
        ]
        body: dict[str, Any] = {"object": "list", "data": data, "model": str(said.get("model", ""))}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BackendFailed("The backend's answer is not an OpenAI answer") from None
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.total_tokens}
    return body, usage


def _vector(embedding: Any) -> list[float] | str:
    """Numbers, or base64 of them."""
    if isinstance(embedding, str):
        if not set(embedding) <= _BASE64:
            raise ValueError("not base64")
        return embedding
    numbers = [float(number) for number in embedding]
    if not all(map(isfinite, numbers)):
        raise ValueError("not finite")
    return numbers


_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
