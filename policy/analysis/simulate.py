"""What another policy would have done to recorded calls: which would be refused, admitted or moved, and by which rule.

Pure: each kind of call is decided by both policies over the same facts of today. What was recorded says which kinds
there are, how often each came, and which backend answered.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from policy.decision.compile import CompiledPolicy
from policy.decision.decision import Decision, decide
from policy.facts import RequestFacts

Effect = Literal["refused", "admitted", "moved", "same"]


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """`count` calls of one kind. `backend`: which answered them, None where they were refused."""

    facts: RequestFacts
    backend: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Group:
    """Calls of one project and model that fare alike. `because`: the first rule that refuses, in words."""

    effect: Effect
    project: str
    model: str
    rule: str
    because: str
    count: int

    def __str__(self) -> str:
        why = f": {self.because} [{self.rule}]" if self.rule else ""
        return f"{self.count} of {self.project}/{self.model} {_WORDS[self.effect]}{why}"


@dataclass(frozen=True, slots=True)
class Impact:
    """`groups`: what would change, most calls first. `rules`: changed calls by the rule behind it."""

    calls: int
    same: int
    groups: tuple[Group, ...]
    rules: dict[str, int]

    @property
    def refused(self) -> int:
        return sum(group.count for group in self.groups if group.effect == "refused")

    def as_json(self) -> dict[str, Any]:
        groups = [
            {"effect": g.effect, "project": g.project, "model": g.model, "rule": g.rule, "because": g.because,
             "count": g.count}
            for g in self.groups
        ]  # fmt: skip
        return {"calls": self.calls, "same": self.same, "changes": groups, "rules": self.rules}


_WORDS: dict[Effect, str] = {
    "refused": "would be refused",
    "admitted": "would be admitted",
    "moved": "would move to another backend",
    "same": "stay as they are",
}

PolicyOf = Callable[[str], CompiledPolicy]
"""What is in force for a project."""


def simulate(traffic: Iterable[RecordedCalls], old: PolicyOf, new: PolicyOf) -> Impact:
    counts: Counter[tuple[Effect, str, str, str, str]] = Counter()
    rules: Counter[str] = Counter()
    calls = 0
    for kind in traffic:
        project = kind.facts.project or ""
        before, after = decide(old(project), kind.facts), decide(new(project), kind.facts)
        effect = _effect(before, after, kind.backend)
        rule, because = _cause(after if effect in ("refused", "moved") else before, kind.backend)
        calls += kind.count
        if effect == "same":
            rule = because = ""
        else:
            rules[rule] += kind.count
        counts[effect, project, kind.facts.model or "", rule, because] += kind.count
    groups = tuple(Group(*key, count) for key, count in counts.most_common() if key[0] != "same")
    same = sum(count for key, count in counts.items() if key[0] == "same")
    return Impact(calls, same, groups, dict(rules.most_common()))


def _effect(before: Decision, after: Decision, backend: str | None) -> Effect:
    if before.allowed != after.allowed:
        return "admitted" if after.allowed else "refused"
    stays = (*after.backends, *after.pending)
    if after.allowed and backend in (*before.backends, *before.pending) and backend not in stays:
        return "moved"
    return "same"


def _cause(decision: Decision, backend: str | None) -> tuple[str, str]:
    """Why it is refused: what concerns the request first, then the backend that answered, then any other."""
    ranked = sorted(decision.reasons, key=lambda reason: (reason.candidate is not None, reason.candidate != backend))
    return (ranked[0].rule, ranked[0].because) if ranked else ("", "")
