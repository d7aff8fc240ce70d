"""Scheduling of parsing, redaction and filtering: short texts in the event loop, long ones in a thread or a process.

There are three ways, depending on the cost and the result of a step:

* The values of a large request body are counted in the event loop, in slices; other tasks can run between them.
* A large request body is parsed, validated and serialised in one thread, because the results are used in this process.
Each step holds the interpreter lock until it ends, for a time bounded by the maximum number of values in a body, and
the thread rests between two of them.
* Long texts are redacted, and large answers read and filtered, in processes (`gateway.content.inspection_process`),
because detectors take up to 5 µs per character.

Each tenant has at most one body or text in progress on each way, so no tenant can occupy all capacity. Work that
exceeds its time budget is cancelled. Content that cannot be inspected is refused and never sent.
"""

import asyncio
import pickle
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from gateway.api_format import NO_STATE, CallState
from gateway.configuration.settings import Inspection as Settings
from gateway.content.inspection_process import (
    LENGTH_BYTES,
    Answered,
    AnswerJob,
    Done,
    Job,
    Malformed,
    Refused,
    framed,
    plain,
)
from gateway.content.prompt import (
    OutputFilters,
    Place,
    Prompt,
    leaving,
    prepare,
    redaction_arguments,
    redaction_refusals,
    unredacted,
)
from gateway.content.whole_answer import AnswerSummary, Handling, WholeAnswer, whole_answer
from gateway.errors import BackendFailed, RedactionRefused, TooManyConcurrent
from gateway.openai.bounds import BOUNDS
from gateway.openai.checked_call import Call, checked_call, parse_call, read_body
from gateway.openai.endpoints import Endpoint
from gateway.openai.finite_json import read_large
from policy.errors import RedactionBlocked, RedactionError
from policy.redact.effort import effort_us
from policy.redact.redactor import NamesByText, RedactedBody, Redactor

T = TypeVar("T")

INLINE_BYTES = 8 << 10
"""Maximum size of a body that is redacted in the event loop, if it has at most INLINE_DIGITS digits."""
INLINE_DIGITS = 1000
"""The most expensive texts are digits (telephone numbers), at 8 us each: about 10 ms. Most take less than 1 ms."""
INLINE_ANSWER_BYTES = 2 << 10
"""Maximum size of a complete answer that is filtered in the event loop regardless of its content."""
INLINE_EFFORT_US = 10_000.0
"""Maximum estimated filter time of a complete answer in the event loop; 8 kB of prose take a fifth of it."""
INLINE_PARSE_BYTES = 64 << 10
"""Maximum size of a body or an answer that is parsed in the event loop: about a millisecond."""
MAX_WAITING = 64
"""Maximum number of long prompts of one tenant that wait."""


