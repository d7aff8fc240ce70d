"""Evidence packs: what an auditor is handed, one zip that proves itself (`audit.pack_verifier`, inside as verify.py).

A pack holds a contiguous range of a tenant's records and what leads from them to one signed checkpoint: the roots of
the perfect subtrees before and after the range, a logarithm of hashes for any number of records. The manifest names
every file by its SHA-256 and is signed by the log's key. Records are streamed: memory does not grow with them.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from audit.errors import StoreError, VerificationFailed
from audit.events.base import ANCHOR_TENANT
from audit.events.leaf import Leaf, decode_leaf
from audit.events.ocsf import ocsf
from audit.events.privacy import LogExported
from audit.events.schema import event_schema
from audit.events.stamp import rfc3339
from audit.incidents.pack_inputs import Evidence
from audit.keys.signer import Signer, key_of, successions_of
from audit.log.walk import parsed, timestamp
from audit.pack.archive import Writer, require_place
from audit.pack.program import program
from audit.pack.report import html_report
from audit.private.audit_context import AuditContext
from audit.private.deletion import RECORD, certificates_of, deletions_of
from audit.private.value_store import StoredValue, ValueStore
from audit.registers.dsar import dsar_files
from audit.registers.gaps import Gap, gaps
from audit.registers.pack_tables import Tables
from audit.registers.policies import ACTIVATED, unknown_calls
from audit.registers.privacy import privacy_files
from audit.registers.registers import last_selftests, registers
from audit.storage.store import Reader, StoredLeaf
from audit.tree.merkle import Frontier, inclusion_proof, tree_hash
from audit.tree.note import VerifierKey, sign_note
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint, origin_of
from audit.verification.attestations import unmatched_anchors
from audit.verification.disclosure import AnnouncedCertificate, announced_certificates
from audit.witness.anchor_attestations import AnchorAttestation, anchor_proofs, attested_by

PROGRESS_STEP = 1000
_INFERENCE = b'"type":"inference.'

Progress = Callable[[int], None]
"""Called with how many records were written since the last call."""


@dataclass(frozen=True, slots=True)
class Window:
    """Records `first` up to but not including `end`, and the checkpoint over them."""

    first: int
    end: int
    checkpoint: Checkpoint
    note: str


@dataclass(frozen=True, slots=True)
class Summary:
    pack_id: str
    tenant: str
    first: int
    end: int
    checkpoint_size: int
    files: int
    fields: dict[str, int]
    policies_unknown: int = 0
    """Calls whose policy is not in the pack: `verify.py` will say so."""
    missing: tuple[Gap, ...] = ()
    """What a law asks for and no register says."""


def window(reader: Reader, key: VerifierKey, tenant: str, since: str | None, until: str | None) -> Window:
    """The records from `since` up to but not including `until` (RFC 3339 UTC, or a prefix of it: ``2026-03``).

    Clocks of several nodes differ, so it may hold a few others at its edges: it has no gaps. Raises
    VerificationFailed if no checkpoint is signed yet, NoteError if the last one does not hold.
    """
    last = reader.last_checkpoint(tenant)
    if last is None:
        raise VerificationFailed(f"tenant {tenant} has no signed checkpoint yet; start the gateway, which signs one")
    checkpoint = open_checkpoint(last.note, origin_of(key.name, tenant), key.public_keys)
    first, end = 0, checkpoint.size
    if since is not None or until is not None:
        inside = (
            leaf.seq
            for leaf in islice(reader.leaves(tenant), checkpoint.size)
            if (since is None or timestamp(leaf.payload) >= since)
            and (until is None or timestamp(leaf.payload) < until)
            and leaf.payload
        )
        first = next(inside, -1)
        latest = deque(inside, maxlen=1)
        end = (latest[0] if latest else first) + 1
    return Window(max(first, 0), end, checkpoint, last.note)


async def export(
    context: AuditContext,
    tenant: str,
    target: Path,
    *,
    since: str | None = None,
    until: str | None = None,
    disclose: bool = False,
    evidence: Evidence = Evidence(),  # noqa: B008, it is frozen
    attestations: Sequence[AnchorAttestation] = (),
    dsar: Sequence[Mapping[str, Any]] = (),
    actor: str = "system",
    progress: Progress = lambda count: None,
    pack_id: str | None = None,
    reason: str | None = None,
) -> Summary:
    """Write the pack to `target`, which must not exist; the export itself is recorded first.

    With `disclose`, values that are kept and not restricted are shown in it. `evidence` fills in the registers,
    `attestations` are what stands for the log from outside, `dsar` packages of access requests
    (`audit.privacy.rights.answer`) to hand over with it. `pack_id`: a new one unless given. `reason`: a code, on
    record. Raises AuditError in one of its kinds; then there is no file.
    """
    require_place(target)
    key = key_of(context.signer)
    with context.reading() as reader:
        found = window(reader, key, tenant, since, until)
    pack_id = pack_id or context.new_id()
    event = LogExported(tenant=tenant, pack_id=pack_id, actor=actor, first=found.first, end=found.end, reason=reason)
    await context.record(event)

    def write(side: ValueStore) -> Summary:
        before = deletions_of(side, tenant)
        if before[1]:
            raise VerificationFailed("a deletion is under way or was interrupted; finish it, then make the pack")
        notes = certificates_of(side, tenant)
        with context.reading() as reader, Writer.create(target) as pack:
            made = _Pack(pack, reader, side, key, tenant, found, disclose, progress)
            made.given = PackInputs(evidence, list(attestations), list(dsar))
            summary = made.write(pack_id, rfc3339(context.now()), notes, context.signer)
            if deletions_of(side, tenant) != before:
                raise VerificationFailed("values were deleted while the pack was made; make it again")
            return summary

    return await context.with_values(write)


@dataclass(frozen=True, slots=True)
class PackInputs:
    """What the log itself does not know."""

    evidence: Evidence
    attestations: list[AnchorAttestation]
    dsar: list[Mapping[str, Any]]


class _Pack:
    """The making of one pack."""

    given: PackInputs

    def __init__(
        self,
        out: Writer,
        reader: Reader,
        side: ValueStore,
        key: VerifierKey,
        tenant: str,
        found: Window,
        disclose: bool,
        progress: Progress,
    ) -> None:
        self._out = out
        self._reader = reader
        self._disclose = disclose
        self._side = side
        self._key = key
        self._tenant = tenant
        self._window = found
        self._progress = progress
        self._tables = Tables()
        self._states: dict[str, int] = {}
        self._keyless = side.keyless(tenant)

    def write(self, pack_id: str, made_at: str, notes: list[str], signer: Signer) -> Summary:
        """Events first, in one walk; then what was gathered on it; then the manifest over everything."""
        vouched = announced_certificates(self._reader, self._key, self._tenant, notes)
        if seqs := unmatched_anchors(self._reader):
            raise VerificationFailed(
                f"record {seqs[0]} of the anchor vouches for a checkpoint that no tree has; run `domicile audit verify`"
            )
        self._write_activations()
        self._write_events()
        self._write_fields(vouched)
        self._write_proofs(vouched, notes)
        outside = anchor_proofs(
            self._reader, self._key, self._tenant, *self._range(), self._window.checkpoint.size, self.given.attestations
        )
        everything = (
            self._tables.files() | registers(self._tables, self.given.evidence, last_selftests(self._reader)) | outside
        )
        everything |= privacy_files(self._tables.activities, self.given.evidence, self._tenant)
        for package in self.given.dsar:
            everything |= dsar_files(package)
        for name, content in everything.items():
            self._out.add(name, content)
        for at, note in enumerate(successions_of(signer)):
            self._out.add(f"proofs/keys/{at:03d}.note", note)
        self._out.add("checkpoint", self._window.note)
        self._out.add("schema.json", json.dumps(event_schema(), indent=1))
        self._out.add("verify.py", program())
        about = self._about(pack_id, made_at) | {"anchor": self._anchor(outside)}
        missing = gaps(self._tables.activities, self.given.evidence, self._tenant)
        voucher_rows = attested_by(self._reader, self.given.attestations)
        parties = self.given.evidence.controller, self.given.evidence.processor
        page = html_report(about, self._tables, self._states, voucher_rows, missing, parties)
        self._out.add("README.html", page)
        manifest = json.dumps(about | {"files": self._out.digests}, indent=1).encode()
        total = len(self._out.digests)
        text = f"{about['origin']} evidence pack\n{sha256(manifest).hexdigest()}\n"
        self._out.add("manifest.json", manifest)
        self._out.add("manifest.sig", sign_note(text, about["origin"], signer))
        return Summary(
            pack_id,
            self._tenant,
            self._window.first,
            self._window.end,
            self._window.checkpoint.size,
            total + 2,
            self._states,
            unknown_calls(self._tables.policy_calls, self._tables.policies, self.given.evidence),
            tuple(missing),
        )

    def _anchor(self, outside: Mapping[str, object]) -> str:
        """For the manifest: whether an anchor vouches for the records, or has not come to it yet."""
        if "proofs/anchor.json" in outside:
            return "present"
        return "pending" if ANCHOR_TENANT in self._reader.tenants() else "none"

    def _range(self) -> tuple[int, int]:
        return self._window.first, self._window.end

    def _about(self, pack_id: str, made_at: str) -> dict[str, Any]:
        origin = origin_of(self._key.name, self._tenant)
        return {
            "v": 1,
            "pack_id": pack_id,
            "tenant": self._tenant,
            "origin": origin,
            "key": str(VerifierKey(origin, self._key.public_key)),
            "first": self._window.first,
            "end": self._window.end,
            "checkpoint_size": self._window.checkpoint.size,
            "made_at": made_at,
        }

    def _leaves(self) -> Iterator[StoredLeaf]:
        first, end = self._window.first, self._window.end
        for seq, leaf in zip(range(first, end), self._reader.leaves(self._tenant, first), strict=False):
            if leaf.seq != seq:
                raise StoreError(f"the log lacks record {seq} of tenant {self._tenant}; run `domicile audit verify`")
            yield leaf

    def _write_activations(self) -> None:
        """What came before the range and put a policy in force that may decide calls in it, each with its proof; and
        which calls had begun."""
        first, size = self._window.first, self._window.checkpoint.size
        proofs = []
        for leaf in islice(self._reader.leaves(self._tenant), first):
            if _INFERENCE in leaf.payload:
                self._tables.take_earlier(parsed(leaf.payload))
            elif ACTIVATED.encode() in leaf.payload:
                self._tables.take_policy(leaf.seq, decode_leaf(leaf.payload))
                path = [node.hex() for node in inclusion_proof(leaf.seq, size, self._range_hash)]
                proofs.append({"seq": leaf.seq, "leaf": leaf.payload.decode(), "proof": path})
        self._out.add("proofs/policies.json", json.dumps(proofs))

    def _range_hash(self, start: int, stop: int) -> bytes:
        return tree_hash(self._reader.leaf_hashes(self._tenant, start, stop))

    def _write_events(self) -> None:
        written = 0
        with self._out.stream("events.jsonl") as write:
            for leaf in self._leaves():
                write(leaf.payload + b"\n")
                if leaf.payload:
                    self._tables.take(leaf.seq, decode_leaf(leaf.payload))
                else:
                    self._tables.expired += 1
                written += 1
                if written % PROGRESS_STEP == 0:
                    self._progress(PROGRESS_STEP)
        self._progress(written % PROGRESS_STEP)
        if written != self._window.end - self._window.first:
            raise StoreError(
                f"the log lacks record {self._window.first + written} of tenant {self._tenant}"
                "; run `domicile audit verify`"
            )
        with self._out.stream("events.csv") as write:
            write(Tables.EVENT_HEADER)
            for leaf in self._leaves():
                write(Tables.event_row(leaf.seq, json.loads(leaf.payload or b"{}")))
        with self._out.stream("ocsf.jsonl") as write:
            for leaf in self._leaves():
                if leaf.payload:
                    mapped = ocsf(leaf.seq, json.loads(leaf.payload))
                    write(json.dumps(mapped, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def _write_fields(self, vouched: list[AnnouncedCertificate]) -> None:
        with self._out.stream("fields.jsonl") as write:
            for leaf in self._leaves():
                if not leaf.payload:
                    said: dict[str, Any] = {"seq": leaf.seq, "field": RECORD, **_gone(leaf.seq, RECORD, vouched)}
                    self._states[said["state"]] = self._states.get(said["state"], 0) + 1
                    write(json.dumps(said).encode() + b"\n")
                if b'"commits"' in leaf.payload:
                    for said in self._fields(leaf.seq, decode_leaf(leaf.payload), vouched):
                        self._states[said["state"]] = self._states.get(said["state"], 0) + 1
                        write(json.dumps(said, ensure_ascii=False).encode() + b"\n")

    def _fields(self, seq: int, leaf: Leaf, vouched: list[AnnouncedCertificate]) -> Iterator[dict[str, Any]]:
        kept = {
            one.field: one
            for one in self._side.kept(self._tenant, start=seq, end=seq + 1)
            if one.event_id == leaf.stamp.event_id and one.key_id not in self._keyless
        }
        for field in sorted(leaf.event.commits or ()):
            said: dict[str, Any] = {"seq": seq, "field": field}
            if field in kept:
                yield said | self._value(kept[field])
                continue
            yield said | _gone(seq, field, vouched, leaf.stamp.event_id)

    def _value(self, kept: StoredValue) -> dict[str, Any]:
        if not self._disclose or self._side.restricted(kept.key_id):
            return {"state": "withheld"}
        opened = self._side.disclose(kept)
        return {"state": "disclosed", "salt": opened.salt.hex(), "jcs": opened.jcs.decode()}

    def _write_proofs(self, vouched: list[AnnouncedCertificate], notes: Iterable[str]) -> None:
        first, end, size = self._window.first, self._window.end, self._window.checkpoint.size
        left, right = _aligned(0, first), _aligned(end, size)
        proof = {
            "left": [self._range_hash(*one).hex() for one in left],
            "right": [self._range_hash(*one).hex() for one in right],
        }
        self._check_root(proof["left"], proof["right"])
        self._out.add("proofs/range.json", json.dumps(proof))
        with self._out.stream("proofs/leaves.bin") as write:
            for leaf_hash in self._reader.leaf_hashes(self._tenant, first, end):
                write(leaf_hash)
        proofs = {}
        for one, note in zip(vouched, notes, strict=True):
            self._out.add(f"certificates/{one.certificate.id}.note", note)
            self._tables.certificates.append(one.certificate)
            if one.seq >= size:
                raise VerificationFailed("a deletion is not under a signed checkpoint yet; try again in a second")
            leaf = next(self._reader.leaves(self._tenant, one.seq, one.seq + 1))
            proofs[one.certificate.id] = {
                "seq": one.seq,
                "leaf": leaf.payload.decode(),
                "proof": [node.hex() for node in inclusion_proof(one.seq, size, self._range_hash)],
            }
        self._out.add("proofs/certificates.json", json.dumps(proofs))
        bodies = [one.certificate.model_dump(mode="json", exclude_none=True) for one in vouched]
        self._out.add("erasure_certificate.json", json.dumps(bodies, indent=1))

    def _check_root(self, left: list[str], right: list[str]) -> None:
        """A pack that would not verify is not handed out."""
        tree = Frontier(self._window.first, map(bytes.fromhex, left))
        for leaf_hash in self._reader.leaf_hashes(self._tenant, self._window.first, self._window.checkpoint.size):
            tree.append(leaf_hash)
        if tree.root() != self._window.checkpoint.root:
            raise VerificationFailed(f"the log of tenant {self._tenant} does not hold; run `domicile audit verify`")


def _gone(seq: int, field: str, vouched: list[AnnouncedCertificate], event_id: str | None = None) -> dict[str, str]:
    covering = (one for one in vouched if seq < one.seq and one.certificate.covers(seq, field, event_id))
    by = next((one.certificate.id for one in covering), None)
    return {"state": "missing"} if by is None else {"state": "erased", "certificate": by}


def _aligned(start: int, end: int) -> list[tuple[int, int]]:
    """The perfect subtrees that make up the leaves [start, end), from left to right."""
    ranges = []
    while start < end:
        span = 1 << (end - start).bit_length() - 1
        if start:
            span = min(span, start & -start)
        ranges.append((start, start + span))
        start += span
    return ranges
