"""HTTP API of a backend whose model scores pairs of texts: ``POST /v1/rerank`` and ``POST /v1/score``.

Pairs take the way that texts for embeddings take: tokens here, then the engine's queue. Shapes are those of Cohere and
Jina (rerank) and of vLLM (score).
"""

import time
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from backend.answer.embedding_answer import ScoringResponse
from backend.chat.parameters import cache_root
from backend.engine.core.sampling import NOTHING_DRAWN
from backend.errors import ContextLengthExceeded, InvalidRequest
from backend.models.checkpoints.pooling import Embedding, PairText
from backend.process.gpu_meter import GpuMeter
from backend.process.messages import AddSequence
from backend.process.replicas import Engines
from backend.server.base_api import BaseApi, Identity, project_of, request_id
from backend.server.embedding_server import MEANT, VECTORS_ONLY, refuse_what_asks_for_tokens
from backend.wire import ReadingRequest, RerankRequest, ScoreRequest

PAIRS_ONLY = {**VECTORS_ONLY, "embeddings": False, "rerank": True}
OF_PAIRS = (MEANT | {"query", "documents", "top_n", "text_1", "text_2"}) - {"input", "dimensions", "encoding_format"}
Pair = tuple[str, str]


class ScoringApi(BaseApi):
    def __init__(
        self,
        engine: Engines,
        text: PairText,
        scoring: Embedding,
        served_name: str,
        identity: Identity,
        meter: GpuMeter | None = None,
    ) -> None:
        super().__init__(engine, served_name, identity, meter)
        self.text = text
        self.scoring = scoring

    def app(self) -> Starlette:
        return self.app_of(
            {
                **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), self.rerank),
                **dict.fromkeys(("/v1/score", "/score"), self.score),
            },
            self.pairs_only,
        )

    @property
    def capabilities(self) -> dict[str, bool]:
        return PAIRS_ONLY

    async def rerank(self, request: Request) -> Response:
        arrived = time.monotonic()
        wire = await self.body(request, RerankRequest)
        pairs = [(wire.query, document) for document in wire.documents]
        name, id = self.served_name, request_id(request)

        def write(scores: list[float], tokens: int) -> dict[str, Any]:
            best = sorted(range(len(scores)), key=lambda at: (-scores[at], at))[: wire.top_n]
            results = [
                {"index": at, "document": {"text": wire.documents[at]}, "relevance_score": scores[at]} for at in best
            ]
            return {"id": id, "model": name, "usage": _usage(tokens), "results": results}

        return await self._answer(request, wire, pairs, "documents", write, arrived)

    async def score(self, request: Request) -> Response:
        arrived = time.monotonic()
        wire = await self.body(request, ScoreRequest)
        name, id = self.served_name, request_id(request)

        def write(scores: list[float], tokens: int) -> dict[str, Any]:
            data = [{"index": at, "object": "score", "score": score} for at, score in enumerate(scores)]
            head = {"id": id, "object": "list", "created": int(time.time()), "model": name}
            return {**head, "data": data, "usage": _usage(tokens)}

        return await self._answer(request, wire, wire.pairs, "text_2", write, arrived)

    async def pairs_only(self, _: Request) -> Response:
        raise InvalidRequest(
            f"{self.served_name!r} scores pairs of texts; ask /v1/rerank or /v1/score",
            param="model",
            code="scores_only",
        )

    async def _answer(
        self,
        request: Request,
        wire: ReadingRequest,
        pairs: list[Pair],
        param: str,
        write: Callable[[list[float], int], dict[str, Any]],
        arrived: float,
    ) -> Response:
        refuse_what_asks_for_tokens(wire, OF_PAIRS, "scores")
        most = self._most(wire)

        def encoded(pairs: list[Pair]) -> list[list[int]]:
            return [self._encoded(pair, most, f"{param}[{at}]") for at, pair in enumerate(pairs)]

        size = sum(len(one) + len(other) for one, other in pairs)
        texts = await self.run_in_thread_if_long(encoded, pairs, size)
        project = project_of(request)
        root = cache_root(project, wire.cache_salt or "")
        sequences = [
            AddSequence(
                id=0,
                prompt=text,
                params=NOTHING_DRAWN,
                priority=wire.priority or 0,
                cache_root=root,
                project=project.encode(),
            )
            for text in texts
        ]
        return ScoringResponse(
            self.metrics,
            self.engine,
            sequences,
            write,
            squashed=self.scoring.squashed,
            id=request_id(request),
            arrived=arrived,
            deadline_s=wire.deadline_s,
        )

    def _most(self, wire: ReadingRequest) -> int | None:
        """Tokens of a pair beyond which its second text is cut, as ``truncate_prompt_tokens`` says; -1: as many as the
        model takes. Raises InvalidRequest."""
        most = wire.truncate_prompt_tokens
        if most == 0:
            raise InvalidRequest(
                "truncate_prompt_tokens is 0; send at least 1, or -1 for as many as fit", param="truncate_prompt_tokens"
            )
        return self.ready().max_model_len if most == -1 else most

    def _encoded(self, pair: Pair, most: int | None, at: str) -> list[int]:
        """Raises InvalidRequest or ContextLengthExceeded naming the text."""
        longest = self.ready().max_model_len
        try:
            ids = self.text.encode(*pair, most)
        except ValueError as error:
            what, _, fix = str(error).partition("; ")
            raise InvalidRequest(f"{at}: {what}; {fix}", param=at) from None
        if len(ids) > longest:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {longest} tokens; the pair has {len(ids)}", param=at
            )
        return ids


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
