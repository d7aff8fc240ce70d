"""What the event types declare, by type: for code that reads records as JSON, for verify.py, and for the documentation.

`event_types.py` is written from here (``python -m audit.events.declared``), because verify.py has no pydantic models.
"""

from pathlib import Path

from audit.events.base import Event, RecordRetention
from audit.events.leaf import EVENT_CLASSES

CLASS_OF: dict[str, type[Event]] = {kind: cls for cls in EVENT_CLASSES for kind in cls.types()}
KEPT: dict[str, RecordRetention] = {kind: cls.kept_as(kind) for kind, cls in CLASS_OF.items()}

_HEAD = '''"""The OCSF class, activity, status and severity of each event type, and the types in admin_access.csv.

Written by ``python -m audit.events.declared`` from the declarations of the types; change those. Part of verify.py.
"""

from __future__ import annotations

'''


def event_types() -> str:
    """The text of `audit/events/event_types.py`."""
    lines = [_HEAD + "OCSF_CLASSES: dict[str, tuple[int, int, int, int]] = {"]
    lines += [f'    "{kind}": {tuple(cls.ocsf_of(kind))},' for kind, cls in CLASS_OF.items()]
    lines += ["}", "ACCESS_TYPES: frozenset[str] = frozenset(", "    ("]
    lines += [f'        "{kind}",' for kind, cls in CLASS_OF.items() if cls.is_access]
    return "\n".join([*lines, "    )", ")", ""])


def reference() -> str:
    """The table of all types in docs/audit-format.md, in Markdown."""
    rows = []
    for cls in EVENT_CLASSES:
        own = [name for name in cls.model_fields if name not in Event.model_fields or name == "request_id"]
        types = ", ".join(f"`{kind}`" for kind in cls.types())
        kept = ", ".join(dict.fromkeys(cls.kept_as(kind).value for kind in cls.types()))
        classes = ", ".join(dict.fromkeys(str(cls.ocsf_of(kind).class_uid) for kind in cls.types()))
        listed = "yes" if cls.is_access else ""
        fields = ", ".join(f"`{name}`" for name in own)
        rows.append(f"| {types} | {fields} | {kept} | {classes} | {listed} |")
    head = ["| type | its own fields | kept as | OCSF class | in `admin_access.csv` |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    Path(__file__).with_name("event_types.py").write_text(event_types(), encoding="utf-8")
