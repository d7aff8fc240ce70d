"""Health of the audit record: size, signed checkpoints, verification, consistency proofs and external attestations."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from audit.errors import ProofError, VerificationFailed
from audit.log.walk import checked_moment, first_at, size_of
from audit.registers.registers import last_selftests
from audit.storage.store import Reader, SignedCheckpoint
from audit.tree.merkle import consistency_proof, tree_hash, verify_consistency
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint
from audit.verification.verify import verify_log
from audit.witness.anchor import anchored_digests, digest, prove
from audit.witness.anchor_attestations import attested_by
from gateway.admin.calls.access import RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import ResponseBody, Whole
from gateway.admin.record.reading import OnRecord, Record, refusing
from gateway.database.errors import Invalid, NotFound
from gateway.identity.roles import Actor

router = APIRouter(prefix="/tenants/{tenant}/record", tags=["record"], route_class=IdempotentRoute)

Reading = Depends(RequirePermission("record.read"))
Size = Annotated[Whole | None, Query(ge=1, le=2**53 - 1, description="of a signed checkpoint")]
Moment = Annotated[
    str | None, Query(max_length=32, description="RFC 3339 UTC or a prefix of it; only earlier records count")
]
SHOWN = 30
ANCHORS_TRIED = 1000
"""Newest checkpoints that are looked up in the anchor tree; anchoring is less frequent than signing."""


class SignedState(ResponseBody):
    """A checkpoint: the number of records that it covers, and its signed note."""

    size: int
    note: str


class Health(ResponseBody):
    """State of a tenant's log. `signed`: records under the last checkpoint. `checkpoints`: the newest ones, newest
    first. `key`: verifier key of the log. `open_calls`: accepted calls that have not ended."""

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
    """Result of the verification of every record of the tenant's tree. `errors`: number of all errors. `findings`: the
    first error of each kind."""

    ok: bool
    records: int
    signed: int
    errors: int
    findings: tuple[Finding, ...]


class Consistency(ResponseBody):
    """Proof that the log of `new` records begins with the same `old` records: RFC 6962 hashes in hexadecimal."""

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
        signed = reader.newest_checkpoints(tenant, SHOWN) if size else ()
        notes = [SignedState(size=one.size, note=one.note) for one in signed]
        return Health(
            records=size,
            signed=notes[0].size if notes else 0,
            open_calls=len(reader.open_intents(tenant)) if size else 0,
            key=str(record.verifier),
            origin=record.audit.origin(tenant),
            checkpoints=tuple(notes),
        )


@router.post("/verify")
def verify_record(
    actor: Annotated[Actor, Depends(RequirePermission("record.read"))], record: OnRecord, tenant: str
) -> Verdict:
    """Rebuild the tenant's tree from its records and compare it with the signed checkpoints. This takes a minute for a
    million records. The response contains no records."""
    record.known(tenant)
    with refusing(), record.reading() as reader:
        if not size_of(reader, tenant):
            raise NotFound(f"tenant {tenant!r} has no record yet; try again after its first call")
        report = verify_log(reader, record.key(reader), tenants=[tenant])
    tree = report.trees[0]
    findings = tuple(Finding(severity=one.severity, message=one.says) for one in report.findings)
    return Verdict(ok=report.ok, records=tree.records, signed=tree.signed, errors=report.errors, findings=findings)


@router.get("/consistency", dependencies=[Reading])
def prove_consistency(
    record: OnRecord,
    tenant: str,
    old: Size = None,
    new: Size = None,
    since: Moment = None,
    until: Moment = None,
) -> Consistency:
    """Prove that records were only appended between two signed checkpoints (RFC 6962 §2.1.2), by default the first and
    the last. A checkpoint is given by its size, or by a time: the last checkpoint without later records. 404 if there
    is no such checkpoint, 422 if the proof fails."""
    record.known(tenant)
    with refusing(), record.reading() as reader:
        first = _signed(record, reader, tenant, _up_to(reader, tenant, old, since, "old and since"), True)
        second = _signed(record, reader, tenant, _up_to(reader, tenant, new, until, "new and until"), False)
        old, new = first.size, second.size
        if old > new:
            raise Invalid(f"the first checkpoint has {old} records and the second {new}; give the smaller one first")

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


def _up_to(reader: Reader, tenant: str, size: int | None, moment: str | None, names: str) -> tuple[int, bool] | None:
    """Return the largest size wanted, and whether it must match exactly; None if neither is given. Raises Invalid."""
    if size is not None and moment is not None:
        raise Invalid(f"{names} are both given; give one of the two")
    if moment is None:
        return None if size is None else (size, True)
    return first_at(reader, tenant, checked_moment(moment), size_of(reader, tenant)), False


def _signed(record: Record, reader: Reader, tenant: str, wanted: tuple[int, bool] | None, is_first: bool) -> Checkpoint:
    """Return the checkpoint of exactly the wanted size, or the last one up to it; without a size the first or the last
    of all. Raises NotFound."""
    found: SignedCheckpoint | None = None
    if size_of(reader, tenant):
        if wanted is None and is_first:
            found = next(iter(reader.checkpoints(tenant)), None)
        else:
            found = next(iter(reader.newest_checkpoints(tenant, 1, None if wanted is None else wanted[0])), None)
    if found is None:
        raise NotFound("no checkpoint was signed by then; choose a later time, or one of the listed checkpoints")
    if wanted is not None and wanted[1] and found.size != wanted[0]:
        raise NotFound("no checkpoint of that size was signed; choose one of the listed checkpoints")
    return open_checkpoint(found.note, record.audit.origin(tenant), record.key(reader).public_keys)


class Voucher(ResponseBody):
    """Attestation by `who`, of the kind `how`, at the time `at`, of the first `size` leaves of the anchor tree."""

    who: str
    how: str
    at: str
    size: int


class Selftest(ResponseBody):
    """Latest result of a periodic self-test."""

    check: str
    passed: bool
    at: str


class Outside(ResponseBody):
    """Attestations of the record besides its own signature. `anchored`: records under the last checkpoint in the anchor
    tree, whose checkpoint has `anchor_size` leaves; null if there is none, for the reason `why`. `vouchers`:
    attestations of the anchor tree. Cosignatures are not verified here, because that takes the witness's key."""

    anchored: int | None
    anchor_size: int | None
    why: str
    vouchers: tuple[Voucher, ...]
    selftests: tuple[Selftest, ...]


