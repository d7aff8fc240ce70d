"""Where a request is parsed and redacted: a short one in the event loop, a long one elsewhere.

Detectors take up to 5 µs a character and hold the interpreter lock while they do, so a long prompt in the event loop,
or in a thread of this process, would stall the calls of every tenant. A long one is redacted in a process
(`gateway.inspection_process`); a tenant has one at work at a time, so that none can take all of them; and a budget of
time ends what does not finish. What cannot be inspected is refused: nothing is sent that was not read.
"""

import asyncio
import pickle
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from gateway.errors import RedactionRefused, TooManyConcurrent
from gateway.inspection_process import LENGTH_BYTES, Done, Job, framed, plain
from gateway.openai.endpoint import Call, Endpoint, parse_call
from gateway.prompt import Prompt, leaving, prepare, redaction_arguments, redaction_refusals
from gateway.settings import Inspection as Settings
from policy.errors import RedactionBlocked, RedactionError
from policy.facts import Priority
from policy.redact.redactor import NamesByText, RedactedBody, Redactor

T = TypeVar("T")

INLINE_BYTES = 8 << 10
"""Of a body that is redacted in the event loop: at most 40 ms of the costliest text, mostly far less than one."""
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
        """As `gateway.prompt.prepare`. Raises RedactionRefused also where it takes longer than the budget, and
        TooManyConcurrent where too many long prompts of `tenant` wait."""
        if len(call.raw) <= INLINE_BYTES or not redactor.plan.input:
            return prepare(call, redactor, project, names, priority)
        with redaction_refusals():
            arguments = redaction_arguments(call, redactor, project, names)
            redacted = await self._redacted(tenant, Job(plain(redactor.plan), redactor.hash_key, arguments))
        return await beside(leaving, call, redactor, project, redacted, priority)

    async def _redacted(self, tenant: str, job: Job) -> RedactedBody:
        """Raises RedactionBlocked, RedactionError, RedactionRefused, TooManyConcurrent."""
        queue = self._queues.setdefault(tenant, _Queue())
        if queue.size >= MAX_WAITING:
            raise TooManyConcurrent(
                "Too many long prompts of this tenant wait to be inspected; send fewer at once", retry_after_s=1
            )
        queue.size += 1
        # A caller that leaves does not free the process: it goes on, and the next of the tenant waits for it.
        task = asyncio.create_task(self._in_turn(tenant, queue, job), name="inspection")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        result = await asyncio.shield(task)
        if isinstance(result, Done):
            return RedactedBody(result.body, result.changed, MappingProxyType(result.counts), result.pseudonyms)
        if result.blocked:
            raise RedactionBlocked(*result.blocked)
        raise RedactionError(result.reason)

    async def _in_turn(self, tenant: str, queue: _Queue, job: Job) -> Any:
        try:
            async with queue.turn, self._free:
                return await self._run(job)
        finally:
            queue.size -= 1
            if not queue.size:
                self._queues.pop(tenant, None)

    async def _run(self, job: Job) -> Any:
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
        command = (sys.executable, "-P", "-c", "from gateway.inspection_process import main; main()")
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


async def _ask(process: Process, job: Job) -> Any:
    if process.stdin is None or process.stdout is None:
        raise EOFError("the process has no pipes")
    process.stdin.write(await beside(framed, job))
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
    content = await process.stdout.readexactly(size)
    return await beside(pickle.loads, content)
