"""Evidence packs: created in the background, verified and downloaded. These packs contain no private values."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from audit.errors import AuditError
from audit.log.walk import checked_moment
from audit.pack.shelf import PackBusy, PackShelf, PackState, PackUnknown
from gateway.admin.calls.access import RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, ResponseBody
from gateway.admin.record.reading import OnRecord, ReasonCode, Record
from gateway.database.errors import Invalid, NotFound, NotReady
from gateway.identity.roles import Actor

router = APIRouter(prefix="/tenants/{tenant}/packs", tags=["record"], route_class=IdempotentRoute)

Auditor = Annotated[Actor, Depends(RequirePermission("record.read"))]
ZIP = "application/zip"


class NewPack(Body):
    """A new pack with the records from `since` to before `until` (RFC 3339 UTC, or a prefix: ``2026-03``), by default
    all. `reason`: a code, which is recorded."""

    since: str | None = None
    until: str | None = None
    reason: ReasonCode


class PackVerification(ResponseBody):
    """Result of the verifier for a pack. `ok`: null if it gave no result, and while it runs (`at` is null)."""

    ok: bool | None
    faults: int
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    records: int
    at: str | None
    why: str


class Pack(ResponseBody):
    """A pack. `done`: records written so far. `missing`: information that a law requires and no register has. `why`:
    reason of a failure."""

    id: str
    state: Literal["making", "made", "failed"]
    asked_at: str
    reason: str
    since: str | None
    until: str | None
    done: int
    first: int
    end: int
    checkpoint_size: int
    size_bytes: int
    sha256: str
    policies_unknown: int
    missing: tuple[str, ...]
    why: str
    verification: PackVerification | None


@router.get("", dependencies=[Depends(RequirePermission("record.read"))])
def list_packs(record: OnRecord, tenant: str) -> tuple[Pack, ...]:
    """List the packs of this gateway, newest first. A pack is stored for a week, and at most ten are stored."""
    with _shelf(record, tenant) as shelf:
        return tuple(_shown(one) for one in shelf.packs(tenant))


@router.post("", status_code=202)
async def create_pack(actor: Auditor, record: OnRecord, tenant: str, new: NewPack) -> Pack:
    """Start to create a pack. The export is recorded first. 409 while another pack is being created."""
    try:
        since, until = (checked_moment(moment) if moment else None for moment in (new.since, new.until))
    except AuditError as error:
        raise Invalid(str(error)) from error
    await run_in_threadpool(record.known, tenant)
    with _shelf(record) as shelf:
        return _shown(await shelf.make(tenant, since=since, until=until, actor=actor.name, reason=new.reason))


@router.get("/{pack}", dependencies=[Depends(RequirePermission("record.read"))])
def show_pack(record: OnRecord, tenant: str, pack: str) -> Pack:
    with _shelf(record, tenant) as shelf:
        return _shown(shelf.pack(tenant, pack))


@router.post("/{pack}/verify", status_code=202, dependencies=[Depends(RequirePermission("record.read"))])
async def verify_pack(record: OnRecord, tenant: str, pack: str) -> Pack:
    """Start to verify a pack with the auditor's verifier and the key of this log."""
    await run_in_threadpool(record.known, tenant)
    with _shelf(record) as shelf:
        return _shown(await shelf.verify(tenant, pack))


@router.get(
    "/{pack}/file",
    response_class=FileResponse,
    responses={200: {"content": {ZIP: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def download_pack(actor: Auditor, record: OnRecord, tenant: str, pack: str) -> FileResponse:
    """Download the zip file. The download is recorded first. 422 for a pack that is not complete."""

    def found() -> tuple[Path, PackState]:
        with _shelf(record, tenant) as shelf:
            state = shelf.pack(tenant, pack)
            if state.state != "made":
                raise Invalid(f"the pack is not complete (state: {state.state}); wait until it is, or create another")
            return shelf.file(tenant, pack), state

    file, state = await run_in_threadpool(found)
    await record.note_read(tenant, state.first, state.end, actor.name, "pack.downloaded")
    return FileResponse(file, media_type=ZIP, filename=f"evidence-{tenant}-{pack}.zip")


@contextmanager
def _shelf(record: Record, tenant: str | None = None) -> Iterator[PackShelf]:
    """Yield the shelf, and map its errors to NotFound, NotReady and Invalid. Checks that `tenant` exists, if given."""
    if tenant is not None:
        record.known(tenant)
    if record.context.packs is None:
        raise NotReady(
            "this process creates no evidence packs; send the call to a gateway, or run `domicile audit export`"
        )
    try:
        yield record.context.packs
    except PackUnknown as error:
        raise NotFound(str(error)) from error
    except PackBusy as error:
        raise NotReady(str(error)) from error
    except OSError as error:
        raise NotReady(
            f"the folder of evidence packs cannot be used: {error.strerror}; check its owner and room"
        ) from error


def _shown(state: PackState) -> Pack:
    return Pack.model_validate(state.model_dump(include=set(Pack.model_fields)))
