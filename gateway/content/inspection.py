"""Where a request is parsed and redacted and an answer filtered: a short one in the event loop, a long one elsewhere.

Detectors take up to 5 µs a character and hold the interpreter lock while they do, so a long prompt in the event loop,
or in a thread of this process, would stall the calls of every tenant. A long one is redacted in a process
(`gateway.content.inspection_process`); a tenant has one at work at a time, so that none can take all of them; and a
budget of time ends what does not finish. What cannot be inspected is refused: nothing is sent that was not read.
"""

import asyncio
import pickle
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from backend.wire import Usage
from gateway.configuration.settings import Inspection as Settings
from gateway.content.inspection_process import LENGTH_BYTES, AnswerJob, Done, Filtered, Job, framed, plain
from gateway.content.prompt import OutputFilters, Prompt, leaving, prepare, redaction_arguments, redaction_refusals
from gateway.errors import RedactionRefused, TooManyConcurrent
from gateway.openai.answer import FilterFactory, TextFilter, rewrite_choices
from gateway.openai.checked_call import Call, parse_call
from gateway.openai.endpoints import Endpoint
from gateway.openai.finite_json import read
from policy.errors import RedactionBlocked, RedactionError
from policy.facts import Priority
from policy.redact.effort import effort_us
from policy.redact.redactor import NamesByText, RedactedBody, Redactor

T = TypeVar("T")

INLINE_BYTES = 8 << 10
"""Of a body that is redacted in the event loop, where it has at most INLINE_DIGITS digits."""
INLINE_DIGITS = 1000
"""The costliest texts are dense with digits (telephone numbers), at 8 us each, so some 10 ms; mostly less than one."""
INLINE_ANSWER_BYTES = 2 << 10
"""Of a whole answer that is filtered in the event loop whatever it says."""
INLINE_EFFORT_US = 10_000.0
"""Estimated for the filter of a whole answer in the event loop: 8 kB of prose take a fifth of it."""
INLINE_PARSE_BYTES = 64 << 10
"""Of a body that is parsed in the event loop: about a millisecond."""
MAX_WAITING = 64
"""Long prompts of one tenant that may wait for their turn."""


async def parsed(endpoint: Endpoint, raw: bytes) -> Call:
    """As `parse_call`; a large body in a thread, which gives the event loop its turn between the steps."""
    return parse_call(endpoint, raw) if len(raw) <= INLINE_PARSE_BYTES else await beside(parse_call, endpoint, raw)


