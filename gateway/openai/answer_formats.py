"""What a backend answers on a route: how a whole answer is read, and where its texts are."""

from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

from backend.wire import Usage, fingerprint_of
from gateway.errors import BackendFailed
from gateway.openai.finite_json import read
from gateway.openai.shape import MESSAGE, choices_of
from gateway.openai.usage import MAX_TOKENS, usage_of


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """A whole answer, parsed and of the right shape. `choices`: those of `body`; none where nothing was generated."""

    body: dict[str, Any]
    choices: list[dict[str, Any]]
    usage: Usage | None
    fingerprint: str | None = None


class AnswerFormat(Protocol):
    """`is_generated`: tokens were generated, so the texts of the answer are filtered and it may be a stream. They are
    where `gateway.openai.answer` lists them."""

    @property
    def is_generated(self) -> bool: ...

    def read(self, raw: bytes) -> ReadAnswer:
        """Raises BackendFailed if `raw` is not an answer of this format."""
        ...


class Generated:
    """OpenAI's `choices`, of a chat or a completion."""

    is_generated = True

    def read(self, raw: bytes) -> ReadAnswer:
        try:
            body: dict[str, Any] = read(raw)
        except ValueError:
            raise BackendFailed("The backend's answer is not JSON") from None
        choices = choices_of(body, MESSAGE)
        if not choices:
            raise BackendFailed("The backend's answer is not an OpenAI answer")
        return ReadAnswer(body, choices, usage_of(body.get("usage")), fingerprint_of(body))


class Vectors:
    """Embeddings. They hold no text: everything but vectors, model and usage is removed."""

    is_generated = False

    def read(self, raw: bytes) -> ReadAnswer:
        body, usage = read_embeddings(raw)
        return ReadAnswer(body, [], usage)


class TokenCount:
    """How many tokens a prompt has, as ``/tokenize`` of our engine and vLLM says it. Nothing is used up by that."""

    is_generated = False

    def read(self, raw: bytes) -> ReadAnswer:
        try:
            count = read(raw)["count"]
        except (ValueError, KeyError, TypeError):
            count = None
        if type(count) is not int or not 0 <= count <= MAX_TOKENS:
            raise BackendFailed("The backend's answer is not a count of tokens")
        return ReadAnswer({"count": count}, [], Usage())


def read_embeddings(raw: bytes) -> tuple[dict[str, Any], Usage | None]:
    """A backend's answer reduced to vectors, their indexes, the model and the usage; and the usage by itself.

    Other members are removed, because they may repeat the input and were not inspected. Raises BackendFailed for what
    is no such answer.
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
