"""Certificates of deletion: signed, announced by a record, and covering only what came before them."""

from __future__ import annotations

import hashlib
from typing import Any

from audit.pack_verifier.canonical import canonical, load_json
from audit.pack_verifier.fault import Broken, Findings
from audit.pack_verifier.signed import Signed


class Certificates:
    """By id: what each says, and the SHA-256 that a record has to announce it with."""

    def __init__(self, signed: Signed, findings: Findings) -> None:
        self.signed, self.findings = signed, findings
        self.said: dict[str, dict[str, Any]] = {}
        self.digests: dict[str, str] = {}
        self.announced: dict[str, int] = {}
        self.settled: dict[str, int] = {}  # by id: the last record that is covered by its event id alone

    def read(self) -> None:
        pack, origin = self.signed.pack, self.signed.origin
        for name in sorted(name for name in pack.names() if name.startswith("certificates/")):
            try:
                text = self.signed.open_signed(pack.read(name).decode(), origin)
                first, _, body = text[:-1].partition("\n")
                certificate = canonical(body.encode())
                if first != origin + " certificate" or certificate["tenant"] != self.signed.tenant:
                    raise Broken("it is not of this tenant")
                self.said[str(certificate["id"])] = certificate
                self.digests[str(certificate["id"])] = hashlib.sha256(body.encode()).hexdigest()
            except (Broken, ValueError, KeyError, TypeError) as error:
                self.findings.fault("certificate", "the certificate " + name + " does not hold: " + str(error))

    def bodies(self) -> list[dict[str, Any]]:
        """What all of them say, in the order of their ids."""
        return [body for _, body in sorted(self.said.items())]

    def note_announced(self, event: dict[str, Any], seq: int) -> None:
        """What record `seq` announces, if anything."""
        if isinstance(digest := event.get("certificate_sha256"), str):
            self.announced[digest] = seq

    def check_erased(self, name: str, seq: int, field: str, event_id: str = "") -> None:
        """Raises Broken if the certificate `name` does not say that this field of this record was deleted.

        Values that were deleted before their record was written are listed with the id of the event that was meant.
        """
        if name not in self.said:
            raise Broken("the value of " + field + " is said to be erased, but certificate " + name + " is not here")
        covered = self.said[name]["covered"].get(field, [])
        if any(first <= seq <= last for first, last in covered):
            return
        if [seq, event_id] not in (self.said[name].get("unsettled") or {}).get(field, []):
            raise Broken("certificate " + name + " does not cover " + field)
        self.settled[name] = max(seq, self.settled.get(name, -1))

    def check(self) -> None:
        """Each must have been announced by a record, in this pack or proven to be under its checkpoint."""
        elsewhere: dict[str, Any] = {}
        try:
            elsewhere = load_json(self.signed.pack.read("proofs/certificates.json"))
        except ValueError:
            self.findings.fault("certificate", "proofs/certificates.json is not of this format")
        for name in self.said:
            seq = self.announced.get(self.digests[name])
            try:
                if seq is None:
                    said = elsewhere.get(name, {})
                    leaf, seq = str(said["leaf"]).encode(), int(said["seq"])
                    self.signed.proven(leaf, seq, [bytes.fromhex(node) for node in said["proof"]])
                    if canonical(leaf).get("certificate_sha256") != self.digests[name]:
                        raise Broken("its record announces another certificate")
                spans = [span for field in self.said[name]["covered"].values() for span in field]
                if any(last >= seq for _, last in spans) or self.settled.get(name, -1) >= seq:
                    raise Broken("it covers records that were made after it")
            except (KeyError, TypeError, ValueError, AttributeError):
                self.findings.fault("certificate", "no record announces certificate " + name)
            except Broken as error:
                self.findings.fault("certificate", "certificate " + name + " does not hold: " + str(error))
