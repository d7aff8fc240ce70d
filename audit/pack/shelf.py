"""Evidence packs created, verified and provided in the background, each with a stored state.

A pack has its own folder FOLDER/TENANT/ID with `state.json` and `pack.zip`. The process that creates or verifies it
holds the folder's lock, so that other processes on the machine see whether work is in progress; the lock ends with the
process. These packs contain no private values and are removed after KEPT_DAYS.
"""

import asyncio
import json
import logging
import re
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from audit.errors import AuditError
from audit.events.stamp import rfc3339
from audit.files.folder_lock import FolderInUse, lock_folder_now
from audit.files.new_file import replace_file
from audit.incidents.pack_inputs import Evidence
from audit.keys.signer import key_of
from audit.pack.export import Summary, export
from audit.pack.program import program
from audit.private.audit_context import AuditContext
from audit.tree.note import VerifierKey
from audit.witness.anchor_attestations import AnchorAttestation

logger = logging.getLogger("domicile.audit")

KEPT_DAYS: Final = 7
KEPT_PACKS: Final = 10
"""Most packs of a tenant; the oldest is removed for a new one."""
VERIFY_TIMEOUT_S: Final = 1800
SHOWN_FINDINGS: Final = 20
PROGRESS_EVERY_S: Final = 1.0
_ID: Final = re.compile(r"[0-9a-f-]{36}")
_DAY_MS: Final = 86_400_000


class PackUnknown(AuditError):
    """The pack does not exist, or not any more."""


class PackBusy(AuditError):
    """The request has to wait for work in progress."""


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True)


class Verification(_Plain):
    """Result of ``verify.py``. `ok` is None while it runs, and if it gave no result, for the reason `why`. `findings`:
    the first of `faults`. `at`: time of its end."""

    ok: bool | None = None
    faults: int = 0
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    records: int = 0
    at: str | None = None
    why: str = ""


class PackState(_Plain):
    """A pack. `done`: records written so far. `first`, `end`: range of its records. `missing`: information that a law
    requires and no register has. `why`: reason of a failure. Times in RFC 3339."""

    id: str
    tenant: str
    state: Literal["making", "made", "failed"]
    asked_at: str
    asked_ms: int
    actor: str
    reason: str
    since: str | None = None
    until: str | None = None
    done: int = 0
    first: int = 0
    end: int = 0
    checkpoint_size: int = 0
    size_bytes: int = 0
    sha256: str = ""
    policies_unknown: int = 0
    missing: tuple[str, ...] = ()
    why: str = ""
    verification: Verification | None = None