@router.get("/outside", dependencies=[Reading])
def show_outside(record: OnRecord, tenant: str) -> Outside:
    """Return the external attestations of the record, with a proof computed from the anchor tree."""
    record.known(tenant)
    given = () if record.context.packs is None else record.context.packs.attestations()
    with refusing(), record.reading() as reader:
        anchored, why = _anchored(record, reader, tenant)
        vouchers = attested_by(reader, list(given))
        tested = last_selftests(reader)
    return Outside(
        anchored=None if anchored is None else anchored[0],
        anchor_size=None if anchored is None else anchored[1],
        why=why,
        vouchers=tuple(Voucher(who=who, how=how, at=at, size=size) for who, how, at, size in vouchers[::-1]),
        selftests=tuple(
            Selftest(check=check, passed=said.startswith("passed"), at=said.rpartition(" ")[2])
            for check, said in sorted(tested.items())
        ),
    )


def _anchored(record: Record, reader: Reader, tenant: str) -> tuple[tuple[int, int] | None, str]:
    """Return the size of the last anchored checkpoint and of the anchor's checkpoint over it, proven, or None and the
    reason."""
    why = "none of this tenant's newest checkpoints is anchored yet; wait for the next anchor (`audit.anchor_every_s`)"
    known = anchored_digests(reader)
    for one in reader.newest_checkpoints(tenant, ANCHORS_TRIED) if known and size_of(reader, tenant) else ():
        checkpoint = open_checkpoint(one.note, record.audit.origin(tenant), record.key(reader).public_keys)
        if digest(checkpoint) not in known:
            continue
        try:
            found = prove(reader, record.key(reader), checkpoint)
        except VerificationFailed as error:
            why = str(error)
        else:
            return (checkpoint.size, found.checkpoint.size), ""
    return None, why
