"""A policy in words, rule by rule, and the differences of two policies."""

from collections.abc import Mapping
from dataclasses import dataclass

from policy.conditions.registry import CONDITIONS
from policy.decision.compile import Bounds, CompiledPolicy, ConditionalRule
from policy.decision.residency import CountryRule


@dataclass(frozen=True, slots=True)
class Difference:
    """``""`` is where one of them does not say anything. `note`: which countries a rule gains and loses."""

    rule: str
    before: str
    after: str
    note: str = ""

    def __str__(self) -> str:
        note = f"  ({self.note})" if self.note else ""
        return f"{self.rule}: {self.before or 'not said'} -> {self.after or 'not said'}{note}"


def effective(policy: CompiledPolicy) -> dict[str, str]:
    """Every rule that holds, all levels together; a rule that bounds nothing is left out."""
    said: dict[str, str] = {
        "residency.process_in": policy.process_in.name,
        "residency.store_in": policy.store_in.name,
        "residency.subprocessors": policy.subprocessors.name,
        "residency.transfer_basis": ", ".join(sorted(policy.transfer.accepted)) or "none",
        "residency.dpf_accepted": "yes" if policy.dpf_accepted else "no",
        "priority": policy.priority,
        "retention.metadata": f"{policy.retention.metadata_days} d",
        "retention.content": f"encrypted, {policy.retention.content_days} d"
        if policy.retention.content_days
        else "none",
        "retention.commitments": f"encrypted, {policy.retention.commitment_days} d"
        if policy.retention.commitment_days
        else "",
        "transparency.art50_notice": ", ".join(notice.channel for notice in policy.notices) or "none",
        "transparency.marking": ", ".join(policy.marking),
    }
    for condition in CONDITIONS:
        if (bound := policy.asked[condition.name]) is not None:
            said |= condition.described(bound)
    said |= _redaction(policy)
    said |= {f"limits.{name}": f"{value:g}" for name, value in policy.limits if value is not None}
    said |= _bounds("", Bounds(None, None, policy.head_office, policy.ultimate_parent, policy.backend))
    for rule in policy.rules:
        said |= _conditional(rule)
    return {rule: words for rule, words in said.items() if words}


def differences(old: CompiledPolicy, new: CompiledPolicy) -> list[Difference]:
    """In the order of the rules' names."""
    before, after = effective(old), effective(new)
    notes = {
        "residency.process_in": _moved(old.process_in, new.process_in),
        "residency.store_in": _moved(old.store_in, new.store_in),
        "residency.subprocessors": _moved(old.subprocessors, new.subprocessors),
    }
    found = (
        Difference(rule, before.get(rule, ""), after.get(rule, ""), notes.get(rule, ""))
        for rule in sorted({*before, *after})
    )
    return [one for one in found if one.before != one.after or one.note]


def _redaction(policy: CompiledPolicy) -> Mapping[str, str]:
    """What is done with each label in what is sent and in answers, and with a request whose redaction fails."""
    said: dict[str, str] = {f"redaction.input.{label}": action for label, action in policy.redaction.input.items()}
    said |= {f"redaction.output.{label}": action for label, action in policy.redaction.output.items()}
    said["redaction.on_failure"] = policy.on_failure.mode or "deny"
    return said | {f"redaction.sovereign.{name}": rule.name for name, rule in policy.on_failure.bounds.items()}


def _conditional(rule: ConditionalRule) -> Mapping[str, str]:
    """When a rule of ``rules`` applies, whether it denies, and its bounds."""
    name = f"rules.{rule.name}."
    when = "; ".join(f"{key}: {', '.join(value)}" for key, value in rule.when if value is not None)
    return {
        f"{name}when": when or "always",
        f"{name}deny": "yes" if rule.deny else "",
        **_bounds(name, rule.bounds),
    }


def _bounds(prefix: str, bounds: Bounds) -> Mapping[str, str]:
    residency, managed = prefix or "residency.", bounds.backend.managed or ""
    places = {
        f"{residency}process_in": bounds.process_in,
        f"{residency}store_in": bounds.store_in,
        f"{residency}operator.head_office": bounds.head_office,
        f"{residency}operator.ultimate_parent": bounds.ultimate_parent,
    }
    said = {rule: place.name for rule, place in places.items() if place is not None}
    return said | {
        f"{prefix}backend.kind": bounds.backend.kind or "",
        f"{prefix}backend.single_tenant": bounds.backend.single_tenant or "",
        f"{prefix}backend.managed": managed if managed != "redacted" or prefix else "",  # the default is not named
        f"{prefix}backend.attested": " or ".join("+".join(sorted(each)) for each in bounds.backend.attested),
        f"{prefix}backend.certifications": ", ".join(sorted(bounds.backend.certifications)),
    }


def _moved(old: CountryRule, new: CountryRule) -> str:
    before, after = {*old.full, *old.partial}, {*new.full, *new.partial}
    parts = [("gains", after - before), ("loses", before - after)]
    return "; ".join(f"{verb} {_some(sorted(countries))}" for verb, countries in parts if countries)


def _some(countries: list[str]) -> str:
    return ", ".join(countries[:8]) + (f" and {len(countries) - 8} more" if len(countries) > 8 else "")
