"""What a backend answers on a route: how a whole answer is read, and where its texts are."""

from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

from backend.wire import Usage, fingerprint_of
from gateway.errors import BackendFailed
from gateway.openai.embeddings import read_embeddings
from gateway.openai.shape import MESSAGE, choices_of
from gateway.openai.usage import usage_of


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
        """Raises BackendFailed where `raw` is no such answer."""
        ...


class Generated:
    """OpenAI's `choices`, of a chat or a completion."""

    is_generated = True

    def read(self, raw: bytes) -> ReadAnswer:
        try:
            body: dict[str, Any] = from_json(raw, allow_inf_nan=False)
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
