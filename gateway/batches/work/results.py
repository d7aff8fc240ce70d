"""What became of the lines of a batch: in OpenAI's form, sealed, and kept once.

    {"id": "batch_req_…", "custom_id": "a", "error": null,
     "response": {"status_code": 200, "request_id": "…", "headers": {"x-domicile-receipt": "…"}, "body": {…}}}

An answer goes into the output file; an error status, and a line that was no call, into the error file.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic_core import to_json

from gateway.batches.content.sealing import Sealing, seal
from gateway.batches.content.upload import place_of
from gateway.database.leases import Lease
from gateway.records.batches import BatchRecord, Part, SealedResult, Status
from gateway.store.batches.batches import StoredBatches

NEWLINES = bytes.maketrans(b"\n\r", b"  ")
"""In JSON they are between values only (RFC 8259 §7)."""


PROOFS = ("x-domicile-receipt", "x-domicile-region", "x-domicile-decision", "x-domicile-notice")


class KeyGone(Exception):
    """The batch's own key was destroyed, with all content of its tenant."""


@dataclass(frozen=True, slots=True)
class LineResult:
    """`key_id`: what the line of the input is sealed under, and so its result."""

    line: int
    part: Part
    content: bytes
    key_id: str


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What the API answered to a line. `headers` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def answered(batch: str, line: int, custom_id: str, answer: ApiAnswer, key_id: str) -> LineResult:
    """The line got an answer of the API: a body of JSON, with its status and the headers that prove it."""
    head = {"id": _id(batch, line), "custom_id": custom_id}
    proofs = {name: answer.headers[name] for name in PROOFS if name in answer.headers}
    response = {"status_code": answer.status, "request_id": answer.headers.get("x-request-id", ""), "headers": proofs}
    body = answer.body.translate(NEWLINES) or b"null"
    content = b'%s,"response":%s,"body":%s},"error":null}\n' % (to_json(head)[:-1], to_json(response)[:-1], body)
    return LineResult(line, "output" if answer.status == 200 else "error", content, key_id)


def failed(batch: str, line: int, custom_id: str | None, code: str, message: str, key_id: str) -> LineResult:
    """The line was no call."""
    error = {"code": code, "message": message, "line": line}
    said = {"id": _id(batch, line), "custom_id": custom_id, "response": None, "error": error}
    return LineResult(line, "error", to_json(said) + b"\n", key_id)


def erased(batch: str, line: int, key_id: str) -> LineResult:
    sentence = f"Line {line}: its content was erased, or may not be used; leave it out"
    return failed(batch, line, None, "content_erased", sentence, key_id)


def _id(batch: str, line: int) -> str:
    return f"batch_req_{batch.removeprefix('batch_')}_{line}"


@dataclass(slots=True)
class Keeper:
    """Keeps results durably, those that come together in one transaction. `own_key`: id of the batch's own data key.
    `seen` is called with the status of the batch."""

    batch: BatchRecord
    stored: StoredBatches
    sealing: Sealing
    lease: Lease
    term: int
    own_key: str
    seen: Callable[[Status], None]
    _waiting: list[tuple[LineResult, asyncio.Future[None]]] = field(default_factory=list)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def keep(self, result: LineResult) -> None:
        """Returns once the result is durable, or another of the same line was. Raises LeaseLost, ContentUnavailable,
        DatabaseUnavailable, KeyGone."""
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((result, kept))
        async with self._turn:
            if not kept.done():
                some, self._waiting = self._waiting, []
                await self._keep_all(some)
        await kept

    async def _keep_all(self, some: Sequence[tuple[LineResult, "asyncio.Future[None]"]]) -> None:
        try:
            await self.write([result for result, _ in some])
        except BaseException as error:
            for _, kept in some:
                if not kept.done():
                    kept.set_exception(error) if isinstance(error, Exception) else kept.cancel()
            if not isinstance(error, Exception):
                raise
        else:
            for _, kept in some:
                if not kept.done():
                    kept.set_result(None)

    async def write(self, results: Sequence[LineResult]) -> None:
        """At once; raises as `keep`."""
        batch = self.batch
        ids = {result.key_id for result in results} | {self.own_key}
        ciphers = await self.sealing.opened(batch.owner.tenant, ids)
        if self.own_key not in ciphers:
            raise KeyGone
        sealed = []
        for result in results:
            if result.key_id not in ciphers:  # erased while the line was answered
                result = erased(batch.id, result.line, self.own_key)
            cipher = ciphers[result.key_id]
            closed = seal(result.key_id, cipher, place_of(batch.id, result.line), result.content)
            sealed.append(SealedResult(result.line, result.part, len(result.content), closed))
        self.seen(await asyncio.to_thread(self.stored.keep, self.lease, self.term, batch.id, sealed))
