"""Offline verification from the leaves up: of the log's own statements only its key is trusted.

Each tree is walked once. Every leaf is read strictly and hashed, the tree is rebuilt, and wherever a checkpoint was
signed the rebuilt root must be the signed one; that all checkpoints fit one sequence of leaves is their consistency.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from audit.errors import CanonicalError, EventRejected, NoteError
from audit.events.anchor import CheckpointCosigned, CheckpointTimestamped, KeyRotated
from audit.events.base import Event, Step
from audit.events.leaf import Leaf, decode_leaf
from audit.events.privacy import RetentionRun
from audit.storage.store import Reader, SignedCheckpoint, StoredLeaf
from audit.tree.cosignature import WitnessKey
from audit.tree.merkle import EMPTY_ROOT, Frontier, leaf_hash
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint, origin_of, tenant_of
from audit.verification.attestations import Attestations, SystemFacts, anchor_findings, system_facts
from audit.verification.finding import Check, Finding, Severity
from audit.verification.signing_delay import UNSIGNED_S, SigningDelays, milliseconds
from audit.witness.anchor import digest
from audit.witness.late_trees import RECORDED_EVERY_S

MAX_FINDINGS = 20
"""Findings of one kind that are listed for a tree; the rest are counted. One missing record can upset a million that
follow."""
PROGRESS_STEP = 1000

Progress = Callable[[str, int], None]
"""Called with the tenant and how many of its records have been read since the last call."""


_NOTED = frozenset({KeyRotated, RetentionRun, CheckpointCosigned, CheckpointTimestamped})


class _Report(BaseModel):
    model_config = ConfigDict(frozen=True)


class TreeReport(_Report):
    """`root` is the rebuilt root in hex, `signed` the size of the largest checkpoint that holds.

    `expired` records have lost their content to retention; `audit.verification.disclosure` finds which certificate
    covers them. `findings` lists at most MAX_FINDINGS of a kind; `errors` counts them all, warnings apart.
    """

    tenant: str
    records: int
    root: str
    checkpoints: int
    signed: int
    open_requests: tuple[str, ...]
    errors: int
    findings: tuple[Finding, ...]
    expired: int = 0

    @property
    def ok(self) -> bool:
        return self.errors == 0


class Report(_Report):
    """`attestations` are the findings that come from comparing trees with each other and with other parties' notes."""

    trees: tuple[TreeReport, ...]
    attestations: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        return self.errors == 0

    @property
    def errors(self) -> int:
        return sum(tree.errors for tree in self.trees) + sum(one.severity == "error" for one in self.attestations)

    @property
    def findings(self) -> list[Finding]:
        return [*(finding for tree in self.trees for finding in tree.findings), *self.attestations]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a log is verified against beside its own signatures.

    `attestations` are the notes beside it (None: not looked for), `witnesses` the keys that must have cosigned. Records
    after the last checkpoint may be at most `unsigned_s` old at `now` (milliseconds since the epoch; default: now).
    """

    attestations: Attestations | None = None
    witnesses: Sequence[WitnessKey] = ()
    unsigned_s: int = UNSIGNED_S
    now: int | None = None


def verify_log(
    reader: Reader,
    key: VerifierKey,
    *,
    tenants: Iterable[str] | None = None,
    held: Iterable[str] = (),
    expected: Expected = Expected(),
    progress: Progress = lambda tenant, records: None,
) -> Report:
    """Verify the trees of `tenants` (default: all) against the log's `key`.

    `held` are checkpoint notes kept outside the log's reach; with one of them a log rolled back to an earlier state is
    found out, which the file alone cannot show. Their trees are verified whether chosen or not. Raises StoreError if
    the data cannot be read, NoteError if a held checkpoint was not signed by `key`.
    """
    promised: dict[str, list[_Promise]] = {}
    for note in held:
        origin = note.partition("\n")[0]
        if (tenant := tenant_of(key.name, origin)) is None:
            raise NoteError(
                f"the checkpoint you hold is of {origin}, not of a tree of {key.name}; give a checkpoint of this log"
            )
        checkpoint = open_checkpoint(note, origin, key.public_keys)
        promise = _Promise(checkpoint, f"the checkpoint you hold of size {checkpoint.size}", held=True)
        promised.setdefault(tenant, []).append(promise)
    known = reader.tenants()
    beside = expected.attestations or Attestations()
    chosen = dict.fromkeys([*known, *(one.tenant for one in beside.cosigned + beside.stamped)])
    chosen = dict.fromkeys([*(chosen if tenants is None else tenants), *promised])
    for tenant in chosen:
        attested = [_Promise(one, name, held=True) for name, one in beside.of(tenant)]
        promised.setdefault(tenant, []).extend(attested)
    facts = system_facts(reader)
    trees = tuple(
        _lost_tree(tenant, promised[tenant])
        if promised[tenant] and tenant not in known
        else _TreeCheck(reader, tenant, key, promised[tenant], facts, expected, progress).run()
        for tenant in chosen
    )
    across = [*anchor_findings(reader, facts.links), *beside.findings, *beside.witness_findings(expected.witnesses)]
    return Report(trees=trees, attestations=tuple(across[:MAX_FINDINGS]))


def _lost_tree(tenant: str, held: "list[_Promise]") -> TreeReport:
    last = max(held, key=lambda promise: promise.checkpoint.size)
    says = f"the log has no records of this tenant, but {last} was signed"
    return TreeReport(
        tenant=tenant,
        records=0,
        root=EMPTY_ROOT.hex(),
        checkpoints=0,
        signed=0,
        open_requests=(),
        errors=1,
        findings=(Finding(tenant=tenant, check="rollback", says=says),),
    )


class _TreeCheck:
    """The state of one walk over one tree."""

    def __init__(
        self,
        reader: Reader,
        tenant: str,
        key: VerifierKey,
        held: "list[_Promise]",
        facts: SystemFacts,
        expected: Expected,
        progress: Progress,
    ) -> None:
        self._reader = reader
        self._tenant = tenant
        self._key = key
        self._held = held
        self._facts = facts
        self._expected = expected
        self._delays = SigningDelays(expected.unsigned_s)
        self._cosigned: list[tuple[int, CheckpointCosigned]] = []
        self._stamped: list[tuple[int, CheckpointTimestamped]] = []
        self._progress = progress
        self._findings: list[Finding] = []
        self._found: Counter[str] = Counter()
        self._errors = 0
        self._tree = Frontier()
        self._records = 0
        self._next = 0
        self._gap: int | None = None  # the first record missing: from there on the tree cannot be rebuilt
        self._signed = 0
        self._wrong: list[_Promise] = []
        self._open: dict[str, int] = {}
        self._last_ts: dict[str, str] = {}
        self._used: dict[bytes, int] = {}  # keys that signed: the first record that only a checkpoint by it covers
        self._begun: dict[int, str] = {}  # the times of those records
        self._rotations: set[str] = set()
        self._expired: list[int] = []
        self._announced = 0  # records that retention says it emptied

    def run(self) -> TreeReport:
        notes = list(self._reader.checkpoints(self._tenant))
        opened = list(self._opened(notes))
        promises = [*self._held, *(_Promise(one, f"the checkpoint of size {one.size}", held=False) for one in opened)]
        promises.sort(key=lambda promise: promise.checkpoint.size)
        kept = 0
        for leaf in self._reader.leaves(self._tenant):
            self._check_leaf(leaf)
            while kept < len(promises) and self._gap is None and promises[kept].checkpoint.size == self._tree.size:
                self._check_root(promises[kept])
                kept += 1
            if self._records % PROGRESS_STEP == 0:
                self._progress(self._tenant, PROGRESS_STEP)
        self._progress(self._tenant, self._records % PROGRESS_STEP)
        self._report_wrong_roots()
        self._check_end(promises[kept:])
        self._check_head()
        self._check_intents()
        self._check_expired()
        self._check_keys()
        self._check_unsigned()
        self._check_attested({digest(one) for one in opened} if self._cosigned or self._stamped else set())
        return TreeReport(
            tenant=self._tenant,
            records=self._records,
            root=self._tree.root().hex(),
            checkpoints=len(notes),
            signed=self._signed,
            open_requests=tuple(self._open),
            errors=self._errors,
            findings=tuple(self._findings),
            expired=len(self._expired),
        )

    def _find(self, check: Check, says: str, seq: int | None = None, severity: Severity = "error") -> None:
        self._errors += severity == "error"
        self._found[check] += 1
        if self._found[check] <= MAX_FINDINGS:
            self._findings.append(Finding(tenant=self._tenant, check=check, says=says, seq=seq, severity=severity))

    def _opened(self, notes: list[SignedCheckpoint]) -> Iterator[Checkpoint]:
        origin = origin_of(self._key.name, self._tenant)
        before = 0
        for _, size, note in notes:
            try:
                checkpoint = open_checkpoint(note, origin, self._key.public_keys)
            except NoteError as error:
                self._find("signature", f"the checkpoint of size {size} does not hold: {error}")
                continue
            if checkpoint.size != size:
                self._find("signature", f"the checkpoint filed under size {size} was signed for {checkpoint.size}")
                continue
            if self._key.kin:
                self._used.setdefault(self._signer_of(note, origin), before)
                self._begun.setdefault(before, "")
            before = size
            yield checkpoint

    def _signer_of(self, note: str, origin: str) -> bytes:
        """Which of the keys signed it."""
        for public_key in self._key.kin:
            with suppress(NoteError):
                open_checkpoint(note, origin, public_key)
                return public_key
        return self._key.public_key

    # --- each record -------------------------------------------------------------------------------------------------

    def _check_leaf(self, leaf: StoredLeaf) -> None:
        seq, stored_hash, payload = leaf
        if seq != self._next:
            missing = f"record {self._next} is" if seq == self._next + 1 else f"records {self._next} to {seq - 1} are"
            self._find("sequence", f"{missing} missing", self._next)
            self._gap = self._next if self._gap is None else self._gap
        self._next = seq + 1
        self._records += 1
        if self._gap is None:
            self._tree.append(stored_hash)
        if not payload:
            self._expired.append(seq)
            return
        if (actual := leaf_hash(payload)) != stored_hash:
            self._find("hash", f"its content hashes to {actual.hex()}, the log recorded {stored_hash.hex()}", seq)
        try:
            read = decode_leaf(payload)
        except (CanonicalError, EventRejected) as error:
            self._find("form", f"it is not a record of this format: {error}", seq)
            return
        if type(read.event) in _NOTED:
            self._note(read.event, seq)
        if seq in self._begun:
            self._begun[seq] = read.stamp.ts
        if read.event.tenant != self._tenant:
            self._find("tenant", f"it belongs to tenant {read.event.tenant}", seq)
        self._check_pairing(read, seq)
        self._check_clock(read, seq)
        self._delays.take(seq, read.stamp)

    def _note(self, event: Event, seq: int) -> None:
        """What a record says about the tree itself."""
        if isinstance(event, KeyRotated):
            self._rotations.add(event.new_key)
        elif isinstance(event, RetentionRun):
            self._announced += event.expired_records or 0
        elif isinstance(event, CheckpointCosigned):
            self._cosigned.append((seq, event))
        elif isinstance(event, CheckpointTimestamped):
            self._stamped.append((seq, event))

    def _check_pairing(self, leaf: Leaf, seq: int) -> None:
        step, request = leaf.event.step, leaf.event.request_id or ""
        if step is Step.OPENS:
            if request in self._open:
                self._find(
                    "pairing", f"request {request} is accepted again, though open since {self._open[request]}", seq
                )
            self._open.setdefault(request, seq)
        elif step is not Step.NONE and request not in self._open:
            self._find("pairing", f"{leaf.event.type} of request {request}, which has no open intent", seq)
        elif step is Step.CLOSES:
            del self._open[request]

    def _check_clock(self, leaf: Leaf, seq: int) -> None:
        node, ts = leaf.stamp.gateway_node, leaf.stamp.ts
        last = self._last_ts.get(node, ts)
        if ts < last:  # RFC 3339 in one zone and one precision sorts as text
            self._find("clock", f"the clock of node {node} went back from {last} to {ts}", seq, "warning")
        self._last_ts[node] = ts

    # --- the tree as a whole -----------------------------------------------------------------------------------------

    def _check_root(self, promise: "_Promise") -> None:
        if promise.checkpoint.root != self._tree.root():
            self._wrong.append(promise)
        elif not self._wrong:
            self._signed = promise.checkpoint.size
        if not promise.held:
            for seq, boot, first, last in self._delays.signed():
                explained = self._facts.boots.explains(boot, first, last)
                says = f"records from here on went unsigned from {first} to {last}: " + (
                    "the record says that the signer was out of reach"
                    if explained
                    else "no outage of the signer is on record, so checkpoints were removed"
                )
                self._find("unsigned", says, seq, "warning" if explained else "error")

    def _check_unsigned(self) -> None:
        """Records after the last checkpoint, which no signature covers."""
        for seq, why in self._delays.unsigned(self._facts.boots, self._now()):
            says = (
                f"records from here on are not under a checkpoint: {why}. If a crash left them, start a gateway, which "
                "has them signed; of a copy, give the time at which it was made (--as-of)"
            )
            self._find("unsigned", says, seq)

    def _check_attested(self, digests: set[str]) -> None:
        """What this tree says that others attest must be of a checkpoint that it has, and still be there."""
        events: list[tuple[int, CheckpointCosigned | CheckpointTimestamped]] = [*self._cosigned, *self._stamped]
        for seq, event in events:
            if event.checkpoint_sha256 not in digests:
                says = f"it names a checkpoint of size {event.size} that this tree does not have"
                self._find("witness" if isinstance(event, CheckpointCosigned) else "timestamp", says, seq)
        if (beside := self._expected.attestations) is not None:
            for finding in (
                *beside.missing_cosignatures(self._tenant, self._cosigned),
                *beside.missing_tokens(self._tenant, self._stamped),
            ):
                self._find(finding.check, finding.says, finding.seq, finding.severity)

    def _report_wrong_roots(self) -> None:
        if not self._wrong:
            return
        first = self._wrong[0]
        more = f"; {len(self._wrong) - 1} later ones neither" if len(self._wrong) > 1 else ""
        self._find(
            "root",
            f"{first} does not match the records: something in records {self._signed} to {first.checkpoint.size - 1}"
            f" is not what was signed{more}",
            self._signed,
        )

    def _check_end(self, promises: "list[_Promise]") -> None:
        """Promises that the walk did not reach: the tree has a gap before them, or ends too early."""
        beyond = [promise for promise in promises if promise.checkpoint.size > self._next]
        if beyond:
            last = beyond[-1]
            self._find(
                "rollback" if last.held else "sequence",
                f"the log ends before record {self._next}, but {last} was signed: "
                f"{last.checkpoint.size - self._next} records are missing at the end",
                self._next,
            )
        if self._gap is not None and len(promises) > len(beyond):
            self._find(
                "root",
                f"{len(promises) - len(beyond)} checkpoints cannot be checked, since record {self._gap} is missing",
                self._gap,
            )

    def _check_head(self) -> None:
        size, frontier = self._reader.head(self._tenant)
        if size != self._next:
            self._find("tree", f"the head of the tree counts {size} records, the last one there is {self._next - 1}")
        elif self._gap is None and frontier != bytes(self._tree):
            self._find("tree", "the head of the tree is not that of its records")

    def _check_keys(self) -> None:
        """Where several keys signed, the records must contain each change but the first key.

        A tree that a host with the old key and a host with the new one wrote together is given that record by the next
        maintenance of a gateway (`audit.witness.late_trees`): until the bound has passed its absence is a warning.
        """
        untold = len(self._used) - 1 - len(self._rotations)
        if untold <= 0:
            return
        says = f"{len(self._used)} keys signed, but the records contain {len(self._rotations)} changes"
        if all(self._is_recent(self._begun[seq]) for seq in sorted(self._used.values())[-untold:]):
            more = f"; the change is recent, and a running gateway records it within {RECORDED_EVERY_S} s"
            self._find("keys", says + more, severity="warning")
        else:
            self._find("keys", f"{says}; of keys that succeed each other, `domicile audit anchor` records the change")

    def _is_recent(self, ts: str) -> bool:
        return ts != "" and abs(self._now() - milliseconds(ts)) <= self._expected.unsigned_s * 1000

    def _now(self) -> int:
        return int(time.time() * 1000) if self._expected.now is None else self._expected.now

    def _check_expired(self) -> None:
        if len(self._expired) > self._announced:
            self._find(
                "expired",
                f"{len(self._expired)} records have no content, but only {self._announced} are on record as expired",
                self._expired[0],
            )

    def _check_intents(self) -> None:
        listed = {intent.request_id for intent in self._reader.open_intents(self._tenant)}
        for request in self._open.keys() - listed:
            self._find("intents", f"request {request} has no outcome and is not listed as open", self._open[request])
        for request in listed - self._open.keys():
            self._find("intents", f"request {request} is listed as open, which the records do not bear out")


@dataclass(frozen=True, slots=True)
class _Promise:
    """A checkpoint that the tree must keep; `held` by the verifying side, or by others, rather than found in the log.
    `name` is what findings call it."""

    checkpoint: Checkpoint
    name: str
    held: bool

    def __str__(self) -> str:
        return self.name
