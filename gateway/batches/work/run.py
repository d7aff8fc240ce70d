"""One batch from its first state to its last, by the gateway that holds its tenant's lease.

    validating → in_progress → finalizing → completed
        └→ failed       └→ cancelling → cancelled, or expired

Every state and every result is durable before the next step, and a line that has a result is never answered again. So
a gateway that takes the batch over after a crash continues from there.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from gateway.apis.endpoints import BATCHED
from gateway.batches.batches import Batches, about
from gateway.batches.content.files import DAY_S, Files, name_of
from gateway.batches.content.lines import custom_id_of
from gateway.batches.content.sealing import content_errors, seal
from gateway.batches.objects import RESULT_PURPOSE
from gateway.batches.work.answering import LineAnswerer, Pace, expired
from gateway.batches.work.results import Keeper, KeyGone, LineResult
from gateway.database.leases import Lease
from gateway.errors import ObjectNotFound, PolicyDenied
from gateway.records.batches import BatchRecord, FileRecord, Part, Status
from gateway.request.pipeline import Pipeline

MAX_ERRORS = 100
"""Faults of one input file that are named."""
BEGUN = 2
"""Lines in memory for each that may run: while the result of one is made durable, the next is answered."""
LATE_AT_ONCE = 256
DIGEST = 16
"""Bytes of the digest by which one custom_id is told from another."""
RESULT_PARTS: tuple[Part, ...] = ("output", "error")


@dataclass(slots=True)
class BatchRun:
    """`line_done` is told the part of each result, `retried` of each repeated attempt, `ended` the last state."""

    batch: BatchRecord
    batches: Batches
    pipeline: Pipeline
    pace: Pace
    lease: Lease
    term: int
    line_done: Callable[[str], None]
    retried: Callable[[], None]
    ended: Callable[[str], None]
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _cancelling: bool = False

    def see(self, status: Status) -> None:
        """The state that the batch has in the database."""
        if status == "cancelling":
            self._cancelling = True
            self._stopped.set()

    async def run(self) -> None:
        """Raises LeaseLost, GatewayError, DatabaseUnavailable where it cannot go on; it is begun again then."""
        self.see(self.batch.status)
        try:
            file = await self._files.get(self.batch.owner, self.batch.input_file)
        except ObjectNotFound:
            await self._fail(
                [_fault("input_file_gone", "The input file was deleted or its time is over; upload it again")]
            )
            return
        try:
            if self.batch.status == "validating" and not await self._validated(file):
                return
            await self._answer_all(file)
        except KeyGone:
            await self._fail([_fault("content_erased", "The content of this tenant was erased")])
            return
        if self._cancelling or not self._stopped.is_set():
            await self._finish()

    def stop(self) -> None:
        """No attempt begins any more; cancel the task then, which cuts those that run."""
        self._stopped.set()

    @property
    def _files(self) -> Files:
        return self.batches.files

    # --- validating ----------------------------------------------------------------------------------------------

    async def _validated(self, file: FileRecord) -> bool:
        """Whether the batch goes on: one with two requests of one custom_id does not, since no answer could be told
        from the other."""
        total, seen, faults = 0, set[bytes](), list[dict[str, Any]]()
        async for piece, content in self._files.pieces(file):
            if content is None:
                total += piece.lines
                continue
            named = await asyncio.to_thread(_custom_ids, piece.first, content)
            for number, custom_id in named:
                total += 1
                if custom_id is None:
                    continue
                digest = sha256(custom_id.encode("utf-8", "surrogatepass")).digest()[:DIGEST]
                if digest in seen and len(faults) < MAX_ERRORS:
                    sentence = f"Line {number} has the custom_id of a line before it; give each its own"
                    faults.append(_fault("duplicate_custom_id", sentence, number, "custom_id"))
                seen.add(digest)
        if faults:
            await self._fail(faults, total)
            return False
        await self._advance("validating", status="in_progress", total=total, in_progress_at=self._now())
        self.batch = replace(self.batch, total=total)
        return True

    async def _fail(self, faults: list[dict[str, Any]], total: int = 0) -> None:
        batch = self.batch
        [said] = await self.batches.said([batch])
        keys = await self.batches.sealing.opened(batch.owner.tenant, [batch.sealed.data_key])
        values: dict[str, Any] = {"total": total or batch.total}
        if (cipher := keys.get(batch.sealed.data_key)) is not None:
            content = json.dumps({**said, "errors": faults}).encode()
            values["sealed"] = seal(batch.sealed.data_key, cipher, about(batch.id), content).content
        await self._advance("validating", "in_progress", "cancelling", **values)
        await self._end("failed", [])

    # --- in progress ---------------------------------------------------------------------------------------------

    async def _answer_all(self, file: FileRecord) -> None:
        batch = self.batch
        own = (await self.batches.sealing.lend(batch.owner.tenant, batch.id))[None]
        keeper = Keeper(batch, self.batches.stored, self.batches.sealing, self.lease, self.term, own.id, self.see)
        endpoint = next((each for each in BATCHED if each.path == batch.endpoint), None)
        if endpoint is None:
            await self._fail([_fault("invalid_endpoint", f"{batch.endpoint} is not offered any more")])
            return
        answerer = LineAnswerer(
            batch, endpoint, self.pipeline, self.pace, self._stopped, self.retried, self.batches.now
        )
        done = await self._asked(self.batches.stored.done, batch.id)
        late: list[LineResult] = []
        begun = asyncio.Semaphore(BEGUN * max(1, self.batches.settings.concurrent_lines))
        async with asyncio.TaskGroup() as group:
            async for number, raw, key_id in self._lines(file):
                if number in done:
                    continue
                if self._stopped.is_set():
                    break
                if self.batches.now() >= batch.expires_at:
                    custom_id = None if raw is None else custom_id_of(raw)
                    late.append(expired(batch.id, number, custom_id, key_id or own.id))
                    if len(late) >= LATE_AT_ONCE:
                        await self._late(keeper, late)
                    continue
                await begun.acquire()
                task = group.create_task(self._one(answerer, keeper, number, raw, key_id or own.id))
                task.add_done_callback(lambda _: begun.release())
        if late:
            await self._late(keeper, late)

    async def _late(self, keeper: Keeper, results: list[LineResult]) -> None:
        """Keep the results of lines whose time was over before their turn."""
        await keeper.write(results)
        for result in results:
            self.line_done(result.part)
        results.clear()

    async def _one(self, answerer: LineAnswerer, keeper: Keeper, number: int, raw: bytes | None, key_id: str) -> None:
        try:
            async with self.pace.slots:
                result: LineResult | None = await answerer.answer(number, raw, key_id)
            if result is not None:
                await keeper.keep(result)
                self.line_done(result.part)
        except BaseException:
            self.stop()  # the pipeline answers a call whose task is cancelled, and takes the cancellation for done
            raise

    async def _lines(self, file: FileRecord) -> AsyncIterator[tuple[int, bytes | None, str | None]]:
        """Number, content (None where it was erased) and the id of its data key (None where that was destroyed)."""
        async for piece, content in self._files.pieces(file):
            if content is None:
                for number in range(piece.first, piece.first + piece.lines):
                    yield number, None, None
                continue
            for number, line in enumerate(content.split(b"\n"), piece.first):
                if line.strip():
                    yield number, line, piece.sealed.data_key

    # --- finalizing ----------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        batch, now = self.batch, self._now()
        if self._cancelling:
            status: Status = "cancelled"
        else:
            status = "expired" if now >= batch.expires_at else "completed"
            await self._advance("in_progress", status="finalizing", finalizing_at=now)
        kept_s = await self._kept_s()
        files = [] if not kept_s else await self._result_files(now + kept_s)
        await self._end(status, files, kept_s)

    async def _result_files(self, expires_at: float) -> list[FileRecord]:
        batch, now = self.batch, self._now()
        sizes = await self._asked(self.batches.stored.sizes, batch.id)
        own = (await self.batches.sealing.lend(batch.owner.tenant, batch.id))[None]
        files = []
        for part in RESULT_PARTS:
            if part in sizes:
                id_ = f"file-{self.batches.new_id()}"
                name = json.dumps(f"{batch.id}_{part}.jsonl").encode()
                sealed = seal(own.id, own.cipher, name_of(id_), name)
                lines, size = sizes[part]
                files.append(
                    FileRecord(
                        id_, batch.owner, RESULT_PURPOSE, "ready", size, lines, now, expires_at, sealed, batch.id, part
                    )
                )
        return files

    async def _kept_s(self) -> float:
        """How long the results are kept: by the policy of when the batch was made, or the present one if that says
        less. Where the key of the batch does not work any more, nothing is known of the present one."""
        kept_s = self.batch.kept_until - self.batch.expires_at
        try:
            principal = await self.batches.directory.authenticate_stored(self.batch.key_id)
        except Exception:  # revoked, expired, or not to be known now
            return kept_s
        try:
            return min(kept_s, self.pipeline.enforcement.content_days(principal) * DAY_S)
        except PolicyDenied as denied:
            return 0.0 if any(reason.rule == "retention.content" for reason in denied.reasons) else kept_s

    async def _end(self, status: Status, files: list[FileRecord], kept_s: float = DAY_S) -> None:
        batch, now, stored = self.batch, self._now(), self.batches.stored
        present = await self._asked(stored.get, None, batch.id)
        for file in files:
            await self._files.record_stored(file)
        await self.batches.record("batch.ended", replace(present, status=status), "system")
        kept_until = now + max(kept_s, DAY_S)
        if await self._asked(stored.end, self.lease, self.term, batch.id, status, now, kept_until, files):
            self.ended(status)
            if not files:
                await self.batches.sealing.release(batch.owner.tenant, batch.id)

    def _now(self) -> float:
        return self.batches.now()

    async def _advance(self, *before: Status, **values: Any) -> None:
        await self._asked(lambda: self.batches.stored.advance(self.lease, self.term, self.batch.id, before, **values))

    async def _asked(self, work: Callable[..., Any], *arguments: Any) -> Any:
        with content_errors():
            return await asyncio.to_thread(work, *arguments)


def _custom_ids(first: int, content: bytes) -> list[tuple[int, str | None]]:
    """For each line that is not blank, its number and its custom_id, where it has one."""
    lines = enumerate(content.split(b"\n"), first)
    return [(number, custom_id_of(line)) for number, line in lines if line.strip()]


def _fault(code: str, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": param, "line": line}
