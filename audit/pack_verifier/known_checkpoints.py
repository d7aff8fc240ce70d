"""Checkpoints that an auditor kept from earlier: the log has to extend each, or history was rewritten."""

from __future__ import annotations

from audit.pack_verifier.fault import Broken, Findings
from audit.pack_verifier.note import parse_checkpoint
from audit.pack_verifier.signed import Signed
from audit.pack_verifier.tree import Tree


class KnownCheckpoints:
    """By size: the root that the tree must have there. `notes` are the checkpoints as they were kept."""

    def __init__(self, signed: Signed, notes: list[str], findings: Findings) -> None:
        self.signed, self.notes, self.findings = signed, notes, findings
        self.promised: dict[int, bytes] = {}

    def read(self) -> None:
        for note in self.notes:
            try:
                origin, size, root = parse_checkpoint(self.signed.open_signed(note, self.signed.origin))
                if origin != self.signed.origin:
                    raise Broken("it is of " + origin)
            except Broken as error:
                self.findings.fault("held", "the checkpoint you hold does not hold: " + str(error))
                continue
            if self.promised.setdefault(size, root) != root:
                told = "you hold two different checkpoints of size " + str(size) + ": the log was forked"
                self.findings.fault("held", told)

    def check(self, tree: Tree) -> None:
        """At every size that the tree comes through."""
        if tree.size in self.promised and self.promised.pop(tree.size) != tree.root():
            told = "the log is not a continuation of the checkpoint you hold of size " + str(tree.size)
            self.findings.fault("held", told + ": history was rewritten")

    def check_leftovers(self) -> None:
        proven = "it proves records " + str(self.signed.first) + " to " + str(self.signed.end)
        for size in self.promised:
            told = "the checkpoint you hold of size " + str(size) + " is outside this pack: "
            self.findings.fault("held", told + proven)
