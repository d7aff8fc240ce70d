"""Batches of a project: create, look up, cancel. The worker does the rest (`gateway.batches.work.worker`)."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from time import time
from typing import Any, TypeVar

from audit.errors import AuditUnavailable as RecordUnavailable
from audit.private.audit_context import AuditContext
from gateway.batches.content.files import DAY_S, Files, actor_of, owner_of
from gateway.batches.content.sealing import Sealing, content_errors, seal, unseal
from gateway.batches.objects import PURPOSE, WINDOW_S, NewBatch, is_batch_id
from gateway.configuration.settings import Batches as Settings
from gateway.directory.directory import Directory
from gateway.errors import AuditUnavailable, InvalidRequest, LimitReached, ObjectInUse, ObjectNotFound, PolicyDenied
from gateway.identity.keys import KeyRefused
from gateway.identity.principal import Principal
from gateway.records.batches import BatchRecord, Owner, batch_event
from gateway.request.enforcement import PolicyEnforcement
from gateway.store.batches.batches import OPEN, StoredBatches
from policy.reason import Reason

T = TypeVar("T")
NO_BATCH = "There is no such batch in this project; GET /v1/batches lists them"
RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class Batches:
    """`created`: called when there is work."""

    context: AuditContext
    stored: StoredBatches
    files: Files
    sealing: Sealing
    enforcement: PolicyEnforcement
    directory: Directory
    settings: Settings
    new_id: Callable[[], str]
    created: Callable[[], None] = lambda: None
    now: Callable[[], float] = time

    async def create(self, principal: Principal, new: NewBatch) -> tuple[BatchRecord, dict[str, Any]]:
        """The batch and what is sealed of it.

        Raises InvalidRequest, ObjectNotFound, PolicyDenied, LimitReached, ContentUnavailable, AuditUnavailable.
        """
        kept_s = self.enforcement.content_days(principal) * DAY_S
        await self._require_key(principal)
        endpoints = principal.scopes.endpoints
        if endpoints is not None and new.endpoint.removeprefix("/v1/") not in endpoints:
            raise PolicyDenied([Reason("key.scope", None, "this key is not for that endpoint")])
        owner, now = owner_of(principal), self.now()
        file = await self.files.get(owner, new.input_file_id)
        if file.purpose != PURPOSE:
            raise InvalidRequest(
                "input_file_id is not a file of purpose batch; upload the requests with that purpose",
                param="input_file_id",
                code="invalid_file",
            )
        id_ = f"batch_{self.new_id()}"
        said: dict[str, Any] = {"metadata": new.metadata}
        if new.output_expires_after is not None:
            kept_s = min(kept_s, float(new.output_expires_after.seconds))
            said["output_seconds"] = new.output_expires_after.seconds
        await self.sealing.share(owner.tenant, file.id, id_)
        [key] = (await self.sealing.lend(owner.tenant, about(id_))).values()
        batch = BatchRecord(
            id_,
            owner,
            principal.key_id,
            new.endpoint,
            file.id,
            "validating",
            now,
            now + WINDOW_S,
            now + WINDOW_S + kept_s,
            seal(key.id, key.cipher, about(id_), json.dumps(said).encode()),
            total=0,
        )
        await self.record("batch.created", batch, actor_of(principal))
        if not await self._asked(self.stored.add, batch, self.settings.max_active):
            await self.forget(batch)
            raise LimitReached(
                f"{self.settings.max_active} batches of this tenant are not over yet; wait for one to end",
                code="too_many_batches",
                retry_after_s=RETRY_S,
            )
        self.created()
        return batch, said

    async def _require_key(self, principal: Principal) -> None:
        """Raises PolicyDenied for a machine's token, which ends long before a batch does."""
        try:
            await self.directory.authenticate_stored(principal.key_id)
        except KeyRefused:
            because = "a batch continues after the caller's token has expired; create it with an API key"
            raise PolicyDenied([Reason("batch.key", None, because)]) from None

    async def get(self, owner: Owner, id_: str) -> tuple[BatchRecord, dict[str, Any]]:
        """Raises ObjectNotFound, also for another project's."""
        found = await self._asked(self.stored.get, owner, id_) if is_batch_id(id_) else None
        if found is None:
            raise ObjectNotFound(NO_BATCH, param="id")
        return found, (await self.said([found]))[0]

    async def page(self, owner: Owner, after: str | None, limit: int) -> tuple[list[BatchRecord], bool]:
        known = after is None or is_batch_id(after)
        found = await self._asked(lambda: self.stored.page(owner, after=after, limit=limit)) if known else None
        if found is None:
            raise ObjectNotFound(NO_BATCH, param="after")
        return found

    async def cancel(self, principal: Principal, id_: str) -> tuple[BatchRecord, dict[str, Any]]:
        """Raises ObjectNotFound; ObjectInUse for a batch that is over, or about to be."""
        owner = owner_of(principal)
        before, said = await self.get(owner, id_)
        if before.status not in (*OPEN, "cancelling"):
            raise ObjectInUse(f"The batch is {before.status} and cannot be cancelled; its files have what was done")
        if before.status in OPEN:
            await self.record("batch.cancelled", before, actor_of(principal))
        found = await self._asked(self.stored.cancel, owner, id_, self.now())
        return (found or before), said

    async def said(self, batches: list[BatchRecord]) -> list[dict[str, Any]]:
        """What is sealed of each of a tenant's batches: metadata and errors. Empty where the key is gone."""
        if not batches:
            return []
        ciphers = await self.sealing.opened(batches[0].owner.tenant, {batch.sealed.data_key for batch in batches})
        opened = (unseal(ciphers, about(batch.id), batch.sealed) for batch in batches)
        return [json.loads(content) if content else {} for content in opened]

    async def workable(self, tenant: str) -> list[BatchRecord]:
        """Batches of the tenant that are not over and whose keys are in this value store, the oldest first. Where hosts
        share the control database and not the value store, each works what was uploaded to it."""
        found = await self._asked(self.stored.active, tenant, self.settings.max_active)
        ciphers = await self.sealing.opened(tenant, {batch.sealed.data_key for batch in found}) if found else {}
        return [batch for batch in found if batch.sealed.data_key in ciphers]

    async def forget(self, batch: BatchRecord) -> None:
        """Let go of its keys."""
        for holder in (batch.id, about(batch.id)):
            await self.sealing.release(batch.owner.tenant, holder)

    async def record(self, kind: str, batch: BatchRecord, actor: str) -> None:
        """Raises AuditUnavailable."""
        try:
            await self.context.record(batch_event(kind, batch, actor))
        except RecordUnavailable as error:
            raise AuditUnavailable("This cannot be recorded, so it is not done; try again later") from error

    async def _asked(self, work: Callable[..., T], *arguments: Any) -> T:
        with content_errors():
            return await asyncio.to_thread(work, *arguments)


def about(batch: str) -> str:
    """Holder and place of what is sealed of the batch itself."""
    return f"{batch}/about"
