"""A policy file to start from: a preset's text under another name, with a comment above each key."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from policy.presets import preset_text

COMMENTS: Mapping[str, str] = MappingProxyType(
    {
        "policy": "Its name in decisions and records.",
        "version": "Raise it with each change; the record names it.",
        "extends": "A preset above this file: lines here may tighten it, none can loosen it.",
        "residency": "Where a prompt is computed and stored, who operates that, on what transfer basis (GDPR 44-49).",
        "backend": "What the server itself must be, as {single_tenant: attested, certifications: [C5]}.",
        "redaction": "What is done with personal data: tag, mask, pseudonymise, hash or block, by kind and direction.",
        "retention": "How long records and, if at all, texts are kept: a number with d, mo or y.",
        "limits": "Upper bounds, as {rpm: 600, tpm: 200000, eur_per_month: 500}.",
        "transparency": "The notice that an AI system answers (AI Act 50(1)).",
        "models": "Only these models, as [mistral-small].",
        "purposes": "Each project states its purpose (GDPR 5(1)(b)); or a list of those that are accepted.",
        "legal_basis": "Each project states its legal basis (GDPR 6(1)); or a list of those that are accepted.",
        "data_classes": "Only these classes of data, as [contact, invoice].",
        "special_categories": "Special categories (GDPR 9) that are accepted, with the ground, as {health: 9(2)(h)}.",
        "hours": 'When calls are answered, as {days: [mon, tue], from: "07:00", until: "19:00", zone: Europe/Berlin}.',
        "priority": "Place in the engine's queue: high, normal or low.",
        "rules": "Further bounds for some requests, each with a name and a `when`.",
        "tests": "Cases that this file has to decide as they say; one that fails keeps it from being activated.",
    }
)
"""By key of a document, what it is for."""

_KEY = re.compile(r"^([a-z_]+):")


def new_document(policy: str, preset: str) -> str:
    """A document called `policy` that says what `preset` says. Keys that the preset does not use are listed at its end.

    Raises KeyError for an unknown preset.
    """
    head, body = _divided(preset_text(preset))
    lines = [
        *head,
        "#",
        f"# Made from the preset {preset}. Change what you need; then",
        "#   domicile policy check FILE              is it sound, and does it pass its own tests?",
        "#   domicile policy activate TENANT FILE    put it in force",
    ]
    used = set()
    for line in body:
        if found := _KEY.match(line):
            used.add(found[1])
            lines += ["", f"# {COMMENTS[found[1]]}"]
        lines.append(f"policy: {policy}" if line.startswith("policy:") else line)
    lines += ["", "# Not used above:"]
    lines += [f"#   {key}: {words}" for key, words in COMMENTS.items() if key not in used]
    return "\n".join(lines) + "\n"


def _divided(text: str) -> tuple[list[str], list[str]]:
    """Return the comment at the top, and the rest."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return lines[:first], lines[first:]
