"""What other trees and other parties attest of a log, and whether the log still agrees with it.

The log's own tree says how far the anchor reached (`system.anchored`), the anchor which checkpoints the trees had
(`checkpoint.anchored`), and each tree which of its checkpoints witnesses cosigned and authorities stamped. Notes and
tokens are kept in folders beside the log. Whatever one of these says and the others do not bear out is a finding: so
nothing of it can be removed or rewritten alone.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from audit.errors import NoteError
from audit.events.anchor import CheckpointCosigned, CheckpointTimestamped
from audit.events.base import ANCHOR_TENANT, SYSTEM_TENANT
from audit.log.walk import parsed
from audit.storage.attested_files import TIMESTAMPS, WITNESSED, AttestedFile
from audit.storage.store import Reader
from audit.tree.cosignature import WitnessKey, cosigned_at, cosigners
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint, tenant_of
from audit.verification.finding import Finding, Severity
from audit.verification.signing_delay import UNSIGNED_S, Boots, Outage, milliseconds

_BOOT_EVENTS = b'"system.start"', b'"system.stop"', b'"system.signing_delayed"'


# --- the log's own tree ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Link:
    """Record `seq` of the log's own tree: the anchor has `size` records, the last of hash `leaf_hash` (hex)."""

    seq: int
    size: int
    leaf_hash: str


@dataclass(frozen=True, slots=True)
class SystemFacts:
    boots: Boots
    links: tuple[Link, ...]


def system_facts(reader: Reader) -> SystemFacts:
    """Boots and links, as the log's own tree has them; records that are none are for `audit.verification.verify` to
    report."""
    started: set[str] = set()
    stopped: dict[str, int] = {}
    outages: list[Outage] = []
    links: list[Link] = []
    leaves = reader.leaves(SYSTEM_TENANT) if SYSTEM_TENANT in reader.tenants() else iter(())
    for stored in leaves:
        if b'"system.anchored"' in stored.payload:
            event = parsed(stored.payload)
            links.append(Link(stored.seq, int(event.get("size", 0)), str(event.get("leaf_hash"))))
        elif any(name in stored.payload for name in _BOOT_EVENTS):
            _take_boot(parsed(stored.payload), started, stopped, outages)
    return SystemFacts(Boots(frozenset(started), stopped, tuple(outages)), tuple(links))


def _take_boot(event: dict[str, Any], started: set[str], stopped: dict[str, int], outages: list[Outage]) -> None:
    try:
        boot, at = str(event["boot_id"]), milliseconds(event["ts"])
        slack = UNSIGNED_S * 1000
        if event["type"] == "system.start":
            started.add(boot)
        elif event["type"] == "system.stop":
            stopped[boot] = at
        elif event["type"] == "system.signing_delayed":
            # How long it lasts is unknown until it is resumed: it may outlast the boot.
            until = at + slack if event["resumed"] else milliseconds("9999-12-31T00:00:00.000Z")
            outages.append(Outage(boot, at - event["seconds"] * 1000 - slack, until))
    except (KeyError, TypeError, ValueError):
        return


# --- the anchor ------------------------------------------------------------------------------------------------------


def anchor_findings(reader: Reader, links: Sequence[Link]) -> Iterator[Finding]:
    """Whether the anchor is as long as the log's own tree says, and the trees have every checkpoint it vouches for."""
    tenants = reader.tenants()
    size = reader.head(ANCHOR_TENANT)[0] if ANCHOR_TENANT in tenants else 0
    for link in links:
        found = next(reader.leaf_hashes(ANCHOR_TENANT, link.size - 1, link.size), None) if link.size <= size else None
        if found is None:
            says = f"the anchor has {size} records, but a record says that it had {link.size}: records are missing"
            yield Finding(tenant=SYSTEM_TENANT, check="anchor", says=says, seq=link.seq)
        elif found.hex() != link.leaf_hash:
            says = f"record {link.size - 1} of the anchor is another than the one this record vouches for"
            yield Finding(tenant=SYSTEM_TENANT, check="anchor", says=says, seq=link.seq)
    for seq in unmatched_anchors(reader):
        says = "it vouches for a checkpoint that no tree has: history was rewritten, or checkpoints were removed"
        yield Finding(tenant=ANCHOR_TENANT, check="anchor", says=says, seq=seq)


def unmatched_anchors(reader: Reader) -> list[int]:
    """The records of the anchor that vouch for a checkpoint which no tree of the log has."""
    if ANCHOR_TENANT not in (tenants := reader.tenants()):
        return []
    anchored: dict[str, int] = {}
    for stored in reader.leaves(ANCHOR_TENANT):
        if b'"checkpoint.anchored"' in stored.payload:
            anchored.setdefault(str(parsed(stored.payload).get("checkpoint_sha256")), stored.seq)
    for tenant in tenants if anchored else ():
        for one in reader.checkpoints(tenant):
            anchored.pop(text_digest(one.note), None)
    return sorted(anchored.values())


def text_digest(note: str) -> str:
    """SHA-256, in hex, of a checkpoint's text: what anchors, cosignatures and tokens name it by."""
    return sha256((note.partition("\n\n")[0] + "\n").encode()).hexdigest()


