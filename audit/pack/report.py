"""The report of an evidence pack: one printable HTML page, without scripts or network, charts as inline SVG.

`report.html.jinja` is the page; Jinja2 escapes everything that is inserted (docs/adr/0041-the-report-is-a-template.md).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from audit.incidents.pack_inputs import Party
from audit.incidents.subject_requests import ARTICLES
from audit.law.deadlines import as_rows, load_clocks
from audit.pack.contents import CONTENTS
from audit.registers.gaps import Gap
from audit.registers.pack_tables import TRANSFER_TOOLS, Tables

LAYOUT = {"bar_width": 320, "bar_height": 18, "label_width": 260, "chart": 640, "max_rows": 50}
"""Pixels, and rows of a table before it ends with how many more there are."""
MAX_DAYS = 92
MAX_MONTHS = 12
SHORT = 24  # characters that are not broken into lines

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")

ONLY_SIGNED = (
    "<code>verify.py</code> makes these again from the records and compares them: <code>events.csv</code>, "
    "<code>counts.csv</code>, <code>ocsf.jsonl</code>, <code>transfer_report.csv</code>, <code>weights.csv</code>, "
    "<code>attestations.csv</code>, "
    "<code>denied.csv</code>, <code>admin_access.csv</code>, <code>retention_run.csv</code>, "
    "<code>authority_requests.csv</code>, "
    "<code>residency_evidence.json</code>, <code>ai_systems.json</code>, <code>incidents.json</code> (but for its "
    "deadlines), <code>subject_requests.json</code> and <code>erasure_certificate.json</code>. All other tables and "
    "registers, and this page, are only "
    "signed: they say what the operator's registers said, and a holder of the log's key could have signed something "
    "else. <code>verify.py</code> names them."
)
"""Which files the records prove, and which rest on the signature alone."""


_KINDS = ("allowed", "denied")
_ACTS = ("admin.", "legal_hold.", "erasure.", "dsar.", "content.", "log.", "oversight.", "model.", "incident.")


def html_report(
    about: Mapping[str, Any],
    tables: Tables,
    states: Mapping[str, int],
    outside: Sequence[Sequence[object]] = (),
    missing: Sequence[Gap] = (),
    parties: Sequence[Party] = (),
) -> str:
    """The page. `about` are the fields of the manifest, `states` how many private values are in each state, `outside`
    the rows of who vouches for the log (`audit.witness.anchor_attestations.attested_by`),
    `missing` what no register says, `parties` the controller and the processor."""
    months, tools = _tools(tables)
    return _template().render(
        **LAYOUT,
        short=SHORT,
        about=about,
        tables=tables,
        parties=[(role, one) for role, one in zip(("Controller", "Processor"), parties, strict=False) if one.name],
        only_signed=Markup(ONLY_SIGNED),  # noqa: S704  # ours, and has markup
        calls={kind: sum(count for (_, said), count in tables.days.items() if said == kind) for kind in _KINDS},
        days=_days(tables.days),
        types=tables.types.most_common(),
        transfers=[(*route, calls) for route, calls in sorted(tables.transfers.items())],
        months=months,
        tool_columns=("basis", "article", *months),
        tools=tools,
        deciders=[(name, version, digest[:16], n) for (name, version, digest), n in sorted(tables.deciders.items())],
        denials=[(*why, count) for why, count in tables.denials.most_common()],
        redacted=tables.redacted.most_common(),
        states=sorted(states.items()),
        certificates=[(c.id, c.cause, c.deleted_at, c.records, c.values, c.backups_until) for c in tables.certificates],
        systems=_systems(tables),
        outside=outside,
        acts=sorted((kind, count) for kind, count in tables.types.items() if kind.startswith(_ACTS)),
        incidents=_incidents(tables),
        due=list(_due(tables)),
        requests=_requests(tables),
        missing=[tuple(one) for one in missing],
        contents=[tuple(one)[:4] for one in CONTENTS],
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("audit.pack", "."), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["plain"] = _plain
    return environment.get_template("report.html.jinja")


def _plain(value: object) -> str:
    """A moment to the second, as people read it; anything else as it is."""
    return _MOMENT.sub(r"\1 \2 UTC", str(value))


def _systems(tables: Tables) -> list[tuple[object, ...]]:
    return [
        (
            name,
            ", ".join(sorted(one.risk_classes)) or "-",
            one.calls,
            one.refused.total(),
            len(one.acts),
            len(one.incidents),
            one.stopped_since or "-",
        )
        for name, one in sorted(tables.systems.by_id.items())
    ]


def _incidents(tables: Tables) -> list[tuple[object, ...]]:
    """A row for each incident: its id, when it was opened and closed, its laws, and which of their duties were met."""
    return [
        (case.incident_id, case.opened, case.closed or "open", ", ".join(case.laws), ", ".join(case.met) or "-")
        for case in tables.cases.values()
    ]


def _requests(tables: Tables) -> list[tuple[object, ...]]:
    """A row for each request of a person; its state as of the last record of the pack."""
    return [
        (
            one.matter_id,
            f"{one.right.replace('_', ' ')} ({ARTICLES.get(one.right, '-')})",
            one.received_at,
            one.due_at,
            one.extension_reason or "-",
            one.state(tables.last),
            (one.outcome or "open") + ("" if one.act_seq is None else f", record {one.act_seq}"),
        )
        for one in tables.matters.values()
    ]


def _due(tables: Tables) -> Iterable[tuple[object, ...]]:
    """What is due for each incident by the built-in clocks, as of the last record of the pack."""
    clocks = load_clocks()
    for case in tables.cases.values():
        for one in as_rows(case.deadlines(clocks), tables.last):
            due = one["due"] or one["limit"] or "-"
            yield case.incident_id, one["clock"], one["state"], due, one["met"] or "-", one["article"]


def _tools(tables: Tables) -> tuple[list[str], list[tuple[object, ...]]]:
    """The last months, and a row for each transfer tool with a count for each of them."""
    counts = tables.by_tool()
    months = sorted(tables.months)[-MAX_MONTHS:]
    tools = list(dict.fromkeys([*TRANSFER_TOOLS, *(tool for _, tool in counts)]))
    return months, [
        (tool.replace("_", " "), TRANSFER_TOOLS.get(tool, ""), *(counts.get((month, tool), 0) for month in months))
        for tool in tools
    ]


def _days(days: Mapping[tuple[str, str], int]) -> list[dict[str, object]]:
    """Calls of the last MAX_DAYS days that had any."""
    names = sorted({day for day, _ in days})[-MAX_DAYS:]
    counts = [(day, days.get((day, "allowed"), 0), days.get((day, "denied"), 0)) for day in names]
    return [
        {"name": day, "allowed": allowed, "denied": denied, "calls": allowed + denied}
        for day, allowed, denied in counts
    ]