async def beside(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.to_thread(work, *arguments)


@dataclass(slots=True)
class _Queue:
    """The long prompts of one tenant: one at work, the others wait."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    size: int = 0


class Inspection:
    """Use as an asynchronous context. Processes start with the first prompt that needs them, or with `warm`."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._free = asyncio.Semaphore(self._settings.processes)
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._queues: dict[str, _Queue] = {}
        self._running: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in list(self._all):
            await self._end(process)
        for task in list(self._running):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task

    async def warm(self) -> None:
        """Start a process now, so that the first long prompt does not wait for it."""
        async with self._free:
            self._idle.append(await self._start())

    async def prepare(
        self,
        call: Call,
        redactor: Redactor,
        tenant: str,
        project: str,
        names: NamesByText | None = None,
        priority: Priority = "normal",
    ) -> Prompt:
        """As `gateway.content.prompt.prepare`. Raises RedactionRefused also where it takes longer than the budget, and
        TooManyConcurrent where too many long prompts of `tenant` wait."""
        if _is_quick(call.raw) or not redactor.plan.input:
            return prepare(call, redactor, project, names, priority)
        with redaction_refusals():
            arguments = redaction_arguments(call, redactor, project, names)
            redacted = await self._redacted(tenant, Job(plain(redactor.plan), redactor.hash_key, arguments))
        return await beside(leaving, call, redactor, project, redacted, priority)

    async def filter_answer(
        self, body: dict[str, Any], raw: bytes, usage: Usage | None, output: OutputFilters, tenant: str
    ) -> None:
        """Filter a whole answer in place: `body`, which `raw` was read to.

        Raises RedactionError where it may not be sent, also where that takes longer than the budget.
        """
        if len(raw) <= INLINE_ANSWER_BYTES or effort_us(raw.decode("utf-8", "replace")) <= INLINE_EFFORT_US:
            rewrite_choices(body, body["choices"], usage, output.make)
            return
        texts = _Texts()
        twin = await beside(read, raw)
        rewrite_choices(twin, twin["choices"], usage, texts.collect)
        try:  # no bound on how many wait: each of these calls was admitted, and its backend has answered
            result = await self._result(tenant, self._queues.setdefault(tenant, _Queue()), output.job(texts.written))
        except RedactionRefused:
            raise RedactionError("its inspection took too long") from None
        if not isinstance(result, Filtered):
            raise _refusal_in(result)
        output.add(result.counts)
        rewrite_choices(body, body["choices"], usage, texts.giving(result.texts))

    async def _redacted(self, tenant: str, job: Job) -> RedactedBody:
        """Raises RedactionBlocked, RedactionError, RedactionRefused, TooManyConcurrent."""
        queue = self._queues.setdefault(tenant, _Queue())
        if queue.size >= MAX_WAITING:
            raise TooManyConcurrent(
                "Too many long prompts of this tenant wait to be inspected; send fewer at once", retry_after_s=1
            )
        result = await self._result(tenant, queue, job)
        if not isinstance(result, Done):
            raise _refusal_in(result)
        return RedactedBody(result.body, result.changed, MappingProxyType(result.counts), result.pseudonyms)

    async def _result(self, tenant: str, queue: _Queue, job: Job | AnswerJob) -> Any:
        queue.size += 1
        # A caller that leaves does not free the process: it goes on, and the next of the tenant waits for it.
        task = asyncio.create_task(self._in_turn(tenant, queue, job), name="inspection")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _in_turn(self, tenant: str, queue: _Queue, job: Job | AnswerJob) -> Any:
        try:
            async with queue.turn, self._free:
                return await self._run(job)
        finally:
            queue.size -= 1
            if not queue.size:
                self._queues.pop(tenant, None)

    async def _run(self, job: Job | AnswerJob) -> Any:
        process = self._idle.pop() if self._idle else await self._start()
        whole = False
        try:
            async with asyncio.timeout(self._settings.budget_s):
                result = await _ask(process, job)
            whole = True
            return result
        except TimeoutError:
            raise RedactionRefused(
                "The prompt could not be inspected in time and was not sent; divide it into several requests",
                code="redaction_timeout",
            ) from None
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise RedactionError(f"the process that inspects long prompts failed with {type(error).__name__}") from None
        finally:
            if whole and process.returncode is None:
                self._idle.append(process)
            else:
                await self._end(process)

    async def _start(self) -> Process:
        # Not with -m: its classes would be of __main__, and pickles name the module that a class is of.
        command = (sys.executable, "-P", "-c", "from gateway.content.inspection_process import main; main()")
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=1 << 20)
        self._all.add(process)
        return process

    async def _end(self, process: Process) -> None:
        self._all.discard(process)
        if process in self._idle:
            self._idle.remove(process)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class _Texts:
    """The texts of an answer in the order in which `rewrite_choices` has them filtered."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bool]] = []

    def collect(self, json_escaped: bool) -> TextFilter:
        """A filter that notes its text and changes nothing."""

        def note(text: str) -> str:
            self.written.append((text, json_escaped))
            return text

        return _Scribe(note)

    def giving(self, filtered: Sequence[str]) -> FilterFactory:
        """Filters that give `filtered`, in that order, for what was noted."""
        left = iter(zip(self.written, filtered, strict=True))

        def make(json_escaped: bool) -> TextFilter:
            def give(text: str) -> str:
                known, after = next(left)
                if known != (text, json_escaped):  # what was not inspected must not be sent
                    raise RedactionError("its texts are not those that were inspected")
                return after

            return _Scribe(give)

        return make


class _Scribe:
    """An output filter that is fed once."""

    def __init__(self, after: Callable[[str], str]) -> None:
        self.feed = after

    def rest(self) -> str:
        return ""

    flush = rest


def _is_quick(raw: bytes) -> bool:
    """Whether a body is redacted in the event loop."""
    if len(raw) <= INLINE_DIGITS:
        return True
    return len(raw) <= INLINE_BYTES and len(raw) - len(raw.translate(None, b"0123456789")) <= INLINE_DIGITS


def _refusal_in(result: Any) -> RedactionError:
    """What a process refused, as an error."""
    return RedactionBlocked(*result.blocked) if result.blocked else RedactionError(result.reason)


async def _ask(process: Process, job: Job | AnswerJob) -> Any:
    if process.stdin is None or process.stdout is None:
        raise EOFError("the process has no pipes")
    process.stdin.write(await beside(framed, job))
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
    content = await process.stdout.readexactly(size)
    return await beside(pickle.loads, content)
