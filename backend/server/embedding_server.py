"""HTTP API of a backend whose model makes vectors: ``POST /v1/embeddings``.

Texts take the way that prompts take: tokens here, then the engine's queue, in order of priority and of what each
project was served. A call of many texts is handed over in parts, so that it does not fill the queue by itself.
"""

import time

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from backend.answer.embedding_answer import EmbeddingResponse, Form
from backend.chat.parameters import cache_root, require_token_ids
from backend.chat.unsupported import refuse_unsupported
from backend.engine.core.sampling import NOTHING_DRAWN
from backend.errors import ContextLengthExceeded, InvalidRequest
from backend.models.checkpoints.pooling import Embedding, EmbeddingText
from backend.process.gpu_meter import GpuMeter
from backend.process.messages import AddSequence
from backend.process.replicas import Engines
from backend.server.base_api import BaseApi, Identity, project_of, request_id
from backend.wire import EmbeddingsRequest, ReadingRequest

MEANT = {
    "model", "input", "dimensions", "encoding_format", "user", "priority", "cache_salt", "deadline_s", "stream",
    "truncate_prompt_tokens",
}  # fmt: skip


VECTORS_ONLY = {
    "chat": False, "completions": False, "embeddings": True, "rerank": False, "tools": False,
    "structured_output": False, "reasoning": False, "vision": False,
}  # fmt: skip


class EmbeddingApi(BaseApi):
    def __init__(
        self,
        engine: Engines,
        text: EmbeddingText,
        embedding: Embedding,
        served_name: str,
        identity: Identity,
        meter: GpuMeter | None = None,
    ) -> None:
        super().__init__(engine, served_name, identity, meter)
        self.text = text
        self.embedding = embedding

    def app(self) -> Starlette:
        return self.app_of({"/v1/embeddings": self.embeddings}, self.embeds_only)

    @property
    def capabilities(self) -> dict[str, bool]:
        return VECTORS_ONLY

    async def embeddings(self, request: Request) -> Response:
        arrived = time.monotonic()
        wire = await self.body(request, EmbeddingsRequest)
        refuse_what_asks_for_tokens(wire, MEANT, "embeddings")
        texts = await self.run_in_thread_if_long(self._tokens, wire, _characters(wire.input))
        self._check(texts, one=isinstance(wire.input, str) or isinstance(wire.input[0], int))
        width = self.ready().vector_size
        if wire.dimensions is not None and wire.dimensions > width:
            raise InvalidRequest(
                f"this model's vectors have {width} dimensions; send at most this number", param="dimensions"
            )
        project = project_of(request)
        sequences = [
            AddSequence(
                id=0,
                prompt=text,
                params=NOTHING_DRAWN,
                priority=wire.priority or 0,
                cache_root=cache_root(project, wire.cache_salt or ""),
                project=project.encode(),
            )
            for text in texts
        ]
        form = Form(wire.dimensions, self.embedding.normalised, in_base64=wire.encoding_format == "base64")
        return EmbeddingResponse(
            self.metrics,
            self.engine,
            sequences,
            form,
            model=self.served_name,
            id=request_id(request),
            arrived=arrived,
            deadline_s=wire.deadline_s,
        )

    async def embeds_only(self, _: Request) -> Response:
        raise InvalidRequest(
            f"{self.served_name!r} makes embeddings and nothing else; ask /v1/embeddings",
            param="model",
            code="embeddings_only",
        )

    def _tokens(self, wire: EmbeddingsRequest) -> list[list[int]]:
        """Return the first tokens of each text, as ``truncate_prompt_tokens`` says (-1: as many as the model takes); of
        ids the last, as in vLLM. Raises InvalidRequest."""
        most = wire.truncate_prompt_tokens
        if most == 0:
            raise InvalidRequest(
                "truncate_prompt_tokens is 0; send at least 1, or -1 for as many as fit", param="truncate_prompt_tokens"
            )
        if most == -1:
            most = self.ready().max_model_len
        given = [wire.input] if isinstance(wire.input, str) or isinstance(wire.input[0], int) else wire.input
        return [self._encoded(each, most) for each in given]

    def _encoded(self, given: str | list[int], most: int | None) -> list[int]:
        if isinstance(given, str):
            return self.text.encode(given) if most is None else self.text.truncated(given, most)
        return given if most is None else given[-most:]

    def _check(self, texts: list[list[int]], *, one: bool) -> None:
        """Raises InvalidRequest or ContextLengthExceeded naming the input."""
        ready = self.ready()
        for i, text in enumerate(texts):
            at = "input" if one else f"input[{i}]"
            if not text:
                raise InvalidRequest(f"{at} has no token; send at least one character", param=at)
            require_token_ids(text, ready.vocab_size, at)
            if len(text) > ready.max_model_len:
                raise ContextLengthExceeded(
                    f"This model's maximum context length is {ready.max_model_len} tokens; the input has {len(text)}",
                    param=at,
                )


def refuse_what_asks_for_tokens(wire: ReadingRequest, meant: set[str], what: str) -> None:
    """Raises InvalidRequest naming the first parameter that has no meaning for `what`."""
    for name in sorted(wire.model_fields_set & (set(type(wire).model_fields) - meant)):
        if getattr(wire, name) is not None:
            raise InvalidRequest(
                f"{name} has no meaning for {what}; remove it", param=name, code="unsupported_parameter"
            )
    refuse_unsupported(wire)


def _characters(given: str | list[str] | list[int] | list[list[int]]) -> int:
    return len(given) if isinstance(given, str) else sum(len(each) for each in given if isinstance(each, str))
