"""Responses of a project: kept, looked up, gone on with, cancelled, deleted. Their content is sealed and kept as
long as the policy that decided their call keeps content (`gateway.batches.content.sealing`)."""

import asyncio
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import Any, Literal, TypeVar

from pydantic_core import from_json, to_json

from audit.errors import AuditUnavailable as RecordUnavailable
from audit.events.privacy import ResponseEvent
from audit.private.audit_context import AuditContext
from gateway.api_format import Earlier, Storage, Translation
from gateway.batches.content.files import DAY_S, actor_of, owner_of
from gateway.batches.content.sealing import Sealing, content_errors, seal, unseal
from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import Batches as Settings
from gateway.directory.directory import Directory
from gateway.errors import (
    AuditUnavailable,
    ContentUnavailable,
    InternalError,
    InvalidRequest,
    LimitReached,
    ObjectInUse,
    ObjectNotFound,
    PolicyDenied,
)
from gateway.identity.keys import KeyRefused
from gateway.identity.principal import Principal
from gateway.openai.finite_json import read, write
from gateway.records.batches import Owner, Sealed
from gateway.records.responses import ANSWERED, WAITING, ResponseRecord, ResponseStatus
from gateway.request.enforcement import PolicyEnforcement
from gateway.request.stages import Accepted, Parsed, Redacted
from gateway.responses.response_items import input_items, is_response_id, referenced, response_of, spliced, turn
from gateway.store.batches.responses import StoredResponses
from policy.reason import Reason

T = TypeVar("T")
NO_RESPONSE = "There is no such response in this project; it was not kept, was deleted, or its time is over"
MAX_TURNS = 1000
"""Turns of a conversation that is continued."""
SCOPE = "responses"
RETRY_S = 60.0
Kind = Literal["response.queued", "response.read", "response.cancelled", "response.deleted", "response.ended"]


@dataclass(frozen=True, slots=True)
class OpenedResponse:
    """A kept response. `asked`: ``input``, its items; of one in the background also the ``body`` and ``subject`` of its
    call. `answered`: the response as clients get it."""

    record: ResponseRecord
    asked: Mapping[str, Any]
    answered: bytes


