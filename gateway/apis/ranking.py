"""``/v1/rerank``: documents by how well they answer a query, in the shape of Cohere and Jina.

Sources: Cohere's API reference (v1 and v2, rerank), Jina's reranker API, vLLM. A backend gets query and documents and
says a score for each; order, `top_n` and the documents in the answer are made here, of the caller's own texts.
"""

from dataclasses import dataclass
from typing import Any, Final

from audit.random_pieces import RandomPieces
from backend.wire import Usage
from gateway.api_format import CallState, EventWriter, NotKept, OpenAiFormat, Place, Translation
from gateway.apis.body_fields import INVALID_TYPE, MISSING, Fields
from gateway.errors import BackendFailed
from gateway.openai.finite_json import write

_random = RandomPieces(12)
NOT_OFFERED: Final = {
    "max_chunks_per_doc": "send shorter documents",
    "max_tokens_per_doc": "use truncate_prompt_tokens, of query and document together",
    "rank_fields": "send the text of each document",
    "texts": "use documents",
}
PASSED: Final = ("metadata", "priority", "safety_identifier", "truncate_prompt_tokens", "user")
"""Members that a call of any model has."""


@dataclass(frozen=True, slots=True)
class RankingTranslation(NotKept):
    """`documents`: those of the answer; None where it names none. `count`: how many were sent."""

    model: str
    count: int
    top_n: int
    documents: tuple[str, ...] | None

    def place(self, place: Place) -> Place:
        return place

    def answer(self, body: dict[str, Any], usage: Usage | None) -> bytes:
        """Raises BackendFailed for a ranking of other documents."""
        scores = {each["index"]: each["relevance_score"] for each in body["results"]}
        if len(scores) != len(body["results"]) or not scores.keys() <= set(range(self.count)):
            raise BackendFailed("The backend's answer ranks other documents than it got")
        results = []
        for index in sorted(scores, key=lambda each: (-scores[each], each))[: self.top_n]:
            result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
            if self.documents is not None:
                result["document"] = {"text": self.documents[index]}
            results.append(result)
        told: dict[str, Any] = {"id": f"rerank-{_random().hex()}", "model": self.model, "results": results}
        if usage is not None:
            told["usage"] = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.total_tokens}
        return write(told)

    def events(self) -> EventWriter:
        raise AssertionError("a ranking is not streamed")


class RankingFormat(OpenAiFormat):
    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        return _translated(body)


def _translated(body: Any) -> tuple[dict[str, Any], RankingTranslation]:
    with Fields(body, hints=NOT_OFFERED) as fields:
        made: dict[str, Any] = {"model": fields.required_text("model"), "query": fields.required_text("query")}
        texts = []
        items = fields.items("documents")
        if not items:
            fields.wrong("documents", "it is missing or empty", "send at least one text", MISSING)
        for number, document in enumerate(items):
            if isinstance(document, dict):
                with Fields(document, fields.at("documents", number)) as told:
                    document = told.required_text("text")
            texts.append(document)
        made["documents"] = texts
        top_n = fields.whole_number("top_n", 1)
        returns = fields.flag("return_documents")
        fields.only("stream", allowed=False, fix="a ranking comes whole")
        made.update({name: value for name in PASSED if (value := fields.any(name)) is not None})
    if not all(isinstance(text, str) for text in texts):
        number = next(number for number, text in enumerate(texts) if not isinstance(text, str))
        Fields(body).wrong(f"documents.{number}", "it is no text", "send texts, or objects with a text", INVALID_TYPE)
    shown = tuple(texts) if returns else None
    return made, RankingTranslation(made["model"], len(texts), top_n or len(texts), shown)
