"""HTTP API of a backend whose model generates text: OpenAI's endpoints, as plain Starlette routes.

A request is read, checked, turned into token ids, and handed to the engine; its tokens come back as events and become
text here. A disconnect is noticed at once and stops the engine. Logs contain no text of requests or answers.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from backend.answer.answers import AnswerFormat, CompletionAnswer
from backend.answer.chat_answer import chat_answer
from backend.answer.error_bodies import JSON
from backend.answer.generation import GenerationResponse
from backend.answer.mark_report import tested
from backend.answer.recomputation import Challenges
from backend.apart.fetch import Fetcher, PrefillGrant
from backend.chat.conversation import ChatModel
from backend.chat.interpreter import Interpreter
from backend.chat.parameters import (
    NEUTRAL_DEFAULTS,
    Constraints,
    Job,
    ModelLimits,
    bad_word_tokens,
    completion_prompts,
    job,
)
from backend.chat.structured import grammar_of
from backend.chat.unsupported import refuse_unsupported
from backend.engine.apart.statement import Statement
from backend.engine.loaded_adapter import LoadedAdapter
from backend.errors import InvalidRequest
from backend.models.checkpoints.generation_config import SamplingDefaults
from backend.models.checkpoints.tokenizer import TextModel
from backend.process.call import Call
from backend.process.gpu_meter import GpuMeter
from backend.process.grammar_check import GrammarCheck
from backend.process.replicas import Engines
from backend.server.adapters import AdapterApi
from backend.server.base_api import BaseApi, Identity, project_of, request_id
from backend.server.request_lock import COMMITS, MARK_KEY, PREFILL_KEY
from backend.server.tokenization import Tokenization
from backend.wire import (
    ADAPTER_SEPARATOR,
    CHALLENGE_PATH,
    MARKS_PATH,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    MarksRequest,
)

G = TypeVar("G", bound=GenerationRequest)


class GenerationApi(BaseApi):
    def __init__(
        self,
        engine: Engines,
        text_model: TextModel,
        served_name: str,
        identity: Identity,
        chats: ChatModel | None = None,
        meter: GpuMeter | None = None,
        defaults: SamplingDefaults = NEUTRAL_DEFAULTS,
    ) -> None:
        """``chats``: by default what the model's template says. ``meter``: of the engine's card. ``defaults``: for
        sampling parameters that a request does not set."""
        super().__init__(engine, served_name, identity, meter)
        self.text_model = text_model
        self.chats = chats or ChatModel(text_model)
        self.fingerprint: str | None = None  # see `backend.answer.fingerprint`; until it is known, answers have none
        self.fetcher: Fetcher | None = None  # of prompts that another backend computes; None: none are
        self._defaults = defaults
        self._adapters = AdapterApi(engine, served_name, self._guard)
        self._grammars = GrammarCheck(text_model, text_model.vocab_size)

    def app(self) -> Starlette:
        tokens = Tokenization(self.body, self.chats, self.text_model, lambda: self.ready().max_model_len)
        challenges = Challenges(self.body, self.engine, self.text_model, self.ready, lambda: self.weights)
        return self.app_of(
            {
                "/v1/chat/completions": self.chat,
                "/v1/completions": self.completions,
                "/tokenize": tokens.tokenize,
                "/detokenize": tokens.detokenize,
                MARKS_PATH: self.marks,
                CHALLENGE_PATH: challenges.challenge,
            },
            self.writes_only,
            self._adapters.routes(),
        )

    def require_model(self, model: str | None, project: str) -> None:
        self._adapters.of_model(model, project)

    @property
    def capabilities(self) -> dict[str, bool]:
        return {
            "chat": True,
            "completions": True,
            "embeddings": False,
            "rerank": False,
            "tools": self.chats.calls_tools,
            "structured_output": bool(self.text_model.eos_ids),
            "reasoning": self.chats.thinks,
            "vision": False,
        }

    async def close(self) -> None:
        """End the process that checks grammars."""
        await self._grammars.close()

    async def chat(self, request: Request) -> Response:
        arrived = time.monotonic()
        wire = await self._read(request, ChatCompletionRequest)
        length = _characters(wire)
        self.require_short(length, self.text_model.most_bytes_of_a_token, "messages")
        self.require_few(len(wire.messages))
        work = length + MESSAGE_CHARACTERS * len(wire.messages)
        turn = await self.run_in_thread_if_long(self.chats.turn, wire, work)
        adapter = self._adapters.of_model(wire.model, project_of(request))
        answer = chat_answer(
            request_id(request),
            self._name(adapter),
            turn,
            usage_in_chunks=wire.wants_usage_chunk,
            fingerprint=self._fingerprint(adapter),
        )
        job = await self._job(
            request,
            wire,
            [turn.prompt],
            "messages",
            calls=turn.grammar,
            thoughts_end=turn.thoughts_end,
            thought_token=turn.thought_token,
        )
        return self._generate(
            wire, _adapted(job, adapter), answer, arrived, turn.text_model, turn.interpreter, _grant(request)
        )

    async def completions(self, request: Request) -> Response:
        arrived = time.monotonic()
        wire = await self._read(request, CompletionRequest)
        encode = partial(self.text_model.encode_completion, add_special_tokens=wire.add_special_tokens is not False)
        for prompt in completion_prompts(wire):
            self.require_short(len(prompt), self.text_model.most_bytes_of_a_token, "prompt")
        prompts = [
            await self.run_in_thread_if_long(encode, p, len(p)) if isinstance(p, str) else p
            for p in completion_prompts(wire)
        ]
        adapter = self._adapters.of_model(wire.model, project_of(request))
        answer = CompletionAnswer(
            request_id(request),
            self._name(adapter),
            usage_in_chunks=wire.wants_usage_chunk,
            fingerprint=self._fingerprint(adapter),
        )
        job = await self._job(request, wire, prompts, "prompt")
        return self._generate(wire, _adapted(job, adapter), answer, arrived, self.text_model, prefill=_grant(request))

    @property
    def statement(self) -> Statement | None:
        """What another backend has to have in common with this one for blocks to travel; None before the weights are
        measured, and if they cannot."""
        ready = self.engine.ready
        if ready is None or ready.layout is None or self.fingerprint is None:
            return None
        return Statement(computed_by=self.fingerprint, layout=ready.layout)

    def _name(self, adapter: LoadedAdapter | None) -> str:
        return self.served_name if adapter is None else f"{self.served_name}{ADAPTER_SEPARATOR}{adapter.name}"

    def _fingerprint(self, adapter: LoadedAdapter | None) -> str | None:
        """Fingerprint of the weights, and behind them of the adapter's."""
        if adapter is None or self.fingerprint is None:
            return self.fingerprint
        return f"{self.fingerprint}_{adapter.digest[:16]}"

    async def marks(self, request: Request) -> Response:
        """The test for a watermark, of a text that may be anybody's: it goes into no log, and no model reads it."""
        asked = await self.body(request, MarksRequest)
        found = await asyncio.to_thread(tested, self.text_model.encode_words, asked)
        return Response(found.model_dump_json(), media_type=JSON)

    async def writes_only(self, request: Request) -> Response:
        embeds = request.url.path == "/v1/embeddings"
        what = "makes no embeddings" if embeds else "scores no pairs of texts"
        raise InvalidRequest(
            f"{self.served_name!r} writes text and {what}"
            f"; use /v1/chat/completions or /v1/completions, or a model {'of embeddings' if embeds else 'that ranks'}",
            param="model",
            code="no_embeddings" if embeds else "no_scores",
        )

    async def _read(self, request: Request, kind: type[G]) -> G:
        wire = await self.body(request, kind)
        refuse_unsupported(wire)
        return wire

    async def _job(
        self,
        request: Request,
        wire: GenerationRequest,
        prompts: list[list[int]],
        param: str,
        *,
        calls: str = "",
        thoughts_end: int | None = None,
        thought_token: int | None = None,
    ) -> Job:
        """calls: the grammar of forced calls. thoughts_end, thought_token: see `conversation.Turn`."""
        ready = self.ready()
        grammar, grammar_size = await self._grammar(wire, calls)
        return job(
            wire,
            prompts,
            limits=ModelLimits(ready.max_model_len, ready.vocab_size, self._defaults),
            param=param,
            project=project_of(request),
            constraints=Constraints(
                grammar=grammar,
                grammar_size=grammar_size,
                grammar_after=thoughts_end,
                thought_token=thought_token,
                bad_words=bad_word_tokens(wire.bad_words or (), self.text_model.encode_words),
            ),
            mark_key=request.scope.get(MARK_KEY),
            commits=request.scope.get(COMMITS, False),
        )

    async def _grammar(self, wire: GenerationRequest, calls: str) -> tuple[str, int]:
        """And the bytes that it keeps. Compiled in a process of its own, so that the caller hears what is wrong with it
        before anything runs, and no grammar costs others their memory or time."""
        grammar, param = await asyncio.to_thread(grammar_of, wire)
        if calls:
            if grammar:
                raise InvalidRequest(
                    "tool_choice requires a call and the answer has another form too; leave one of the two out",
                    param="tool_choice",
                )
            grammar, param = calls, "tool_choice"
        if not grammar:
            return "", 0
        if not self.text_model.eos_ids:
            raise InvalidRequest(
                "this model has no end token, so its answer cannot have a form; leave the form out", param=param
            )
        try:
            return grammar, await self._grammars.size(grammar)
        except InvalidRequest as refused:
            raise type(refused)(refused.message, param=param) from None

    def _submitted(self, job: Job, prefill: PrefillGrant | None) -> Call:
        """Raises what `EngineClient.submit` does."""
        fetcher, sequences = self.fetcher, job.sequences
        if fetcher is None or prefill is None or not fetcher.takes(sequences, job.made):
            return self.engine.submit(sequences)
        first = msgspec.structs.replace(sequences[0], fetches=True)
        call = self.engine.submit([first, *sequences[1:]])
        call.accompany(fetcher.run(call, first, prefill))
        return call

    def _generate(
        self,
        wire: GenerationRequest,
        job: Job,
        answer: AnswerFormat,
        arrived: float,
        text_model: TextModel,
        interpreter: Callable[[], Interpreter] | None = None,
        prefill: PrefillGrant | None = None,
    ) -> Response:
        """prefill: the backend that is to compute the prompt; None: this one."""
        if wire.skip_special_tokens is False:
            text_model = text_model.outspoken
        call = self._submitted(job, prefill)
        return GenerationResponse(
            text_model,
            self.metrics,
            job,
            call,
            answer,
            arrived,
            stream=bool(wire.stream),
            usage=wire.wants_usage_chunk,
            interpreter=interpreter,
            state_width=self.ready().hidden_size,
        )


def _grant(request: Request) -> PrefillGrant | None:
    granted = request.scope.get(PREFILL_KEY)
    return granted if isinstance(granted, PrefillGrant) else None


def _adapted(job: Job, adapter: LoadedAdapter | None) -> Job:
    if adapter is None:
        return job
    sequences = [
        msgspec.structs.replace(sequence, adapter=adapter.name, adapter_digest=adapter.digest)
        for sequence in job.sequences
    ]
    return replace(job, sequences=sequences)


MESSAGE_CHARACTERS = 100
"""What rendering a message costs beside its text, as a number of characters that are tokenised: some 100 us."""


def _characters(wire: ChatCompletionRequest) -> int:
    """Number of characters of all contents, at least one a message: a template writes something for each."""
    total = 0
    for message in wire.messages:
        content = message.content or ""
        total += 1 + (len(content) if isinstance(content, str) else sum(len(part.text or "") for part in content))
    return total
