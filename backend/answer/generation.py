"""The answer of one call, streamed or whole."""

import asyncio
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backend.activations.answer_commitment import Committer
from backend.answer.answers import AnswerFormat, CompletedChoice, Finish
from backend.answer.error_bodies import JSON, ModelFailed, error_body, error_response
from backend.answer.mark_report import mark_of
from backend.chat.choice import Choice
from backend.chat.interpreter import Interpreter
from backend.chat.logprobs import LogprobEntry, Spelling
from backend.chat.parameters import Job
from backend.engine.core.progress import Finish as FinishReason
from backend.engine.core.progress import Progress, TokenLogprobs
from backend.errors import InvalidRequest, RequestError
from backend.models.checkpoints.tokenizer import TextModel
from backend.process.call import Call, ClientGone
from backend.process.metrics import AnsweredRequest, Metrics
from backend.tools.parts import Content, Part, merged
from backend.wire import PREFILL_HEADER, REQUEST_ID_HEADER, SSE_DONE, JsonObject, PromptTokensDetails, Usage, sse_data

FAILED = {
    "error": "the model's output is not a number; this request cannot be answered",
    "grammar": "the answer's grammar cannot be followed within its limits",
}
REFUSED = {*FAILED, FinishReason.NOTHING_LEFT}
"""Ends that are an error of the answer, and no reason that a choice has."""