@dataclass(frozen=True, slots=True)
class Responses:
    """`gateway.request.answer.kept_responses.KeptResponses`, and what the routes do. `queued`: called when there is
    work."""

    context: AuditContext
    stored: StoredResponses
    sealing: Sealing
    enforcement: PolicyEnforcement
    directory: Directory
    settings: Settings
    bounds: Bounds
    queued: Callable[[], None] = lambda: None
    now: Callable[[], float] = time

    # --- for the pipeline ------------------------------------------------------------------------------------------

    async def expanded(self, principal: Principal, raw: bytes) -> tuple[bytes, Earlier]:
        """As `KeptResponses.expanded`."""
        owner, body = owner_of(principal), await asyncio.to_thread(read, raw)
        previous = body.get("previous_response_id")
        earlier = await self._conversation(owner, previous) if isinstance(previous, str) else []
        known = await self._items(owner, set(referenced(body)))
        made, about = spliced(body, earlier, known)
        whole = await asyncio.to_thread(write, made)
        if len(whole) > self.bounds.now.max_body_bytes:
            raise self._too_long()
        return whole, about

    async def keep(self, accepted: Accepted, answer: bytes) -> None:
        """As `KeptResponses.keep`."""
        request = accepted.request
        storage, days = _storage(request), accepted.routed.redacted.allowed.retention.content_days
        asked, status = await asyncio.to_thread(_kept_call, request, storage.response, answer)
        await self._add(request, storage, days, status, asked, answer)

    async def discard(self, accepted: Accepted) -> None:
        """As `KeptResponses.discard`. What fails here is done by the next run of retention."""
        owner, response = owner_of(accepted.request.principal), _storage(accepted.request).response
        with suppress(ContentUnavailable, ObjectInUse):
            await self._deleted(owner, response)

    async def queue(self, redacted: Redacted) -> bytes:
        """As `KeptResponses.queue`."""
        request, principal = redacted.request, redacted.request.principal
        storage, answer = _storage(request), _translation(redacted.translation).waiting()
        if request.client.batch is not None:
            raise InvalidRequest(
                "background: a line of a batch is answered later anyway; leave it out",
                param="background",
                code="unsupported_parameter",
            )
        await self._require_key(principal)
        if await self._asked(self.stored.waiting, principal.tenant) >= self.settings.max_waiting:
            raise self._too_many()
        asked = await asyncio.to_thread(_queued_call, request, storage.response)
        await self.record("response.queued", owner_of(principal), storage.response, "queued", actor_of(principal))
        await self._add(request, storage, redacted.allowed.retention.content_days, "queued", asked, answer)
        self.queued()
        return answer

    async def _add(
        self, request: Parsed, storage: Storage, days: int, status: ResponseStatus, asked: bytes, answer: bytes
    ) -> None:
        owner, response, now = owner_of(request.principal), storage.response, self.now()
        keys = await self.sealing.lend(owner.tenant, response, {request.subject})
        key = keys[request.subject]
        earlier = storage.earlier
        record = ResponseRecord(
            response,
            owner,
            request.principal.key_id,
            storage.background,
            status,
            earlier.response if earlier is not None else None,
            now,
            now + days * DAY_S,
            key.id,
            seal(key.id, key.cipher, asked_place(response), asked).content,
            seal(key.id, key.cipher, answered_place(response), answer).content,
        )
        try:
            if not storage.background:
                await self._asked(self.stored.add, record)
            elif not await self._asked(self.stored.queue, record, self.settings.max_waiting):
                raise self._too_many()
        except BaseException:
            with suppress(ContentUnavailable, ObjectInUse):
                await asyncio.shield(self.sealing.release(owner.tenant, response))
            raise

    async def _require_key(self, principal: Principal) -> None:
        """Raises PolicyDenied for a machine's token, which may end before the response's turn comes."""
        try:
            await self.directory.authenticate_stored(principal.key_id)
        except KeyRefused:
            because = "a response in the background may be answered after the caller's token ended; use an API key"
            raise PolicyDenied([Reason("background.key", None, because)]) from None

    # --- for the routes --------------------------------------------------------------------------------------------

    async def get(self, principal: Principal, response: str) -> bytes:
        """The response; that it was read is on record. Raises ObjectNotFound, also for another project's, and
        PolicyDenied."""
        found = await self._found(principal, response)
        await self.record("response.read", found.record.owner, response, found.record.status, actor_of(principal))
        return await asyncio.to_thread(_shown, found)

    async def items(self, principal: Principal, response: str) -> list[dict[str, Any]]:
        """What the response was made from, in order: the turns before, as far as they are kept, and its own input.
        Raises as `get`."""
        found = await self._found(principal, response)
        owner, previous = found.record.owner, found.record.previous
        await self.record("response.read", owner, response, found.record.status, actor_of(principal))
        before = await self._turns(owner, previous) if previous is not None else []
        return [*(item for each in before for item in turn(*each)), *found.asked["input"]]

    async def cancel(self, principal: Principal, response: str) -> bytes:
        """The response as it is then; one that is over stays as it is. Raises as `get`; InvalidRequest for one that is
        not in the background."""
        found = await self._found(principal, response)
        record = found.record
        if not record.background:
            raise InvalidRequest(
                "This response was not made in the background and cannot be cancelled; make it with background: true",
                param="id",
                code="invalid_value",
            )
        if record.status in WAITING:
            await self.record("response.cancelled", record.owner, response, "cancelled", actor_of(principal))
            ended = await asyncio.to_thread(_changed, found.answered, {"status": "cancelled"})
            sealed = await self.sealed(record, ended)
            if sealed is not None:
                await self._asked(self.stored.end, record.owner, response, "cancelled", sealed)
            self.queued()
            found = await self._found(principal, response)
        return await asyncio.to_thread(_shown, found)

    async def delete(self, principal: Principal, response: str) -> None:
        """Raises as `get`; ObjectInUse for one that is not over, or that a legal hold covers."""
        record = (await self._found(principal, response)).record
        if record.status in WAITING:
            raise ObjectInUse(f"The response is {record.status}; cancel it first, or wait for its end")
        if await self.sealing.is_held(record.owner.tenant, response):
            raise ObjectInUse("A legal hold covers this response; it can be deleted once the hold is released")
        await self.record("response.deleted", record.owner, response, record.status, actor_of(principal))
        await self._deleted(record.owner, response)

    async def _deleted(self, owner: Owner, response: str) -> None:
        if await self._asked(self.stored.hide, owner, response):
            await self.sealing.release(owner.tenant, response)
            await self._asked(self.stored.purge, [response])

    async def _found(self, principal: Principal, response: str) -> OpenedResponse:
        self.enforcement.check_access(principal, SCOPE)
        owner = owner_of(principal)
        record = await self._asked(self.stored.get, owner, response, self.now()) if is_response_id(response) else None
        found = None if record is None else await self.opened(record)
        if found is None:
            raise ObjectNotFound(NO_RESPONSE, param="id")
        return found

    # --- for both, and for the worker ------------------------------------------------------------------------------

    async def opened(self, record: ResponseRecord) -> OpenedResponse | None:
        """None where its key is gone: its content was erased, or may not be used."""
        [found] = await self._all_opened([record])
        return found

    async def sealed(self, record: ResponseRecord, answered: bytes) -> bytes | None:
        """`answered` sealed as the answer of `record`; None where its key is gone."""
        cipher = (await self.sealing.opened(record.owner.tenant, [record.data_key])).get(record.data_key)
        return None if cipher is None else seal(record.data_key, cipher, answered_place(record.id), answered).content

    async def record(self, kind: Kind, owner: Owner, response: str, status: str, actor: str) -> None:
        """Raises AuditUnavailable."""
        event = ResponseEvent(
            type=kind, tenant=owner.tenant, project=owner.project, actor=actor, response_id=response, status=status
        )
        try:
            await self.context.record(event)
        except RecordUnavailable as error:
            raise AuditUnavailable("This cannot be recorded, so it is not done; try again later") from error

    async def _conversation(self, owner: Owner, previous: str) -> list[dict[str, Any]]:
        """The items up to and with the response `previous`. Raises ObjectNotFound where a turn of it is not kept,
        InvalidRequest for one that is not over or too long."""
        found = await self._turns(owner, previous, whole=True)
        return [item for each in found for item in turn(*each)]

    async def _turns(
        self, owner: Owner, previous: str, *, whole: bool = False
    ) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """What was asked and answered, the oldest first. `whole`: raise where any is absent, not over, or too much."""
        most_bytes = 4 * self.bounds.now.max_body_bytes  # a response repeats what was asked beside its items
        records = []
        if is_response_id(previous):
            records = await self._asked(self.stored.chain, owner, previous, self.now(), MAX_TURNS, most_bytes)
        size = sum(len(each.asked) + len(each.answered or b"") for each in records)
        if whole and (len(records) > MAX_TURNS or size > most_bytes):
            raise self._too_long()
        opened = await self._all_opened(records)
        if whole:
            _check_whole(records, opened)
        kept = []
        for each in opened:
            if each is None:
                break
            kept.append((each.asked, from_json(each.answered)))
        return kept[::-1]

    async def _items(self, owner: Owner, names: Set[str]) -> dict[str, Mapping[str, Any]]:
        """The items of these ids, as far as they are kept. Raises InvalidRequest for too many or too large ones."""
        known: dict[str, Mapping[str, Any]] = {}
        responses, size = {response for name in names if (response := response_of(name)) is not None}, 0
        for response in responses:
            record = await self._asked(self.stored.get, owner, response, self.now())
            if record is None:
                continue
            size += len(record.asked) + len(record.answered or b"")
            if len(responses) > MAX_TURNS or size > 4 * self.bounds.now.max_body_bytes:
                raise self._too_long("input")
            if (found := await self.opened(record)) is not None:
                wanted = (item for item in turn(found.asked, from_json(found.answered)) if item["id"] in names)
                known |= {item["id"]: item for item in wanted}
        return known

    async def _all_opened(self, records: list[ResponseRecord]) -> list[OpenedResponse | None]:
        """Open all values of one tenant."""
        if not records:
            return []
        ciphers = await self.sealing.opened(records[0].owner.tenant, {each.data_key for each in records})
        opened = []
        for record in records:
            asked = unseal(ciphers, asked_place(record.id), Sealed(record.data_key, record.asked))
            answered = unseal(ciphers, answered_place(record.id), Sealed(record.data_key, record.answered or b""))
            is_gone = asked is None or answered is None
            opened.append(None if is_gone else OpenedResponse(record, from_json(asked or b""), answered or b""))
        return opened

    def _too_long(self, param: str = "previous_response_id") -> InvalidRequest:
        return InvalidRequest(
            f"{param}: with the turns before it the body is larger than {self.bounds.now.max_body_bytes} bytes, the"
            f" limit of this gateway, or has more than {MAX_TURNS} turns; begin a new conversation",
            param=param,
            code="invalid_value",
        )

    def _too_many(self) -> LimitReached:
        return LimitReached(
            f"{self.settings.max_waiting} responses of this tenant wait in the background; wait for one to end",
            code="too_many_responses",
            retry_after_s=RETRY_S,
        )

    async def _asked(self, work: Callable[..., T], *arguments: Any) -> T:
        with content_errors():
            return await asyncio.to_thread(work, *arguments)


