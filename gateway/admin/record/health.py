"""The health of the record: its size, what is signed, whether it verifies, and that one state grew out of another."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from audit.errors import ProofError, VerificationFailed
from audit.log.walk import size_of
from audit.storage.store import Reader
from audit.tree.checkpoint import Checkpoint, open_checkpoint
from audit.tree.merkle import consistency_proof, tree_hash, verify_consistency
from audit.verification.verify import verify_log
from gateway.admin.calls.access import RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import ResponseBody, Whole
from gateway.admin.record.reading import OnRecord, Record, refusing
from gateway.database.errors import NotFound
from gateway.identity.roles import Actor

router = APIRouter(prefix="/tenants/{tenant}/record", tags=["record"], route_class=IdempotentRoute)

Reading = Depends(RequirePermission("record.read"))
Size = Annotated[Whole | None, Query(ge=1, le=2**53 - 1, description="of a signed checkpoint")]
SHOWN = 30


class SignedState(ResponseBody):
    """One checkpoint: how many records it covers, and the note as it was signed."""

    size: int
    note: str


class Health(ResponseBody):
    """`signed`: records under the last checkpoint; `checkpoints`: the newest ones, newest first; `key`: the verifier
    key of the log; `open_calls`: calls that are accepted and not closed."""

    records: int
    signed: int
    open_calls: int
    key: str
    origin: str
    checkpoints: tuple[SignedState, ...]


class Finding(ResponseBody):
    severity: str
    message: str


class Verdict(ResponseBody):
    """What verifying the whole tree of the tenant found, record by record. `errors` counts all, `findings` names the
    first of each kind."""

    ok: bool
    records: int
    signed: int
    errors: int
    findings: tuple[Finding, ...]


class Consistency(ResponseBody):
    """That the log of `new` records begins with the `old` ones, unchanged: RFC 6962 hashes in hexadecimal."""

    old: int
    new: int
    old_root: str
    new_root: str
    proof: tuple[str, ...]


@router.get("", dependencies=[Reading])
def show_record(record: OnRecord, tenant: str) -> Health:
    record.known(tenant)
    with refusing(), record.reading() as reader:
        size = size_of(reader, tenant)
        signed = reader.checkpoints(tenant) if size else ()
        notes = [SignedState(size=one.size, note=one.note) for one in signed][-SHOWN:]
        return Health(
            records=size,
            signed=notes[-1].size if notes else 0,
            open_calls=len(reader.open_intents(tenant)) if size else 0,
            key=str(record.verifier),
            origin=record.audit.origin(tenant),
            checkpoints=tuple(notes[::-1]),
        )


@router.post("/verify")
def verify_record(
    actor: Annotated[Actor, Depends(RequirePermission("record.read"))], record: OnRecord, tenant: str
) -> Verdict:
    """Rebuild the tenant's tree from its records and compare it with what was signed. It takes a minute for a million
    records; nothing of them is shown."""
    record.known(tenant)
    with refusing(), record.reading() as reader:
        if not size_of(reader, tenant):
            raise NotFound(f"tenant {tenant!r} has no record yet; try again after its first call")
        report = verify_log(reader, record.key(reader), tenants=[tenant])
    tree = report.trees[0]
    findings = tuple(Finding(severity=one.severity, message=one.says) for one in report.findings)
    return Verdict(ok=report.ok, records=tree.records, signed=tree.signed, errors=report.errors, findings=findings)


@router.get("/consistency", dependencies=[Reading])
def prove_consistency(record: OnRecord, tenant: str, old: Size = None, new: Size = None) -> Consistency:
    """Prove that the record only grew between two signed checkpoints (RFC 6962 §2.1.2), by default from the first to
    the last. 404 for a size that was not signed, 422 where it does not hold."""
    record.known(tenant)
    with refusing(), record.reading() as reader:
        first, second = _signed(record, reader, tenant, old, 0), _signed(record, reader, tenant, new, -1)
        old, new = first.size, second.size

        def range_hash(start: int, end: int) -> bytes:
            return tree_hash(reader.leaf_hashes(tenant, start, end))

        try:
            proof = consistency_proof(old, new, range_hash)
            verify_consistency(old, new, proof, first.root, second.root)
        except ProofError as error:
            raise VerificationFailed(
                f"the log of {new} records does not begin with the one of {old}: {error}"
                "; keep a copy of the log, and run `domicile audit verify`"
            ) from error
    return Consistency(
        old=old, new=new, old_root=first.root.hex(), new_root=second.root.hex(), proof=tuple(one.hex() for one in proof)
    )


def _signed(record: Record, reader: Reader, tenant: str, size: int | None, otherwise: int) -> Checkpoint:
    """The checkpoint of `size`, or, without one, the one at `otherwise` in the order of sizes."""
    known = reader.checkpoints(tenant) if size_of(reader, tenant) else ()
    notes = [one.note for one in known if size in (None, one.size)]
    if not notes:
        raise NotFound("no checkpoint of that size was signed; choose one of those that are listed")
    return open_checkpoint(notes[otherwise], record.audit.origin(tenant), record.key(reader).public_keys)
