"""Fields of records and of the admin API by the options that a user types for them, so that an error names these."""

import re
from collections.abc import Mapping
from typing import Final

from gateway.limits.limit_kinds import KINDS

FLAGS: Final[Mapping[str, str]] = {kind.field: f"--{kind.name.replace('_', '-')}" for kind in KINDS} | {
    "defaults": "--default",
    "deprecated_at": "--deprecated",
    "display_name": "--name",
    "endpoints": "--endpoint",
    "kind": "--kind",
    "max_replicas": "--max",
    "min_replicas": "--min",
    "model": "--model",
    "models": "--model",
    "networks": "--network",
    "origins": "--origin",
    "path": "--path",
    "prefill": "--prefill",
    "regions": "--region",
    "replacement": "--replacement",
    "roles": "--role",
    "sha256": "--sha256",
    "sunset_at": "--sunset",
    "targets": "--target",
    "url": "--url",
    "weights": "--weights",
} | {
    name: f"--{name.replace('_', '-')}"
    for name in (
        "asleep_s", "calls_each", "data_class", "eur_per_hour", "idle_s", "legal_basis", "purpose", "risk_class",
        "ttft_ms", "wait_s", "weights_sha256",
    )
}  # fmt: skip
_PLACES: Final = re.compile(r"(?:^|(?<=, )|(?<=; ))([a-z][a-z0-9_]*)(?:\.\d+)*(?=: )")


def flag_of(field: str) -> str:
    """The option for a field; the field itself where none sets it."""
    return FLAGS.get(field, field)


def by_flags(sentence: str) -> str:
    """`sentence` with the option in place of each field that it names as ``field: …`` or ``field.0: …``."""
    return _PLACES.sub(lambda place: FLAGS.get(place[1], place[0]), sentence)