class GenerationResponse(Response):
    """Sends the answer of one call, while watching for the client's leaving.

    The first event is awaited before anything is sent, so that an engine which fails before its first token can still
    say so in the status.
    """

    def __init__(
        self,
        text_model: TextModel,
        metrics: Metrics,
        job: Job,
        call: Call,
        answer: AnswerFormat,
        arrived: float,
        *,
        stream: bool,
        usage: bool,
        interpreter: Callable[[], Interpreter] | None = None,
        state_width: int = 0,
    ) -> None:
        """interpreter: makes what reads thoughts and calls in one choice; None: all is content. state_width: of the
        states that tokens are drawn from, for choices that commit to them."""
        self.background = None
        self._text_model = text_model
        self._metrics = metrics
        self._job = job
        self._call = call
        self._answer = answer
        self._arrived = arrived
        self._stream = stream
        self._usage = usage
        self._spelling = Spelling(text_model)
        self._choices = [Choice(text_model, job.text, interpreter() if interpreter else None) for _ in job.sequences]
        self._parts: list[list[Part]] = [[] for _ in job.sequences]
        self._entries: list[list[LogprobEntry]] = [[] for _ in job.sequences]
        self._of_prompts: list[list[TokenLogprobs]] = [[] for _ in job.sequences[:: job.made]]
        self._ids: list[list[int]] = [[] for _ in job.sequences]  # where marks are reported
        self._committers = [Committer(one.prompt, state_width) if one.params.commits else None for one in job.sequences]
        self._commitments: dict[int, str] = {}  # of choices that have ended
        self._marked = [one.params.mark is not None for one in job.sequences]
        self._failed: Exception | None = None  # to be raised once what came before it is sent
        self._before = [len(text_model.decode(prompt)) for prompt in job.echo or ()]
        self._first: float | None = None
        self._started: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        alarm = self._set_alarm()
        started = False
        outcome = "failed"
        try:
            said = await self._next()
            if self._stream:
                started = True
                await self._start(send, "text/event-stream")
                await self._send_stream(send, said)
            else:
                self._keep(said)
                while not self._over:
                    self._keep(await self._next())
                await self._send_whole(send)
            outcome = "completed"
        except ClientGone:
            outcome = "aborted"
        except Exception as error:
            outcome = "refused" if isinstance(error, RequestError) else "failed"
            if started:  # too late for a status: the stream ends with the error, and without [DONE]
                frame = sse_data(error_body(error).model_dump_json().encode())
                await send({"type": "http.response.body", "body": frame, "more_body": False})
            else:
                await error_response(error)(scope, receive, send)
        finally:
            watch.cancel()
            if alarm is not None:
                alarm.cancel()
            self._call.close()
            self._account(outcome)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._call.leave()

    def _set_alarm(self) -> asyncio.TimerHandle | None:
        if self._job.deadline_s is None:
            return None
        left = self._job.deadline_s - (time.monotonic() - self._arrived)
        return asyncio.get_running_loop().call_later(left, self._call.expire)

    async def _next(self) -> dict[int, list[Part]]:
        """What is new, by choice. Raises what `Call.next_events` does, InvalidRequest or ModelFailed; what came before
        in the same step is given first."""
        if self._failed is not None:
            raise self._failed
        said: dict[int, list[Part]] = {}
        for index, progress in await self._call.next_events():
            if self._choices[index].finish_reason is not None:
                continue  # what a step brought behind a stop string
            try:
                parts = await self._fed(index, progress)
            except (RequestError, ModelFailed) as error:
                if not said:
                    raise
                self._failed = error
                break
            if (before := said.get(index)) is None:
                said[index] = parts
            else:
                said[index] = merged([*before, *parts])
        return said

    @property
    def _over(self) -> bool:
        """All choices have ended, and well."""
        return self._call.done and self._failed is None

    async def _fed(self, index: int, progress: Progress) -> list[Part]:
        if self._first is None:
            self._first = time.monotonic()
            self._started = progress.started
        if progress.prompt is not None:
            self._of_prompts[index // self._job.made] = progress.prompt
        choice = self._choices[index]
        parts = choice.feed(progress)
        if choice.finish_reason is not None:
            _refuse_end(choice)
            if progress.finish is None:
                self._call.stop(index)
        if progress.token is not None and self._marked[index]:
            self._ids[index].append(progress.token)
        committer = self._committers[index]
        if committer is not None:
            if progress.token is not None and progress.activations is not None:
                committer.add(progress.token, progress.activations)
            if choice.finish_reason is not None:
                made = await asyncio.to_thread(committer.finish)
                self._commitments[index] = urlsafe_b64encode(made.to_bytes()).rstrip(b"=").decode()
        return [] if self._job.only_echo else parts

    def _keep(self, said: dict[int, list[Part]]) -> None:
        for index, parts in said.items():
            self._parts[index] += parts
            self._entries[index] += self._taken(index)

    def _taken(self, index: int) -> list[LogprobEntry]:
        """Log probabilities that are to go out with what was shown last."""
        taken = self._choices[index].take_entries()
        if self._job.only_echo:
            return []
        return [entry.moved(self._before[index // self._job.made]) for entry in taken] if self._job.echo else taken

    async def _send_stream(self, send: Send, said: dict[int, list[Part]]) -> None:
        """One write for all that a step brought."""
        opened: set[int] = set()
        while True:
            frames: list[bytes] = []
            for index, parts in said.items():
                if index not in opened:
                    opened.add(index)
                    frames += self._opening(index)
                finish, entries = self._finish(index), self._taken(index)
                if parts or entries:
                    frames.append(self._answer.chunk(index, parts, None, entries))
                if finish is not None:
                    frames.append(self._answer.chunk(index, [], finish))
            over = self._over
            if over:
                frames += [self._answer.usage_chunk(self.usage) if self._usage else b"", SSE_DONE]
            if body := b"".join(frames):
                await send({"type": "http.response.body", "body": body, "more_body": not over})
            if over:
                break
            said = await self._next()

    def _opening(self, index: int) -> list[bytes]:
        """Frames that come before a choice's first text."""
        frames = [self._answer.opening(index) or b""]
        if self._job.echo is not None:
            prompt, entries = self._echo(index)
            frames.append(self._answer.chunk(index, [Content(prompt)], None, entries))
        return frames

    async def _send_whole(self, send: Send) -> None:
        await self._start(send, JSON)
        body = self._answer.body([self._completed_choice(index) for index in self._best()], self.usage)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _best(self) -> list[int]:
        """The choices that are given: of each prompt's, those whose tokens are likeliest on average (OpenAI)."""
        made, n = self._job.made, self._job.n
        chosen: list[int] = []
        for first in range(0, len(self._choices), made):
            own = range(first, first + made)
            chosen += sorted(own, key=lambda i: -self._choices[i].mean_logprob)[:n] if made > n else own
        return chosen

    def _completed_choice(self, index: int) -> CompletedChoice:
        parts, entries = merged(self._parts[index]), self._entries[index]
        if self._job.echo is not None:
            prompt, before = self._echo(index)
            parts, entries = [Content(prompt), *parts], before + entries
        return CompletedChoice(
            parts,
            self._finish(index) or Finish("length"),
            entries if self._job.text.logprobs else None,
            self._prompt_logprobs(index),
        )

    def _finish(self, index: int) -> Finish | None:
        choice = self._choices[index]
        if choice.finish_reason is None or choice.finish_reason in REFUSED:
            return None
        mark = mark_of(self._job.sequences[index].params, self._ids[index])
        return Finish(choice.finish_reason, choice.stop_reason, mark, self._commitments.get(index))

    def _echo(self, index: int) -> tuple[str, list[LogprobEntry]]:
        assert self._job.echo is not None  # noqa: S101
        number = index // self._job.made
        prompt = self._job.echo[number]
        if not self._job.text.logprobs:
            return self._text_model.decode(prompt), []
        return self._text_model.decode(prompt), self._spelling.prompt_entries(prompt, self._of_prompts[number])

    def _prompt_logprobs(self, index: int) -> list[JsonObject | None] | None:
        if not self._job.prompt_logprobs:
            return None
        first = index // self._job.made * self._job.made
        return self._spelling.prompt_logprobs(
            self._job.sequences[first].prompt, self._of_prompts[index // self._job.made]
        )

    async def _start(self, send: Send, content_type: str) -> None:
        headers = [
            (b"content-type", content_type.encode()),
            (b"cache-control", b"no-store"),
            (REQUEST_ID_HEADER.encode(), self._answer.id.partition("-")[2].encode()),
        ]
        if self._call.prefill is not None:
            headers.append((PREFILL_HEADER.encode(), self._call.prefill.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    @property
    def usage(self) -> Usage:
        completion = 0 if self._job.only_echo else sum(choice.tokens for choice in self._choices)
        firsts = self._choices[:: self._job.made]  # one choice a prompt: the others find what it computed
        return Usage(
            prompt_tokens=self._job.prompt_tokens,
            completion_tokens=completion,
            total_tokens=self._job.prompt_tokens + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(c.cached_tokens for c in firsts)),
            energy_joules=self._energy(),
            first_token_ms=None if self._first is None else round((self._first - self._arrived) * 1000, 1),
        )

    def _energy(self) -> float | None:
        if self._started is None:
            return None
        taken = self._metrics.energy(self._started, time.monotonic(), len(self._choices))
        return None if taken is None else round(taken, 3)

    def _account(self, outcome: str) -> None:
        usage = self.usage
        self._metrics.count_answer(
            AnsweredRequest(
                outcome,
                self._arrived,
                time.monotonic(),
                usage.prompt_tokens,
                usage.completion_tokens,
                len(self._choices),
                self._started,
                self._first,
            )
        )


def _refuse_end(choice: Choice) -> None:
    """Raises InvalidRequest or ModelFailed for a choice that could not be written to its end."""
    if choice.finish_reason == FinishReason.NOTHING_LEFT:
        raise InvalidRequest(
            "no token is left that allowed_token_ids, bad_words and the form of the answer all permit"
            "; allow more tokens in allowed_token_ids or bad_words",
            param="allowed_token_ids",
        )
    if choice.finish_reason in FAILED:
        raise ModelFailed(FAILED[choice.finish_reason])
