"""A decision in words, for people and for machines: the same words in the 403 body, the record and the console."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policy.conditions.registry import EXPLAINED_BY
from policy.decision.decision import Decision
from policy.document.document import PolicyDocument
from policy.reason import Reason


def explain_lines(decision: Decision) -> list[str]:
    """Plain text, one statement a line."""
    verdict = "allowed" if decision.allowed else "denied"
    lines = [f"{verdict} by {decision.policy_id} version {decision.version} (countries {decision.countries_version})"]
    for backend in decision.backends:
        lines.append(f"  may use {backend}: transfer basis {decision.transfer_basis[backend]}")
    lines += _awaited(decision)
    lines += [f"  refused: {reason}" for reason in decision.reasons]
    if not decision.allowed:
        return lines
    plan = decision.redaction
    for direction, actions in (("prompt", plan.input), ("answer", plan.output)):
        if actions:
            lines.append(
                f"  in the {direction}: " + ", ".join(f"{action} {label}" for label, action in actions.items())
            )
    lines += [f"  if redaction fails, {name} may get the prompt as it is" for name in decision.sovereign]
    lines.append(f"  kept: {decision.retention}")
    if decision.retention.because:
        lines.append(f"    because {decision.retention.because}")
    lines += [f"  marked by {each}" for each in decision.marking]
    lines += ["  commits to its activations"] * decision.commits
    lines += [f"  notice {notice.name} in the {notice.channel}: {notice.text}" for notice in decision.notices]
    return lines


def explain_json(decision: Decision) -> dict[str, Any]:
    """The same as plain JSON values."""
    return {
        "allowed": decision.allowed,
        "policy": {"id": decision.policy_id, "version": decision.version, "hash": decision.hash},
        "countries_version": decision.countries_version,
        "backends": [{"id": name, "transfer_basis": decision.transfer_basis[name]} for name in decision.backends],
        "pending": list(decision.pending),
        "reasons": [
            {"rule": r.rule, "candidate": r.candidate, "because": r.because, "article": r.article}
            for r in decision.reasons
        ],
        "redaction": {"input": dict(decision.redaction.input), "output": dict(decision.redaction.output)},
        "if_redaction_fails": list(decision.sovereign),
        "retention": {
            "metadata_days": decision.retention.metadata_days,
            "content_days": decision.retention.content_days,
            "commitment_days": decision.retention.commitment_days,
            "because": decision.retention.because,
        },
        "notices": [{"name": n.name, "channel": n.channel, "text": n.text} for n in decision.notices],
        "marking": list(decision.marking),
        "commits": decision.commits,
    }


@dataclass(frozen=True, slots=True)
class Source:
    """A document that a decision rests on, and where its text came from."""

    name: str
    document: PolicyDocument
    text: str


def explain_source(decision: Decision, sources: Sequence[Source]) -> list[str]:
    """Each refusal in the form of a compiler's message: the rule, the line that says so in every document, the law.

    `sources` from the top level down. A rule that no document writes down (a missing fact, another tenant's backend)
    is one that always holds.
    """
    verdict = "allowed" if decision.allowed else "denied"
    lines = [
        f"{verdict}: {decision.policy_id} version {decision.version}, countries {decision.countries_version}"
        + (f", catalogue {decision.catalogue_version}" if decision.catalogue_version else "")
    ]
    for backend in decision.backends:
        lines.append(f"  may use {backend}, transfer basis {decision.transfer_basis[backend]}")
    lines += _awaited(decision)
    for reason in decision.reasons:
        lines += ["", *_told(reason, sources)]
    return lines


def _awaited(decision: Decision) -> list[str]:
    return [f"  may use {name} once it has shown what it runs" for name in decision.pending]


_STANDS_IN = {"residency.subprocessors": "residency.process_in", **EXPLAINED_BY}


def _told(reason: Reason, sources: Sequence[Source]) -> list[str]:
    subject = f"{reason.candidate} " if reason.candidate else ""
    lines = [f"refused[{reason.rule}]: {subject}{reason.because}"]
    rule = reason.rule
    written = [(source, line) for source in sources if (line := _line(source, rule))]
    if not written and rule in _STANDS_IN:  # what a document leaves out follows another of its rules
        rule = _STANDS_IN[rule]
        written = [(source, line) for source in sources if (line := _line(source, rule))]
    for source, line in written:
        text = source.text.splitlines()[line - 1]
        at, width = _span(text, rule)
        gutter = " " * len(str(line))
        lines += [
            f"{gutter}--> {source.name}:{line}",
            f"{gutter} |",
            f"{line} | {text}",
            f"{gutter} | {' ' * at}{'^' * width}",
        ]
    if not written:
        lines.append("  = always holds: no document asks for it, and none can lift it")
    if reason.article:
        lines.append(f"  = law: {reason.article}")
    return lines


def _line(source: Source, rule: str) -> int:
    """0 where the document does not say it: a line of the section around it says nothing of the rule."""
    line = source.document.line(rule)
    if not line or not 1 <= line <= len(source.text.splitlines()):
        return 0
    return line if rule.split(".")[-1] in source.text.splitlines()[line - 1] or rule.startswith("rules.") else 0


def _span(text: str, rule: str) -> tuple[int, int]:
    """The place of the rule's key and value in its line."""
    key = rule.split(".")[-1]
    at = text.find(f"{key}:")
    if at < 0:
        return len(text) - len(text.lstrip()), max(1, len(text.strip()))
    depth, end = 0, len(text)
    for place in range(at, len(text)):
        character = text[place]
        if character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
            if depth < 0:
                end = place
                break
        elif (character == "," and depth == 0) or (character == "#" and place and text[place - 1] == " "):
            end = place
            break
    return at, len(text[at:end].rstrip())