# --- notes and tokens beside the log ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attested:
    """A checkpoint of `tenant` that `by` attests, in the note of the file `name`."""

    tenant: str
    by: str
    checkpoint: Checkpoint
    note: str
    name: str


@dataclass(slots=True)
class Attestations:
    """The notes and tokens beside a log. `severity` is that of one that is missing."""

    severity: Severity = "error"
    cosigned: list[Attested] = field(default_factory=list)
    stamped: list[Attested] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    """SHA-256 of each timestamp token, in hex."""
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def read(cls, files: Sequence[AttestedFile], key: VerifierKey, *, complete: bool = True) -> "Attestations":
        """Those in `files`. With `complete`, what the record says and the files lack is an error, otherwise a warning:
        a copy of a log file may be elsewhere."""
        found = cls("error" if complete else "warning")
        notes = {one.path: one.text for one in files if one.folder == TIMESTAMPS}
        for file in files:
            if file.folder == WITNESSED:
                found._read_cosigned(key, file)
            elif file.name.endswith(".tsr"):
                found.tokens.add(sha256(file.content).hexdigest())
                beside = f"{TIMESTAMPS}/{Path(file.name).stem}.note"
                if (one := found._opened(key, notes.get(beside, ""), "timestamp", beside)) is not None:
                    found.stamped.append(one)
        return found

    def _read_cosigned(self, key: VerifierKey, file: AttestedFile) -> None:
        if (one := self._opened(key, file.text, "", file.path)) is None:
            return
        names = [name for name, _ in cosigners(file.text, one.checkpoint.origin)]
        self.cosigned += [Attested(one.tenant, name, one.checkpoint, file.text, one.name) for name in names]
        if not names:
            self._find(one.tenant, f"the note {one.name} bears no cosignature")

    def _opened(self, key: VerifierKey, note: str, by: str, name: str) -> Attested | None:
        origin = note.partition("\n")[0]
        if (tenant := tenant_of(key.name, origin)) is None:
            self._find(SYSTEM_TENANT, f"the note {name} is missing or is not of a tree of this log")
            return None
        try:
            return Attested(tenant, by, open_checkpoint(note, origin, key.public_keys), note, name)
        except NoteError as error:
            self._find(tenant, f"the note {name} does not hold: {error}")
            return None

    def _find(self, tenant: str, says: str) -> None:
        self.findings.append(Finding(tenant=tenant, check="witness", says=says))

    def of(self, tenant: str) -> list[tuple[str, Checkpoint]]:
        """What each is called, and the checkpoint of this tree that it attests."""
        found = [
            (f"the checkpoint that the witness {one.by} cosigned, of size {one.checkpoint.size},", one)
            for one in self.cosigned
            if one.tenant == tenant
        ]
        found += [
            (f"the time-stamped checkpoint of size {one.checkpoint.size}", one)
            for one in self.stamped
            if one.tenant == tenant
        ]
        return [(name, one.checkpoint) for name, one in found]

    def missing_cosignatures(self, tenant: str, events: Sequence[tuple[int, CheckpointCosigned]]) -> Iterator[Finding]:
        """The record says that a witness cosigned a size: its last note has to be there, of that size or a later."""
        last = {event.witness: (seq, event) for seq, event in events}
        for witness, (seq, event) in last.items():
            sizes = [one.checkpoint.size for one in self.cosigned if (one.tenant, one.by) == (tenant, witness)]
            if max(sizes, default=-1) < event.size:
                says = (
                    f"the witness {witness} cosigned size {event.size}, and its note is not in {WITNESSED}/: "
                    "restore it, or have the log cosigned again (`domicile audit witness submit`)"
                )
                yield Finding(tenant=tenant, check="witness", says=says, seq=seq, severity=self.severity)

    def missing_tokens(self, tenant: str, events: Sequence[tuple[int, CheckpointTimestamped]]) -> Iterator[Finding]:
        for seq, event in events:
            if event.token_sha256 not in self.tokens:
                says = f"the timestamp of {event.tsa} over size {event.size} is not in {TIMESTAMPS}/: restore it"
                yield Finding(tenant=tenant, check="timestamp", says=says, seq=seq, severity=self.severity)

    def witness_findings(self, keys: Sequence[WitnessKey]) -> Iterator[Finding]:
        """Each witness whose key the verifying side gives must have cosigned a checkpoint of this log."""
        for key in keys:
            notes = [one for one in self.cosigned if one.by == key.name]
            if not notes:
                says = f"the witness {key.name} has cosigned no checkpoint that is beside this log"
                yield Finding(tenant=ANCHOR_TENANT, check="witness", says=says)
            for one in notes:
                try:
                    cosigned_at(one.note, key)
                except NoteError as error:
                    says = f"the cosignature in {one.name} does not hold: {error}"
                    yield Finding(tenant=one.tenant, check="witness", says=says)


def cosignature_of(note: str, key: WitnessKey) -> str:
    """The cosignature of `key` on a note as base64. Raises NoteError if there is none that holds."""
    cosigned_at(note, key)
    for line in note.rpartition("\n\n")[2].splitlines():
        name, _, encoded = line.removeprefix("\u2014 ").partition(" ")
        if name == key.name and base64.b64decode(encoded)[:4] == key.key_id:
            return encoded
    raise NoteError(f"the witness {key.name} did not sign it")