@dataclass(slots=True)
class PackShelf:
    """The packs in `folder`. `evidence` returns the registers of a tenant, `attestations` the external attestations of
    the log. Both may block."""

    folder: Path
    context: AuditContext
    evidence: Callable[[str], Evidence] = lambda tenant: Evidence()
    attestations: Callable[[], list[AnchorAttestation]] = list
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _closing: bool = False

    def packs(self, tenant: str) -> list[PackState]:
        """Return the packs of a tenant, newest first, after removing expired ones. Raises OSError."""
        found = sorted(self._states(tenant), key=lambda one: one.asked_ms, reverse=True)
        old = self.context.now() - KEPT_DAYS * _DAY_MS
        kept = []
        for place, one in enumerate(found):
            if (one.asked_ms < old or place >= KEPT_PACKS) and self._removed(one):
                continue
            kept.append(one)
        return kept

    def pack(self, tenant: str, pack_id: str) -> PackState:
        """Return the state of a pack. Raises PackUnknown."""
        found = next((one for one in self.packs(tenant) if one.id == pack_id), None)
        if found is None:
            raise PackUnknown(
                f"there is no evidence pack {pack_id!r} of {tenant!r}; look it up in the list, or make it"
            )
        return found

    def file(self, tenant: str, pack_id: str) -> Path:
        """Return the path of a complete pack's zip file. Raises PackUnknown, and PackBusy if it is not complete."""
        found = self.pack(tenant, pack_id)
        if found.state != "made":
            raise PackBusy(f"the pack is not ready ({found.state}); wait until it is, or make another")
        return self._place(tenant, pack_id) / "pack.zip"

    async def make(self, tenant: str, *, since: str | None, until: str | None, actor: str, reason: str) -> PackState:
        """Start to create a pack and return its state at once. Raises PackBusy while another pack of the tenant is
        created, and OSError."""
        if any(one.state == "making" for one in await asyncio.to_thread(self.packs, tenant)):
            raise PackBusy(f"a pack of {tenant!r} is being made; wait until it is done")
        now = self.context.now()
        state = PackState(
            id=self.context.new_id(),
            tenant=tenant,
            state="making",
            asked_at=rfc3339(now),
            asked_ms=now,
            actor=actor,
            reason=reason,
            since=since,
            until=until,
        )
        await self._begin(state, self._make(state))
        return state

    async def verify(self, tenant: str, pack_id: str) -> PackState:
        """Start to verify a complete pack and return its state at once. Raises PackUnknown, PackBusy, OSError."""
        await asyncio.to_thread(self.file, tenant, pack_id)
        state = await asyncio.to_thread(self.pack, tenant, pack_id)
        if state.verification is not None and state.verification.at is None:
            raise PackBusy("the pack is being verified; wait for the verdict")
        state = state.model_copy(update={"verification": Verification()})
        await self._begin(state, self._verify(state))
        return state

    async def close(self) -> None:
        """Stop running work, within a thousand records. A pack that was being created has failed then."""
        self._closing = True
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self, state: PackState, work: Coroutine[Any, Any, PackState]) -> None:
        """Run `work` while holding the pack's lock. It returns the pack's final state."""
        locked = asyncio.get_running_loop().create_future()
        place = self._place(state.tenant, state.id)

        async def run() -> None:
            try:
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
                with lock_folder_now(place):
                    self._write(state)
                    locked.set_result(None)
                    self._write(await work)
            except FolderInUse as error:
                locked.set_exception(PackBusy(f"the pack is in work: {error}"))
            except OSError as error:
                if locked.done():
                    logger.error(
                        "the state of evidence pack %s cannot be written: %s; check the folder and its room",
                        state.id,
                        error,
                    )
                else:
                    locked.set_exception(error)
            finally:
                work.close()

        task = asyncio.create_task(run(), name=f"evidence pack {state.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await locked

    async def _make(self, state: PackState) -> PackState:
        def tell(done: int) -> None:
            if self._closing:
                raise PackBusy("the gateway stops; make the pack again once it runs")
            if written.is_due():
                self._write(state.model_copy(update={"done": done}))

        written = _Progress(tell)
        target = self._place(state.tenant, state.id) / "pack.zip"
        try:
            evidence = await asyncio.to_thread(self.evidence, state.tenant)
            attestations = await asyncio.to_thread(self.attestations)
            made = await export(
                self.context,
                state.tenant,
                target,
                since=state.since,
                until=state.until,
                evidence=evidence,
                attestations=attestations,
                actor=state.actor,
                progress=written.add,
                pack_id=state.id,
                reason=state.reason,
            )
            size, digest = await asyncio.to_thread(_digest, target)
        except AuditError as error:
            return state.model_copy(update={"state": "failed", "why": str(error)})
        except Exception:
            logger.exception("an evidence pack could not be made; report it with what follows, and make the pack again")
            return state.model_copy(
                update={"state": "failed", "why": "an internal error; see the gateway's log, and make it again"}
            )
        return _made(state, made, size, digest)

    async def _verify(self, state: PackState) -> PackState:
        """Verify a pack with the auditor's verifier in a separate process; a million records take a minute."""
        key = VerifierKey(self.context.origin(state.tenant), key_of(self.context.signer).public_key)
        target = self._place(state.tenant, state.id) / "pack.zip"
        verdict = await _run_verifier(target, str(key))
        return state.model_copy(update={"verification": verdict.model_copy(update={"at": rfc3339(self.context.now())})})

    def _place(self, tenant: str, pack_id: str) -> Path:
        if not _ID.fullmatch(pack_id):
            raise PackUnknown(f"{pack_id!r} is no id of an evidence pack; look it up in the list")
        return self.folder / tenant / pack_id

    def _write(self, state: PackState) -> None:
        replace_file(self._place(state.tenant, state.id) / "state.json", state.model_dump_json(indent=1).encode())

    def _states(self, tenant: str) -> Iterator[PackState]:
        for file in (self.folder / tenant).glob("*/state.json"):
            with suppress(OSError, ValidationError):  # removed in between, or manually
                yield self._present(file.parent, PackState.model_validate_json(file.read_bytes()))

    def _present(self, place: Path, state: PackState) -> PackState:
        """Return the state, changed to a failure if the process that worked on the pack has ended."""
        verifying = state.verification is not None and state.verification.at is None
        if state.state != "making" and not verifying:
            return state
        try:
            with lock_folder_now(place):
                pass
        except FolderInUse:
            return state
        state = PackState.model_validate_json((place / "state.json").read_bytes())  # the work may have ended in between
        if state.state == "making":
            return state.model_copy(
                update={"state": "failed", "why": "the process that made it has ended; make it again"}
            )
        if state.verification is not None and state.verification.at is None:
            return state.model_copy(update={"verification": None})
        return state

    def _removed(self, state: PackState) -> bool:
        """Remove a pack unless work on it is in progress. Returns whether it was removed."""
        place = self._place(state.tenant, state.id)
        try:
            with lock_folder_now(place):
                shutil.rmtree(place)
        except FolderInUse:
            return False
        return True


@dataclass(slots=True)
class _Progress:
    """Counts written records, and limits how often the count is stored."""

    tell: Callable[[int], None]
    done: int = 0
    told: float = field(default_factory=time.monotonic)

    def add(self, count: int) -> None:
        self.done += count
        self.tell(self.done)

    def is_due(self) -> bool:
        """Whether PROGRESS_EVERY_S seconds have passed since it was last due."""
        if time.monotonic() - self.told < PROGRESS_EVERY_S:
            return False
        self.told = time.monotonic()
        return True


def _digest(path: Path) -> tuple[int, str]:
    """Return size and SHA-256 of a file."""
    digest, size = sha256(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _made(state: PackState, made: Summary, size: int, digest: str) -> PackState:
    return state.model_copy(
        update={
            "state": "made",
            "done": made.end - made.first,
            "first": made.first,
            "end": made.end,
            "checkpoint_size": made.checkpoint_size,
            "size_bytes": size,
            "sha256": digest,
            "policies_unknown": made.policies_unknown,
            "missing": tuple(f"{one.field} ({one.article}): set it in {one.fix}" for one in made.missing),
        }
    )


async def _run_verifier(target: Path, key: str) -> Verification:
    """Return the result of ``verify.py TARGET --key KEY --json``, with the installed verifier, not the pack's."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-", str(target), "--key", key, "--json", stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )
    try:
        async with asyncio.timeout(VERIFY_TIMEOUT_S):
            said, _ = await process.communicate(program())
        report = json.loads(said)
    except TimeoutError:
        return Verification(why="it took too long; download the pack, and run the verify.py in it")
    except ValueError:
        return Verification(why="the verifier ended without a verdict; download the pack, and run the verify.py in it")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if "error" in report:
        return Verification(ok=False, faults=1, findings=(str(report["error"]),))
    findings = tuple(
        one["says"] if one["seq"] is None else f"record {one['seq']}: {one['says']}" for one in report["findings"]
    )
    return Verification(
        ok=report["ok"],
        faults=report["faults"],
        findings=findings[:SHOWN_FINDINGS],
        notes=tuple(report["notes"])[:SHOWN_FINDINGS],
        records=report["records"],
    )
