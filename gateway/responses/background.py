"""Responses in the background: each is one call through the pipeline, behind interactive ones, answered once.

    queued → in_progress → completed, incomplete or failed;  cancelled from either of the first

They have the queue, the lease and the slots of their tenant's batches (`gateway.batches.work.worker`): of the call that
answers one, the steps of the pipeline know no more than that it is a line of a batch.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from gateway.apis.endpoints import RESPONSES
from gateway.apis.responses.events import ERROR_CODES
from gateway.batches.content.sealing import content_errors
from gateway.batches.objects import WINDOW_S
from gateway.batches.work.answering import Pace, PatientCall, TimeIsOver
from gateway.batches.work.line_client import Collected
from gateway.content.retained_content import SUBJECT_HEADER
from gateway.database.leases import Lease
from gateway.openai.asgi_client import BatchLine, Header
from gateway.openai.finite_json import write
from gateway.records.responses import ResponseRecord, ResponseStatus
from gateway.request.pipeline import Pipeline
from gateway.responses.responses import OpenedResponse, Responses

AT_ONCE = 64
"""Waiting responses of a tenant that are looked at, the oldest first; they share its slots."""


@dataclass(frozen=True, slots=True)
class WaitingResponses:
    """`gateway.batches.work.worker.SingleCalls`."""

    responses: Responses
    pipeline: Pipeline

    async def tenants(self) -> list[str]:
        with content_errors():
            return await asyncio.to_thread(self.responses.stored.tenants)

    async def workable(self, tenant: str) -> list[str]:
        with content_errors():
            found = await asyncio.to_thread(self.responses.stored.queued, tenant, AT_ONCE)
        ciphers = await self.responses.sealing.opened(tenant, {each.data_key for each in found}) if found else {}
        return [each.id for each in found if each.data_key in ciphers]

    def run_of(
        self, tenant: str, call: str, pace: Pace, lease: Lease, term: int, noted: Callable[[str], None]
    ) -> "ResponseRun":
        return ResponseRun(tenant, call, self.responses, self.pipeline, pace, lease, term, noted)


@dataclass(slots=True)
class ResponseRun:
    """One response until it has an end. `noted` is called with its outcome (output, error), and ``retried``."""

    tenant: str
    response: str
    responses: Responses
    pipeline: Pipeline
    pace: Pace
    lease: Lease
    term: int
    noted: Callable[[str], None]
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _call: PatientCall | None = None
    _answering: asyncio.Task[Collected | None] | None = None

    async def run(self) -> None:
        """Raises LeaseLost, GatewayError, DatabaseUnavailable where it cannot continue; it is begun again then."""
        async with self.pace.slots:
            record = await self._asked(self.responses.stored.taken, self.tenant, self.response)
            found = None if record is None else await self.responses.opened(record)
            if found is None or self._stopped.is_set():
                return
            stored, same = self.responses.stored, found.record.answered
            await self._asked(stored.advance, self.lease, self.term, self.response, "in_progress", same)
            try:
                got = await self._answer(found)
            except TimeIsOver:
                late = "It was not answered within 24 hours; send it again"
                await self._end(found, "failed", _failed("server_error", late))
                return
        if got is None:
            return
        if got.status == 200:
            response = from_json(bytes(got.body))
            response["created_at"] = from_json(found.answered)["created_at"]  # as when it was queued
            await self._end(found, response["status"], response)
        else:
            error = from_json(bytes(got.body)).get("error") or {}
            code = ERROR_CODES.get(got.status, "server_error")
            await self._end(found, "failed", _failed(code, str(error.get("message") or "It could not be answered")))

    def stop(self) -> None:
        self._stopped.set()

    def over(self) -> None:
        self._stopped.set()
        if self._answering is not None and self._call is not None:
            if self._call.client is not None:
                self._call.client.gone = True  # no client waits for the answer any more
            self._answering.cancel()

    async def _answer(self, found: OpenedResponse) -> Collected | None:
        """None where the work was stopped, or the response is over, before there was an answer. Raises TimeIsOver."""
        record, subject = found.record, found.asked.get("subject")
        line = BatchLine(record.id, 1, record.id, record.key_id, response=record.id)
        call = self._call = PatientCall(
            self.tenant,
            RESPONSES,
            self.pipeline,
            self.pace,
            self._stopped,
            record.created_at + WINDOW_S,
            lambda: self.noted("retried"),
            self.responses.now,
        )
        headers: Sequence[Header] = ()
        if isinstance(subject, str):
            headers = [(SUBJECT_HEADER.encode(), subject.encode())]
        self._answering = asyncio.create_task(call.answered(write(found.asked["body"]), line, headers))
        try:
            return await self._answering
        except asyncio.CancelledError:
            if not self._stopped.is_set():
                raise
            return None

    async def _end(self, found: OpenedResponse, status: ResponseStatus, members: Mapping[str, Any]) -> None:
        record: ResponseRecord = found.record
        answered = await asyncio.to_thread(_ended, found.answered, status, members)
        sealed = await self.responses.sealed(record, answered)
        if sealed is None:  # erased meanwhile: what is left of it goes with its time
            return
        stored = self.responses.stored
        if await self._asked(stored.advance, self.lease, self.term, record.id, status, sealed):
            await self.responses.record("response.ended", record.owner, record.id, status, "system")
            self.noted("error" if status == "failed" else "output")

    async def _asked(self, work: Callable[..., Any], *arguments: Any) -> Any:
        with content_errors():
            return await asyncio.to_thread(work, *arguments)


def _failed(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def _ended(queued: bytes, status: str, members: Mapping[str, Any]) -> bytes:
    return to_json({**from_json(queued), **members, "status": status})
