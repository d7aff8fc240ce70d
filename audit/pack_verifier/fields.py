"""Private values: what became of each that a record commits to. Disclosed, withheld, erased; never just missing."""

from __future__ import annotations

import hmac
import json
from typing import Any

from audit.pack_verifier.certificates import Certificates
from audit.pack_verifier.fault import Broken, Findings
from audit.pack_verifier.signed import Signed


class Fields:
    """By record and field: what fields.jsonl says. Taken out as the records pass by; `states` counts the outcomes."""

    def __init__(self, signed: Signed, certificates: Certificates, findings: Findings) -> None:
        self.signed, self.certificates, self.findings = signed, certificates, findings
        self.said: dict[tuple[int, str], dict[str, Any]] = {}
        self.states: dict[str, int] = {}

    def read(self) -> None:
        with self.signed.pack.open("fields.jsonl") as file:
            for line in file:
                try:
                    said = json.loads(line)
                    self.said[int(said["seq"]), str(said["field"])] = said
                except (ValueError, KeyError, TypeError):
                    self.findings.fault("field", "a line of fields.jsonl is not of this format")

    def check(self, event: dict[str, Any], seq: int) -> None:
        commits = event.get("commits", {})
        for field in sorted(commits):
            said = self.said.pop((seq, field), {"state": "missing"})
            state = str(said.get("state"))
            try:
                if state == "disclosed":
                    self.check_shown(said, str(event.get("event_id")), field, str(commits[field]))
                elif state == "erased":
                    self.certificates.check_erased(str(said.get("certificate")), seq, field)
                elif state != "withheld":
                    raise Broken("the value of " + field + " is missing, and no certificate says that it was deleted")
            except (Broken, ValueError) as error:
                state = "wrong"
                self.findings.fault("field", str(error), seq)
            self.count(state)

    def check_shown(self, said: dict[str, Any], event_id: str, field: str, commitment: str) -> None:
        """Raises Broken if value and salt do not make the commitment, ValueError if the salt is not hex."""
        message = "v1|" + self.signed.tenant + "|" + event_id + "|" + field + "|" + str(said.get("jcs"))
        made = hmac.new(bytes.fromhex(str(said.get("salt"))), message.encode(), "sha256").hexdigest()
        if not hmac.compare_digest(made.encode(), commitment.encode()):
            raise Broken("the value shown for " + field + " is not the one that was recorded")

    def check_expired(self, seq: int) -> None:
        """A record whose content retention deleted: a certificate must say so."""
        said = self.said.pop((seq, "record"), {})
        try:
            if said.get("state") != "erased":
                raise Broken("its content is missing, and no certificate says that it expired")
            self.certificates.check_erased(str(said.get("certificate")), seq, "record")
            self.count("expired")
        except Broken as error:
            self.findings.fault("expired", str(error), seq)

    def count(self, state: str) -> None:
        self.states[state] = self.states.get(state, 0) + 1

    def check_leftovers(self) -> None:
        for seq, field in self.said:
            self.findings.fault("field", "fields.jsonl speaks of " + field + ", to which no record commits", seq)
