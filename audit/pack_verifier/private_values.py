"""Private values: what became of each that a record commits to. Disclosed, withheld, erased; never just missing."""

from __future__ import annotations

import hmac
from typing import Any, BinaryIO

from audit.pack_verifier.canonical import load_json
from audit.pack_verifier.certificates import Certificates
from audit.pack_verifier.fault import Broken, Findings
from audit.pack_verifier.signed import Signed

MAX_FIELD_LINE = 64 << 20  # bytes: a value that is shown may be a whole prompt


class Fields:
    """What fields.jsonl says of each private value, read along with the records; `states` counts the outcomes.

    The file is in the order of the records. A line that is not where its record is counts as one of no record.
    """

    def __init__(self, signed: Signed, certificates: Certificates, findings: Findings) -> None:
        self.signed, self.certificates, self.findings = signed, certificates, findings
        self.file: BinaryIO | None = None
        self.ahead: dict[str, Any] | None = None  # the first line that was not asked for yet
        self.states: dict[str, int] = {}

    def read(self) -> None:
        self.file = self.signed.pack.open("fields.jsonl")
        self.ahead = self.next_line()

    def next_line(self) -> dict[str, Any] | None:
        """None at the end of the file."""
        while self.file is not None and (line := self.file.readline(MAX_FIELD_LINE)):
            try:
                said = load_json(line)
                said["seq"], said["field"] = int(said["seq"]), str(said["field"])
                return dict(said)
            except (ValueError, KeyError, TypeError):
                self.findings.fault("field", "a line of fields.jsonl is not of this format")
        return None

    def of(self, seq: int) -> dict[str, dict[str, Any]]:
        """By field, what is said of record `seq`. To be asked for in ascending order."""
        found: dict[str, dict[str, Any]] = {}
        while self.ahead is not None and self.ahead["seq"] <= seq:
            if self.ahead["seq"] == seq:
                found[self.ahead["field"]] = self.ahead
            else:
                self.leftover(self.ahead)
            self.ahead = self.next_line()
        return found

    def check(self, event: dict[str, Any], seq: int) -> None:
        commits = event.get("commits", {})
        there = self.of(seq) if commits else {}
        for field in sorted(commits):
            said = there.pop(field, {"state": "missing"})
            state = str(said.get("state"))
            try:
                if state == "disclosed":
                    self.check_shown(said, str(event.get("event_id")), field, str(commits[field]))
                elif state == "erased":
                    self.certificates.check_erased(str(said.get("certificate")), seq, field, str(event.get("event_id")))
                elif state != "withheld":
                    raise Broken("the value of " + field + " is missing, and no certificate says that it was deleted")
            except (Broken, ValueError) as error:
                state = "wrong"
                self.findings.fault("field", str(error), seq)
            self.count(state)
        for said in there.values():
            self.leftover(said)

    def check_shown(self, said: dict[str, Any], event_id: str, field: str, commitment: str) -> None:
        """Raises Broken if value and salt do not make the commitment, ValueError if the salt is not hex."""
        message = "v1|" + self.signed.tenant + "|" + event_id + "|" + field + "|" + str(said.get("jcs"))
        made = hmac.new(bytes.fromhex(str(said.get("salt"))), message.encode(), "sha256").hexdigest()
        if not hmac.compare_digest(made.encode(), commitment.encode()):
            raise Broken("the value shown for " + field + " is not the one that was recorded")

    def check_expired(self, seq: int) -> None:
        """A record whose content retention deleted: a certificate must say so."""
        said = self.of(seq).get("record", {})
        try:
            if said.get("state") != "erased":
                raise Broken("its content is missing, and no certificate says that it expired")
            self.certificates.check_erased(str(said.get("certificate")), seq, "record")
            self.count("expired")
        except Broken as error:
            self.findings.fault("expired", str(error), seq)

    def count(self, state: str) -> None:
        self.states[state] = self.states.get(state, 0) + 1

    def leftover(self, said: dict[str, Any]) -> None:
        told = "fields.jsonl names " + said["field"] + ", to which no record commits"
        self.findings.fault("field", told, said["seq"])

    def check_leftovers(self) -> None:
        while self.ahead is not None:
            self.leftover(self.ahead)
            self.ahead = self.next_line()
        if self.file is not None:
            self.file.close()
