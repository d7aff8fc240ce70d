"""A decision in words, for people and for machines: the same words in the 403 body, the record and the console."""

from typing import Any

from policy.decision import Decision


def explain_lines(decision: Decision) -> list[str]:
    """Plain text, one statement a line."""
    verdict = "allowed" if decision.allowed else "denied"
    lines = [f"{verdict} by {decision.policy_id} version {decision.version} (countries {decision.countries_version})"]
    for backend in decision.backends:
        lines.append(f"  may use {backend}: transfer basis {decision.transfer_basis[backend]}")
    lines += [f"  refused: {reason}" for reason in decision.reasons]
    if not decision.allowed:
        return lines
    plan = decision.redaction
    for direction, actions in (("prompt", plan.input), ("answer", plan.output)):
        if actions:
            lines.append(
                f"  in the {direction}: " + ", ".join(f"{action} {label}" for label, action in actions.items())
            )
    lines.append(f"  kept: {decision.retention}")
    if decision.retention.because:
        lines.append(f"    because {decision.retention.because}")
    lines += [f"  notice {notice.name} in the {notice.channel}: {notice.text}" for notice in decision.notices]
    return lines


def explain_json(decision: Decision) -> dict[str, Any]:
    """The same as plain JSON values."""
    return {
        "allowed": decision.allowed,
        "policy": {"id": decision.policy_id, "version": decision.version, "hash": decision.hash},
        "countries_version": decision.countries_version,
        "backends": [{"id": name, "transfer_basis": decision.transfer_basis[name]} for name in decision.backends],
        "reasons": [
            {"rule": r.rule, "candidate": r.candidate, "because": r.because, "article": r.article}
            for r in decision.reasons
        ],
        "redaction": {"input": dict(decision.redaction.input), "output": dict(decision.redaction.output)},
        "retention": {
            "metadata_days": decision.retention.metadata_days,
            "content_days": decision.retention.content_days,
            "because": decision.retention.because,
        },
        "notices": [{"name": n.name, "channel": n.channel, "text": n.text} for n in decision.notices],
    }
