"""One run over one pack: the steps in their order, and the report."""

from __future__ import annotations

from typing import Any

from audit.pack_verifier.archive import DAMAGED, Pack
from audit.pack_verifier.attestations import Attestations
from audit.pack_verifier.certificates import Certificates
from audit.pack_verifier.fault import Broken, Findings
from audit.pack_verifier.known_checkpoints import KnownCheckpoints
from audit.pack_verifier.note import parse_witness
from audit.pack_verifier.pack_tables import RECOMPUTED, Tables, is_checked
from audit.pack_verifier.policies import Policies
from audit.pack_verifier.private_values import Fields
from audit.pack_verifier.record_walk import Records
from audit.pack_verifier.signed import Signed


class Check:
    """`key` is the log's, `known` checkpoints and `witnesses` verifier keys: all from a place of the auditor's own.

    Raises ValueError if a witness's key is none.
    """

    def __init__(self, pack: Pack, key: str | None, known: list[str], witnesses: list[str]) -> None:
        self.findings = Findings()
        self.signed = Signed(pack, key, self.findings)
        self.certificates = Certificates(self.signed, self.findings)
        self.fields = Fields(self.signed, self.certificates, self.findings)
        self.policies = Policies(self.signed, self.findings)
        self.known = KnownCheckpoints(self.signed, known, self.findings)
        self.tables = Tables(self.signed, self.findings)
        self.records = Records(
            self.signed, self.fields, self.certificates, self.policies, self.known, self.tables, self.findings
        )
        self.attestations = Attestations(self.signed, self.findings)
        self.attestations.witnesses = [parse_witness(text) for text in witnesses]

    def run(self) -> None:
        """Without a manifest there is nothing to check; otherwise every step runs, also after findings of others."""
        try:
            self.signed.read_manifest()
        except Broken as error:
            self.findings.fault("pack", str(error))
            return
        for step in (
            self.signed.check_files,
            self.signed.check_checkpoint,
            self.certificates.read,
            self.fields.read,
            self.policies.read,
            lambda: self.records.check(self.attestations.anchored_sizes()),
            self.policies.check_activations,
            self.certificates.check,
            lambda: self.attestations.check(self.records.roots),
            lambda: self.tables.check(self.certificates.bodies()),
        ):
            try:
                step()
            except Broken as error:
                self.findings.fault("pack", str(error))
            except DAMAGED:
                self.findings.fault("pack", "a file of the pack cannot be unpacked: it is damaged")
        self.signed.pack.close()

    def report(self) -> dict[str, Any]:
        names = ("tenant", "origin", "key", "first", "end", "made_at")
        return {
            "ok": self.findings.total() == 0,
            "faults": self.findings.total(),
            "findings": self.findings.found,
            "notes": self.findings.notes,
            "records": self.records.count,
            "fields": self.fields.states,
            "recomputed": list(RECOMPUTED),
            "only_signed": sorted(name for name in self.signed.files if not is_checked(name)),
            **{name: self.signed.manifest.get(name) for name in names},
        }