def asked_place(response: str) -> str:
    """What the sealed call is bound to."""
    return f"{response}|asked"


def answered_place(response: str) -> str:
    return f"{response}|answered"


def _storage(request: Parsed) -> Storage:
    storage = _translation(request.call.translation).storage
    if storage is None:
        raise InternalError("A call of an API without storage was about to be kept; nothing was kept")
    return storage


def _translation(translation: Translation | None) -> Translation:
    if translation is None:
        raise InternalError("A call without storage was about to be kept; nothing was kept")
    return translation


def _check_whole(records: list[ResponseRecord], opened: list[OpenedResponse | None]) -> None:
    """Raises ObjectNotFound where a turn is not kept any more, InvalidRequest where one has no answer."""
    if not records or records[-1].previous is not None or None in opened:
        raise ObjectNotFound(
            "previous_response_id: there is no such response in this project; it, or one that it continues, was not"
            " kept, was deleted, or its time is over",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    for each in records:
        if each.status not in ANSWERED:
            raise InvalidRequest(
                f"previous_response_id: that response is {each.status} and has no answer; wait for one, or continue"
                " the one before it",
                param="previous_response_id",
                code="invalid_value",
            )


def _own_input(request: Parsed, response: str) -> list[dict[str, Any]]:
    """The items that the call itself brought."""
    value, earlier = read(request.call.raw)["input"], _storage(request).earlier
    if earlier is not None:
        value = value[earlier.items :]
    return input_items(response, value, request.principal.state_secret)


def _kept_call(request: Parsed, response: str, answer: bytes) -> tuple[bytes, ResponseStatus]:
    asked = to_json({"input": _own_input(request, response)}, inf_nan_mode="null")  # in what no model is shown
    return asked, from_json(answer)["status"]


def _queued_call(request: Parsed, response: str) -> bytes:
    body, earlier = read(request.call.raw), _storage(request).earlier
    if earlier is not None:  # the turns before are put in again when its turn comes
        body["input"] = body["input"][earlier.items :]
        if earlier.response is not None:
            body["previous_response_id"] = earlier.response
    asked = {"input": _own_input(request, response), "body": body, "subject": request.subject}
    return to_json(asked, inf_nan_mode="null")


def _changed(answered: bytes, members: Mapping[str, Any]) -> bytes:
    return to_json({**from_json(answered), **members})


def _shown(found: OpenedResponse) -> bytes:
    """The response as it is now: one that waits has only its status changed meanwhile."""
    if found.record.status in WAITING:
        return _changed(found.answered, {"status": found.record.status})
    return found.answered
