"""The history of policies: each version's text and time, and who was ruled by which versions when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from audit.pack_verifier.archive import Pack
from audit.pack_verifier.canonical import load_json
from audit.pack_verifier.fault import Broken, Findings

OPERATOR = "_operator"  # the scope of the policy above all tenants; the tenant's own is "", others are projects
EARLY, LATE = timedelta(seconds=60), timedelta(seconds=300)  # clocks of nodes; a call is decided before it is recorded


class Version:
    """One version of a policy, as the history has it."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said
        self.scope, self.number, self.sha256 = str(said["scope"]), int(said["number"]), str(said["sha256"])
        self.said_since, self.said_until = str(said["activated_at"]), str(said["in_force_until"])
        self.since = moment(self.said_since)
        self.until: datetime | None = None


def version_name(said: dict[str, Any]) -> str:
    scope = str(said["scope"])
    whose = {"": "the tenant's policy", OPERATOR: "the operator's policy"}.get(scope, "the policy of project " + scope)
    return "version " + str(said["number"]) + " of " + whose


def moment(text: str) -> datetime:
    """A time of a record, in UTC: 2026-03-01T09:30:00.000Z."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds") + "Z"


def read_listed(pack: Pack, name: str, findings: Findings) -> list[dict[str, Any]]:
    """The objects that the file lists; none, and a finding, if it is not such a file."""
    try:
        found = load_json(pack.read(name))
        if isinstance(found, list) and all(isinstance(one, dict) for one in found):
            return found
        findings.fault("policy", name + " is not of this format")
    except ValueError:
        findings.fault("policy", name + " is not of this format")
    except Broken as error:
        findings.fault("policy", str(error))
    return []


class History:
    """Versions by scope and number."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.versions: dict[tuple[str, int], Version] = {}

    def read(self, pack: Pack) -> None:
        for one in read_listed(pack, "policy_history.json", self.findings):
            if "text" in one:  # otherwise it is a record of a version whose text is not in the pack
                self.take(one)
        self.check_order()

    def take(self, one: dict[str, Any]) -> None:
        try:
            version = Version(one)
            if hashlib.sha256(str(one["text"]).encode()).hexdigest() != version.sha256:
                self.findings.fault("policy", "the text of " + version_name(one) + " is not the one that was activated")
            if self.versions.setdefault((version.scope, version.number), version) is not version:
                self.findings.fault("policy", version_name(one) + " is in the history twice")
        except (ValueError, KeyError, TypeError):
            self.findings.fault("policy", "policy_history.json is not of this format")

    def check_order(self) -> None:
        """Each version of a scope was in force until the next."""
        for (scope, number), version in self.versions.items():
            later = [one for one in self.versions.values() if one.scope == scope and one.number > number]
            after = min(later, key=lambda one: one.number, default=None)
            name = version_name(version.said)
            if version.said_until != (after.said_since if after else ""):
                self.findings.fault("policy", name + " ends at another time than the next one begins")
            if after is not None and after.since < version.since:
                self.findings.fault("policy", version_name(after.said) + " begins before the one that it replaced")
            version.until = after.since if after else None

    def in_force(self, parts: dict[str, int], project: str) -> Iterator[tuple[str, str]]:
        """When these versions and no others decided calls of the project, with what clocks may differ."""
        if set(parts) - {OPERATOR, "", project}:
            return
        first, last = datetime.min + EARLY, datetime.max - LATE
        for scope in {OPERATOR, "", project}:
            if scope in parts:
                version = self.versions[scope, parts[scope]]
                first, last = max(first, version.since), min(last, version.until or last)
            else:  # before there was any
                last = min([last] + [one.since for one in self.versions.values() if one.scope == scope])
        if first <= last:
            yield stamp(first - EARLY), stamp(last + LATE)