@dataclass(slots=True)
class _Queue:
    """Long prompts of one tenant: one in progress, the others waiting."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    size: int = 0


class Lane:
    """A single thread for work that holds the interpreter lock.

    Tenants take turns: each has at most one work item in the thread's queue. With more threads, the event loop would
    have to wait for each of them in turn to release the lock. After each item the thread rests for as long as that
    held the lock: the event loop asks for the lock several times for one request of another tenant, and would else meet
    an item each time.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")
        self._queues: dict[str, _Queue] = {}
        self._rests_until = 0.0  # as `time.monotonic`; only the thread uses it

    async def run(self, tenant: str, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work` in the thread when the tenant's earlier work has ended, and return its result."""
        queue = self._queues.setdefault(tenant, _Queue())
        queue.size += 1
        try:
            async with queue.turn:
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._worked, work, *arguments)
        finally:
            queue.size -= 1
            if not queue.size:
                self._queues.pop(tenant, None)

    def _worked(self, work: Callable[..., T], *arguments: Any) -> T:
        if (left := self._rests_until - time.monotonic()) > 0:
            time.sleep(left)
        began = time.thread_time()
        try:
            return work(*arguments)
        finally:
            self._rests_until = time.monotonic() + time.thread_time() - began

    def close(self) -> None:
        """Cancel queued work and shut the thread down without waiting."""
        self._thread.shutdown(wait=False, cancel_futures=True)


async def counted(raw: bytes) -> None:
    """Check `raw` like `Bounds.check`, in slices; other tasks can run between them. Raises BodyTooComplex."""
    for _ in BOUNDS.scan(raw):
        await asyncio.sleep(0)


class Inspection:
    """Parses, redacts and filters. Use as an asynchronous context manager.

    Processes start with the first text that needs them, or with `warm`.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._free = asyncio.Semaphore(self._settings.processes)
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._queues: dict[str, _Queue] = {}
        self._lane = Lane()
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
        self._lane.close()

    async def parsed(self, endpoint: Endpoint, raw: bytes, tenant: str, state: CallState = NO_STATE) -> Call:
        """Return the result of `parse_call`. Raises InvalidRequest, BodyTooComplex, GoesOn."""
        if len(raw) <= INLINE_PARSE_BYTES:
            return parse_call(endpoint, raw, state)
        await counted(raw)
        body = await self._lane.run(tenant, read_body, raw, read_large)
        return await self._lane.run(tenant, checked_call, endpoint, raw, body, state)

    async def warm(self) -> None:
        """Start a process now, so the first long prompt does not wait for it."""
        async with self._free:
            self._idle.append(await self._start())

    async def prepare(
        self,
        call: Call,
        redactor: Redactor,
        tenant: str,
        project: str,
        names: NamesByText | None = None,
        priority: Place = "normal",
    ) -> Prompt:
        """Return the result of `gateway.content.prompt.prepare`.

        Also raises RedactionRefused if inspection exceeds its time budget, and TooManyConcurrent if too many long
        prompts of `tenant` wait.
        """
        if _is_quick(call.raw) or (not redactor.plan.input and len(call.raw) <= INLINE_PARSE_BYTES):
            return prepare(call, redactor, project, names, priority)
        if not redactor.plan.input:
            return await self._lane.run(tenant, prepare, call, redactor, project, names, priority)
        with redaction_refusals:
            arguments = redaction_arguments(call, redactor, project, names)
            job = Job(plain(redactor.plan), redactor.hash_key, arguments)
            redacted = await self._redacted(tenant, job)
        return await self._lane.run(tenant, leaving, call, redactor, project, redacted, priority)

    async def unredacted(
        self, call: Call, redactor: Redactor, tenant: str, project: str, priority: Place = "normal"
    ) -> Prompt:
        """Return the result of `gateway.content.prompt.unredacted`."""
        if len(call.raw) <= INLINE_PARSE_BYTES:
            return unredacted(call, redactor, project, priority)
        return await self._lane.run(tenant, unredacted, call, redactor, project, priority)

    async def whole_answer(
        self, raw: bytes, handling: Handling, output: OutputFilters | None, tenant: str
    ) -> WholeAnswer:
        """Return the result of `gateway.content.whole_answer.whole_answer`; findings are counted in `output`.

        An answer whose inspection exceeds the time budget is refused like one that cannot be inspected. Raises
        BackendFailed.
        """
        if _is_quick_answer(raw, filtered=output is not None):
            return whole_answer(raw, handling, output.make if output is not None else None)
        job = AnswerJob(raw, handling, output.settings if output is not None else None)
        try:  # unbounded queue: each of these calls was admitted, and its backend has answered
            result = await self._result(tenant, self._queues.setdefault(tenant, _Queue()), job)
        except RedactionRefused:
            result = Refused(reason="its inspection took too long")
        except RedactionError as error:
            result = Refused(reason=str(error))
        if isinstance(result, Malformed):
            raise BackendFailed(result.reason)
        if not isinstance(result, Answered):  # usage is unknown, so it is estimated from the number of bytes
            return WholeAnswer(AnswerSummary(characters=len(raw)), refusal=_refusal_in(result))
        if output is not None:
            output.add(result.counts)
        refusal = None if result.refused is None else _refusal_in(result.refused)
        return WholeAnswer(result.summary, raw if result.raw is None else result.raw, result.texts, refusal)

    async def _redacted(self, tenant: str, job: Job) -> RedactedBody:
        """Redact in a process. Raises RedactionBlocked, RedactionError, RedactionRefused, TooManyConcurrent."""
        queue = self._queues.setdefault(tenant, _Queue())
        if queue.size >= MAX_WAITING:
            raise TooManyConcurrent(
                "Too many long prompts of this tenant are waiting for inspection; send fewer at once", retry_after_s=1
            )
        result = await self._result(tenant, queue, job)
        if not isinstance(result, Done):
            raise _refusal_in(result)
        return RedactedBody(result.body, result.changed, MappingProxyType(result.counts), result.pseudonyms)

    async def _result(self, tenant: str, queue: _Queue, job: Job | AnswerJob) -> Any:
        queue.size += 1
        # If the caller is cancelled, the job still runs to its end, and the tenant's next job waits for it.
        task = asyncio.create_task(self._in_turn(tenant, queue, job), name="inspection")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task)
        finally:
            del task  # its exception references this frame, and so the body, until the next garbage collection

    async def _in_turn(self, tenant: str, queue: _Queue, job: Job | AnswerJob) -> Any:
        try:
            async with queue.turn, self._free:
                return await self._run(tenant, job)
        finally:
            queue.size -= 1
            if not queue.size:
                self._queues.pop(tenant, None)

    async def _run(self, tenant: str, job: Job | AnswerJob) -> Any:
        process = self._idle.pop() if self._idle else await self._start()
        whole = False
        try:
            async with asyncio.timeout(self._settings.budget_s):
                result = await self._ask(process, tenant, job)
            whole = True
            return result
        except TimeoutError:
            raise RedactionRefused(
                "The prompt could not be inspected in time and was not sent; divide it into several requests",
                code="redaction_timeout",
            ) from None
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise RedactionError(
                f"the process that inspects long prompts failed with {type(error).__name__}; try again"
            ) from None
        finally:
            if whole and process.returncode is None:
                self._idle.append(process)
            else:
                await self._end(process)

    async def _ask(self, process: Process, tenant: str, job: Job | AnswerJob) -> Any:
        if process.stdin is None or process.stdout is None:
            raise EOFError("the process has no pipes")
        process.stdin.write(await self._lane.run(tenant, framed, job))
        await process.stdin.drain()
        size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
        content = await process.stdout.readexactly(size)
        return await self._lane.run(tenant, pickle.loads, content)

    async def _start(self) -> Process:
        # With -m, its classes would belong to __main__, but pickles name the module of a class.
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


def _is_quick(raw: bytes) -> bool:
    """Return whether a body is redacted in the event loop."""
    if len(raw) <= INLINE_DIGITS:
        return True
    return len(raw) <= INLINE_BYTES and len(raw) - len(raw.translate(None, b"0123456789")) <= INLINE_DIGITS


def _is_quick_answer(raw: bytes, *, filtered: bool) -> bool:
    """Return whether an answer is read, and filtered if required, in the event loop."""
    if len(raw) > INLINE_PARSE_BYTES:
        return False
    if not filtered or len(raw) <= INLINE_ANSWER_BYTES:
        return True
    return effort_us(raw.decode("utf-8", "replace")) <= INLINE_EFFORT_US


def _refusal_in(result: Refused) -> RedactionError:
    """Return the error for a process's refusal."""
    return RedactionBlocked(*result.blocked, hint=result.hint) if result.blocked else RedactionError(result.reason)
