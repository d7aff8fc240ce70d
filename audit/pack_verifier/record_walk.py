"""Reads the records in order: each is what was logged, and all of them lead to the signed checkpoint."""

from __future__ import annotations

from typing import Any

from audit.pack_verifier.canonical import canonical, load_json
from audit.pack_verifier.certificates import Certificates
from audit.pack_verifier.fault import MAX_FINDINGS, Broken, Findings
from audit.pack_verifier.known_checkpoints import KnownCheckpoints
from audit.pack_verifier.pack_tables import Tables
from audit.pack_verifier.policies import ACCEPTED, Policies
from audit.pack_verifier.private_values import Fields
from audit.pack_verifier.signed import Signed
from audit.pack_verifier.tree import HASH_SIZE, Tree, aligned, leaf_hash

MAX_LINE = 1 << 20
LEAVES = "proofs/leaves.bin"  # 32 bytes each; they only serve to name the record that was changed
WITHIN, CLOSES = "routing.decision", ("inference.completed", "inference.aborted")


class Records:
    """`count` is how many there were, `roots` those of the tree at the sizes that are wanted later."""

    def __init__(
        self,
        signed: Signed,
        fields: Fields,
        certificates: Certificates,
        policies: Policies,
        known: KnownCheckpoints,
        tables: Tables,
        findings: Findings,
    ) -> None:
        self.signed, self.fields, self.certificates = signed, fields, certificates
        self.policies, self.known, self.tables, self.findings = policies, known, tables, findings
        self.count, self.looked = 0, 0
        self.roots: dict[int, bytes] = {}
        self.open_requests: dict[str, int] = {}

    def check(self, wanted: set[int]) -> None:
        """One walk; memory grows with private values alone. Raises Broken if a file that it needs is malformed."""
        signed = self.signed
        try:
            proof = load_json(signed.pack.read("proofs/range.json"))
            left = [bytes.fromhex(node) for node in proof["left"]]
            right = [bytes.fromhex(node) for node in proof["right"]]
        except (ValueError, KeyError, TypeError):
            raise Broken("proofs/range.json is not a proof of this format") from None
        self.known.read()
        self.tables.begin()
        tree = self.before(left)
        self.come_through(tree, wanted)
        with signed.pack.open("events.jsonl") as file, signed.pack.open(LEAVES) as hashes:
            for line in iter(lambda: file.readline(MAX_LINE), b""):
                seq = signed.first + self.count
                self.count += 1
                tree.append(self.check_event(line.rstrip(b"\n"), seq, hashes.read(HASH_SIZE)))
                self.come_through(tree, wanted)
        end = signed.first + self.count
        for seq in range(end, min(signed.end, end + MAX_FINDINGS)):
            self.findings.fault("sequence", "record " + str(seq) + " is missing at the end", seq)
        self.findings.more("sequence", signed.end - end - MAX_FINDINGS)
        if self.count > signed.end - signed.first:
            self.findings.fault("sequence", "there are more records than the manifest says")
        self.check_root(tree, right)
        self.known.check_leftovers()
        if self.open_requests:
            told = str(len(self.open_requests)) + " calls had no outcome yet at the end of the period"
            self.findings.notes.append(told)
        self.fields.check_leftovers()

    def before(self, left: list[bytes]) -> Tree:
        """The tree as it was before the first record, of which `left` are the perfect subtrees."""
        tree, heights = Tree(), list(aligned(0, self.signed.first))
        if len(heights) == len(left):
            for at, height in enumerate(heights):
                tree.append(left[at], height)
        else:
            self.findings.fault("root", "the proof of what came before the first record has the wrong length")
        return tree

    def come_through(self, tree: Tree, wanted: set[int]) -> None:
        if tree.size in wanted:
            self.roots[tree.size] = tree.root()
        self.known.check(tree)

    def check_event(self, line: bytes, seq: int, logged: bytes) -> bytes:
        """The hash that the tree has for it. `logged` is the one that the pack names for this record."""
        digest = leaf_hash(line)
        if not line:
            self.fields.check_expired(seq)
            self.tables.take_expired(seq)
            return logged  # it stands for what is gone
        if logged != digest:
            was = self.place_of(digest)
            if was is not None:
                self.findings.fault("sequence", "here is what was logged as record " + str(was), seq)
            else:
                self.findings.fault("hash", "it is not what was logged: it was changed, or put in later", seq)
        try:
            event = canonical(line)
            if not is_record(event):
                raise Broken("it is not a record of this format")
        except Broken as error:
            self.findings.fault("form", str(error), seq)
            return digest
        if event.get("tenant") != self.signed.tenant:
            self.findings.fault("tenant", "it belongs to tenant " + str(event.get("tenant")), seq)
        self.check_pairing(event, seq)
        self.fields.check(event, seq)
        self.policies.check(event, seq)
        self.certificates.note_announced(event, seq)
        try:
            self.tables.take(seq, event, line.decode())
        except Broken as error:
            self.findings.fault("form", str(error), seq)
        return digest

    def place_of(self, digest: bytes) -> int | None:
        """The record that was logged under this hash. Looked for as often as findings are listed."""
        self.looked += 1
        if self.looked > MAX_FINDINGS:
            return None
        with self.signed.pack.open(LEAVES) as file:
            for at, one in enumerate(iter(lambda: file.read(HASH_SIZE), b"")):
                if one == digest:
                    return self.signed.first + at
        return None

    def check_pairing(self, event: dict[str, Any], seq: int) -> None:
        kind, request = event["type"], str(event.get("request_id"))
        if kind == ACCEPTED:
            if request in self.open_requests:
                told = "request " + request + " is accepted again while it is open"
                self.findings.fault("pairing", told, seq)
            self.open_requests[request] = seq
        elif kind == WITHIN or kind in CLOSES:
            if request not in self.open_requests and self.signed.first == 0:
                told = kind + " of request " + request + ", which was never accepted"
                self.findings.fault("pairing", told, seq)
            if kind in CLOSES:
                self.open_requests.pop(request, None)

    def check_root(self, tree: Tree, right: list[bytes]) -> None:
        end, size = self.signed.end, self.signed.size
        heights = list(aligned(end, size)) if size >= end else []
        if len(heights) != len(right) or size < end:
            self.findings.fault("root", "the proof of what came after the last record does not fit the checkpoint")
            return
        for at, height in enumerate(heights):
            tree.append(right[at], height)
        if tree.root() != self.signed.root:
            self.findings.fault(
                "root", "the records do not lead to the signed checkpoint: something among them is not what was signed"
            )


def is_record(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("v") == 1
        and isinstance(event.get("type"), str)
        and isinstance(event.get("commits", {}), dict)
    )
