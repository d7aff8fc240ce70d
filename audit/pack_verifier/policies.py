"""Policies: the policy of each call is in the pack and was in force, and a record states when it took effect."""

from __future__ import annotations

import hashlib
from typing import Any

from audit.pack_verifier.canonical import canonical
from audit.pack_verifier.fault import Broken, Findings
from audit.pack_verifier.history import EARLY, OPERATOR, History, moment, read_listed, version_name
from audit.pack_verifier.signed import Signed

ACCEPTED = "inference.accepted"
DECIDED = (ACCEPTED, "inference.denied")
ACTIVATED = "admin.policy.activated"


class Policies:
    """`rulings`: what versions made together, by the hash that calls name it with."""

    def __init__(self, signed: Signed, findings: Findings) -> None:
        self.signed, self.findings, self.history = signed, findings, History(findings)
        self.rulings: dict[str, list[dict[str, Any]]] = {}
        self.spans: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.activations: list[tuple[int, dict[str, Any]]] = []
        self.unproven: dict[str, dict[str, Any]] = {}
        self.latest = ""  # time of the latest record so far: what comes after it in the log is no older
        self.behind: list[tuple[int, str]] = []  # calls that only the order of records explains, and their node

    def read(self) -> None:
        self.history.read(self.signed.pack)
        for one in read_listed(self.signed.pack, "policies_in_force.json", self.findings):
            try:
                self.take(one)
            except Broken as error:
                self.findings.fault("policy", str(error))
            except (ValueError, KeyError, TypeError):
                self.findings.fault("policy", "policies_in_force.json is not of this format")
        self.read_proven()

    def take(self, one: dict[str, Any]) -> None:
        name = str(one["policy_hash"])
        parts = {str(part["scope"]): int(part["number"]) for part in one["made_of"]}
        if one["canonical"] == "":
            self.unproven[name] = one
        elif hashlib.sha256(str(one["canonical"]).encode()).hexdigest() != name:
            raise Broken("the text of policy " + name + " is not what its hash is of")
        for part in one["made_of"]:
            known = self.history.versions.get((str(part["scope"]), int(part["number"])))
            if known is None or known.sha256 != part["sha256"]:
                raise Broken("policy " + name + " is made of " + version_name(part) + ", which is not in the history")
        if "" not in parts or len(parts) != len(one["made_of"]) or len(set(parts) - {OPERATOR, ""}) > 1:
            raise Broken("policy " + name + " is not made of a tenant's and at most a project's version")
        self.rulings.setdefault(name, []).append({**one, "parts": parts})

    def check(self, event: dict[str, Any], seq: int) -> None:
        """That what decided the call is in the history, and was in force for its project at that time."""
        self.latest = max(self.latest, str(event.get("ts")))
        if event["type"] == ACTIVATED:
            self.activations.append((seq, event))
        if event["type"] not in DECIDED:
            return
        if event.get("policy_hash") is not None:
            self.check_decision(event, seq)
        elif event["type"] == ACCEPTED:
            self.findings.fault("policy", "it was accepted under no policy", seq)

    def check_decision(self, event: dict[str, Any], seq: int) -> None:
        """That the policy which decided a call is in the pack under the name the call gives, and was in force then."""
        name, ts = str(event["policy_hash"]), str(event.get("ts"))
        project = str(event.get("project"))
        told = "the policy that decided it (" + str(event.get("policy_id")) + ", version "
        told += str(event.get("policy_version")) + ")"
        made = self.rulings.get(name)
        if made is None:
            self.findings.fault("policy", told + " is not in the pack", seq)
            return
        called = event.get("policy_id"), event.get("policy_version")
        if not any((one["policy_id"], one["policy_version"]) == called for one in made):
            self.findings.fault("policy", told + " is called otherwise in the pack", seq)
        spans = self.spans.get((name, project))
        if spans is None:
            spans = self.spans[name, project] = [
                span for one in made for span in self.history.in_force(one["parts"], project)
            ]
        if any(first <= ts <= last for first, last in spans):
            return
        if any(ts < first <= self.latest and ts <= last for first, last in spans):
            self.behind.append((seq, str(event.get("gateway_node"))))
        else:
            self.findings.fault("policy", told + " was not in force then for project " + project, seq)

    def check_activations(self) -> None:
        """Records that put versions in force, in this pack or proven under its checkpoint, against the history."""
        announced: set[tuple[str, int]] = set()
        for seq, event in self.activations:
            try:
                self.check_activation(event, announced)
            except Broken as error:
                self.findings.fault("policy", str(error), seq)
            except (ValueError, KeyError, TypeError, AttributeError):
                self.findings.fault("policy", "it is not an activation of this format", seq)
        for name in self.unproven:
            said = "nothing shows what policy " + name + " said: neither its text nor a record"
            self.findings.fault("policy", said)
        if self.behind:
            nodes = ", ".join(sorted({node for _, node in self.behind}))
            self.findings.notes.append(
                str(len(self.behind))
                + " calls, from record "
                + str(self.behind[0][0])
                + " on, bear a time before their "
                "policy came into force, though earlier records are later than that: the clock of " + nodes + " was "
                "behind. The order of the records, which does not rest on clocks, shows that the policy was in force."
            )
        versions = self.history.versions.items()
        silent = sorted(version_name(one.said) for place, one in versions if place not in announced)
        if silent:
            self.findings.notes.append(
                "No record of this tenant says when these came into force; their times are what the gateway's register "
                "says: " + ", ".join(silent[:10]) + (", and others" if len(silent) > 10 else "")
            )

    def read_proven(self) -> None:
        for one in read_listed(self.signed.pack, "proofs/policies.json", self.findings):
            try:
                leaf, seq = str(one["leaf"]).encode(), int(one["seq"])
                self.signed.proven(leaf, seq, [bytes.fromhex(node) for node in one["proof"]])
                event = canonical(leaf)
                self.activations.append((seq, event))
                if seq < self.signed.first:
                    self.latest = max(self.latest, str(event.get("ts")))
            except Broken as error:
                self.findings.fault("policy", "the proof of an activation does not hold: " + str(error))
            except (ValueError, KeyError, TypeError, AttributeError):
                self.findings.fault("policy", "proofs/policies.json is not of this format")

    def check_activation(self, event: dict[str, Any], announced: set[tuple[str, int]]) -> None:
        """Adds scope and number of what it put in force. Raises Broken if the history tells it otherwise."""
        detail = event["detail"]
        place = str(event.get("project") or ""), int(detail["number"])
        version, at = self.history.versions.get(place), moment(str(event["ts"]))
        named = version_name({"scope": place[0], "number": place[1]})
        if version is None:
            raise Broken("it put " + named + " in force, which is not in the history")
        announced.add(place)
        if version.sha256 != detail["sha256"]:
            raise Broken("it put another text in force than the history has as " + named)
        if not -EARLY <= at - version.since <= EARLY:
            raise Broken("it put " + named + " in force at another time than the history says")
        made = self.rulings.get(str(detail.get("policy_hash")), [])
        if made and not any(one["parts"].get(place[0]) == place[1] for one in made):
            raise Broken("it says that " + named + " made another policy than the pack does")
        held = self.unproven.get(str(detail.get("policy_hash")))
        if held is not None and any((str(part["scope"]), int(part["number"])) == place for part in held["made_of"]):
            del self.unproven[str(detail.get("policy_hash"))]
