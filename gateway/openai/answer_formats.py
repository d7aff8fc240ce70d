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
            if body.get("error"):  # some servers say with 200 that they failed
                raise BackendFailed("The backend failed while it answered", elsewhere=True)
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


class Tokens:
    """The tokens of a prompt, as ``/tokenize`` of our engine and vLLM lists them. Nothing is used up by that."""

    is_generated = False

    def read(self, raw: bytes) -> ReadAnswer:
        try:
            said = read(raw)
            spelled = said.get("token_strs")
            body = {
                "count": _number(said["count"], MAX_TOKENS),
                "max_model_len": _number(said.get("max_model_len", 0), MAX_TOKENS),
                "tokens": [_number(token, 1 << 31) for token in said["tokens"]],
                "token_strs": None if spelled is None else [None if each is None else str(each) for each in spelled],
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BackendFailed("The backend's answer is not a list of tokens") from None
        return ReadAnswer(body, [], Usage())


class TextOfTokens:
    """The text of tokens, as ``/detokenize`` says it. It is filtered as a completion's text is."""

    is_generated = True

    def read(self, raw: bytes) -> ReadAnswer:
        try:
            text = read(raw)["prompt"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise BackendFailed("The backend's answer is not the text of tokens")
        choices = [{"index": 0, "text": text}]
        return ReadAnswer({"choices": choices}, choices, Usage())


class Ranking:
    """Relevance by document, as Cohere, Jina and vLLM say it. Everything but indexes, scores and usage is removed."""

    is_generated = False

    def read(self, raw: bytes) -> ReadAnswer:
        try:
            said = read(raw)
            usage = _read_tokens(said)
            results = [
                {"index": _number(each["index"], MAX_TOKENS), "relevance_score": _finite(each["relevance_score"])}
                for each in said["results"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BackendFailed("The backend's answer is not a ranking") from None
        return ReadAnswer({"results": results}, [], usage)


class Scores:
    """Scores of pairs of texts, as vLLM says them. Everything but indexes, scores, model and usage is removed."""

    is_generated = False

    def read(self, raw: bytes) -> ReadAnswer:
        try:
            said = read(raw)
            usage = _read_tokens(said)
            data = [
                {"object": "score", "index": _number(each["index"], MAX_TOKENS), "score": _finite(each["score"])}
                for each in said["data"]
            ]
            body: dict[str, Any] = {"object": "list", "data": data, "model": str(said.get("model", ""))}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BackendFailed("The backend's answer is not a list of scores") from None
        if usage is not None:
            body["usage"] = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.total_tokens}
        return ReadAnswer(body, [], usage)


def _read_tokens(said: dict[str, Any]) -> Usage | None:
    """The usage of what reads texts: some servers count the total alone."""
    usage = usage_of(said.get("usage"))
    if usage is None or usage.prompt_tokens:
        return usage
    return usage.model_copy(update={"prompt_tokens": usage.total_tokens})


def _number(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("not such a number")
    return value


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isfinite(number := float(value)):
        raise ValueError("not finite")
    return number


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
