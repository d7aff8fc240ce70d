"""The readable face of an evidence pack: one HTML page, no script, no network, charts as inline SVG, printable."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from audit.incidents.evidence import Party
from audit.law.deadlines import as_rows, load_clocks
from audit.pack.contents import CONTENTS
from audit.registers.gaps import Gap
from audit.registers.tables import TRANSFER_TOOLS, Tables

BAR_WIDTH, BAR_HEIGHT, LABEL_WIDTH = 320, 18, 260
CHART = 640
MAX_DAYS = 92
MAX_ROWS = 50
MAX_MONTHS = 12
SHORT = 24  # characters that are not broken into lines

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")

ONLY_SIGNED = (
    "<code>verify.py</code> makes these again from the records and compares them: <code>events.csv</code>, "
    "<code>counts.csv</code>, <code>ocsf.jsonl</code>, <code>transfer_report.csv</code>, <code>denied.csv</code>, "
    "<code>admin_access.csv</code>, <code>retention_run.csv</code>, <code>authority_requests.csv</code>, "
    "<code>residency_evidence.json</code>, <code>ai_systems.json</code>, <code>incidents.json</code> (but for its "
    "deadlines) and <code>erasure_certificate.json</code>. All other tables and registers, and this page, are only "
    "signed: they say what the operator's registers said, and whoever holds the log's key could have signed something "
    "else. <code>verify.py</code> names them."
)
"""Which files the records prove, and which rest on the signature alone."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --ok: #1a7f5a; --no: #b3261e; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #14181d; --line: #3a424c;
  --ok: #3fb68b; --no: #ff8a80; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .8rem 0 1.6rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } td.s { white-space: nowrap; }
code, pre { font: .85rem ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.ok { fill: var(--ok); } .no { fill: url(#no); } #no rect { fill: var(--no); } #no path { stroke: var(--paper); }
.axis { stroke: var(--line); } figure { margin: 1rem 0; }
@media print { body { max-width: none; margin: 0; font-size: 11pt; print-color-adjust: exact; }
  h2 { break-after: avoid; } tr, figure { break-inside: avoid; } }
"""


def html_report(
    about: Mapping[str, Any],
    tables: Tables,
    states: Mapping[str, int],
    outside: Sequence[Sequence[object]] = (),
    missing: Sequence[Gap] = (),
    parties: Sequence[Party] = (),
) -> str:
    """The page. `about` are the fields of the manifest, `states` how many private values are in each state, `outside`
    the rows of who vouches for the log (`audit.witness.outside.vouched_by`), `missing` what no register says,
    `parties` the controller and the processor."""
    calls = {kind: sum(count for (_, said), count in tables.days.items() if said == kind) for kind in _KINDS}
    title = f"Evidence pack: {about['tenant']}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>Records {about['first']} to {about['end'] - 1} of the log <code>{escape(about['origin'])}</code>"
        f"{_period(tables)}. This pack was made on {_plain(about['made_at'])}.</p>"
        if about["end"] > about["first"]
        else "<p>There are no records in this period.</p>",
        *(
            f"<p>{role}: {escape(', '.join(part for part in (one.name, one.address, one.contact) if part))}</p>"
            for role, one in zip(("Controller", "Processor"), parties, strict=False)
            if one.name
        ),
        "<h2>How to check it</h2>",
        "<p>Records and proofs need not be believed, files marked <i>signed</i> below are statements of who made the "
        "pack. With Python 3.9 or newer, and without a network:</p>",
        "<pre>python3 -I verify.py FOLDER_OR_ZIP --key 'THE KEY YOU HOLD' --checkpoint THE_LAST_ONE_YOU_KEPT</pre>",
        f"<p>The key is <code>{escape(about['key'])}</code>. Compare it with the one you were given elsewhere. "
        "Keep the file <code>checkpoint</code>: next time it shows that history was not rewritten in between.</p>",
        f"<p>{ONLY_SIGNED}</p>",
        "<h2>Calls</h2>",
        f"<p>{calls['allowed']} calls were allowed and {calls['denied']} were refused.</p>",
        _days(tables.days),
        _figure("Records by type", tables.types.most_common()),
        "<h2>Where calls went</h2>",
        _table(
            (
                "month",
                "computed in",
                "stored in",
                "operator",
                "head office",
                "its parent",
                "in",
                "region",
                "basis",
                "calls",
            ),
            [(*route, calls) for route, calls in sorted(tables.transfers.items())],
            "No call left for any backend.",
        ),
        "<p>What the place of processing rests on, in calls a month; 0 says that none did. Countries are those of ISO "
        "3166.</p>",
        _tools(tables),
        "<h2>Which policy decided</h2>",
        "<p>Its text and when it was in force are in <code>policy_history.json</code> and "
        "<code>policies_in_force.json</code>; <code>verify.py</code> holds each call against them. A call without one "
        "was refused before a policy was asked.</p>",
        _table(
            ("policy", "version", "SHA-256", "calls"),
            [(name, version, digest[:16], count) for (name, version, digest), count in sorted(tables.deciders.items())],
            "No call was decided.",
        ),
        "<h2>What was refused, and why</h2>",
        _table(
            ("rule", "article", "because", "calls"),
            [(*why, count) for why, count in tables.denials.most_common()],
            "Nothing was refused.",
        ),
        "<h2>What was found and treated in prompts</h2>",
        _figure("Kinds of personal data, by how often", tables.redacted.most_common()) or "<p>Nothing was found.</p>",
        "<h2>Private values</h2>",
        "<p>A record holds no personal value, only a commitment. <i>Withheld</i>: kept, not shown here. "
        "<i>Disclosed</i>: shown in <code>fields.jsonl</code>. <i>Erased</i>: deleted, with a certificate. "
        "<i>Missing</i>: a fault.</p>",
        _table(("state", "values"), sorted(states.items()), "No record commits to private values."),
        _table(
            ("certificate", "cause", "deleted at", "records", "values", "backups until"),
            [(c.id, c.cause, c.deleted_at, c.records, c.values, c.backups_until) for c in tables.certificates],
            "Nothing was deleted.",
        ),
        f"<p>The content of {tables.expired} records is gone for being over its time; their hashes stay and are proven."
        "</p>"
        if tables.expired
        else "",
        "<h2>AI systems</h2>",
        _table(
            ("system", "risk class", "calls", "refused", "acts and changes", "incidents", "stopped since"),
            [
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
            ],
            "No call is part of a registered AI system.",
        ),
        "<h2>Who vouches for it from outside</h2>",
        _table(
            ("who", "what", "when", "leaves of the anchor"),
            outside,
            "Nobody yet: the proof rests on the log's own key alone.",
        ),
        "<h2>What people did</h2>",
        _table(
            ("act", "times"),
            sorted((kind, count) for kind, count in tables.types.items() if kind.startswith(_ACTS)),
            "Nobody changed, read, exported or erased anything in this period.",
        ),
        "<h2>Incidents and authorities</h2>",
        _table(
            ("incident", "opened", "closed", "laws", "notified"),
            [
                (case.incident_id, case.opened, case.closed or "open", ", ".join(case.laws), ", ".join(case.met) or "-")
                for case in tables.cases.values()
            ],
            "No incident is on record in this period.",
        ),
        _due(tables) if tables.cases else "",
        f"<p>{len(tables.authority_requests) or 'No'} requests of authorities for data are on record.</p>",
        "<h2>What the registers do not say</h2>",
        _table(
            ("missing", "asked for by", "where to set it"),
            [tuple(one) for one in missing],
            "Every field that Article 30 asks for is filled in.",
        ),
        "<h2>The files</h2>",
        "<p><i>Checked</i>: against the log's key, the tree or the records. <i>Recomputed</i>: made again from the "
        "records and compared. <i>Signed</i>: stated from registers outside the log.</p>",
        _table(("file", "stands on", "what", "source"), [(one[0], one[1], one[2], one[3]) for one in CONTENTS], ""),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


_KINDS = ("allowed", "denied")
_ACTS = ("admin.", "legal_hold.", "erasure.", "dsar.", "content.", "log.", "oversight.", "model.", "incident.")


def _due(tables: Tables) -> str:
    """What is due for each incident by the built-in clocks, as of the last record of the pack."""
    clocks = load_clocks()
    rows = [
        (
            case.incident_id,
            one["clock"],
            one["state"],
            one["due"] or one["limit"] or "-",
            one["met"] or "-",
            one["article"],
        )
        for case in tables.cases.values()
        for one in as_rows(case.deadlines(clocks), tables.last)
    ]
    return _table(("incident", "clock", "state", "due", "met", "source"), rows, "No clock runs for these incidents.")


def _table(header: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> str:
    if not rows:
        return f"<p>{escape(empty)}</p>"
    kinds = [' class="n"' if isinstance(value, int) else "" for value in rows[0]]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(header, kinds, strict=True))
    lines = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows[:MAX_ROWS])
    more = f"<p>And {len(rows) - MAX_ROWS} more, in the CSV file.</p>" if len(rows) > MAX_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>{more}"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td class="n">{value}</td>'
    text = _plain(str(value))
    return f'<td class="s">{text}</td>' if len(text) <= SHORT else f"<td>{text}</td>"


def _plain(text: str) -> str:
    """For the page; a moment to the second, as people read it."""
    return escape(_MOMENT.sub(r"\1 \2 UTC", text))


def _period(tables: Tables) -> str:
    return f", from {_plain(tables.first)} to {_plain(tables.last)}" if tables.first else ""


def _tools(tables: Tables) -> str:
    """A row for each tool, a column for each of the last months."""
    counts = tables.by_tool()
    months = sorted(tables.months)[-MAX_MONTHS:]
    tools = list(dict.fromkeys([*TRANSFER_TOOLS, *(tool for _, tool in counts)]))
    rows = [
        (tool.replace("_", " "), TRANSFER_TOOLS.get(tool, ""), *(counts.get((month, tool), 0) for month in months))
        for tool in tools
    ]
    return _table(("basis", "article", *months), rows, "") if months else "<p>There are no records in this period.</p>"


def _figure(caption: str, bars: Sequence[tuple[str, int]]) -> str:
    """Horizontal bars; the numbers stand beside them, so that nothing rests on length or colour alone."""
    if not bars:
        return ""
    most = max(count for _, count in bars)
    lines = [
        f'<text x="0" y="{at * 24 + 14}">{escape(name)}</text>'
        f'<rect class="ok" x="{LABEL_WIDTH}" y="{at * 24}" height="{BAR_HEIGHT}" '
        f'width="{max(1, round(BAR_WIDTH * count / most))}"/>'
        f'<text x="{LABEL_WIDTH + round(BAR_WIDTH * count / most) + 8}" y="{at * 24 + 14}">{count}</text>'
        for at, (name, count) in enumerate(bars)
    ]
    return _svg(caption, LABEL_WIDTH + BAR_WIDTH + 90, len(bars) * 24, lines)


def _days(days: Mapping[tuple[str, str], int]) -> str:
    """Calls a day, refused ones on top; the last MAX_DAYS of them."""
    names = sorted({day for day, _ in days})[-MAX_DAYS:]
    if not names:
        return ""
    most = max(days.get((day, "allowed"), 0) + days.get((day, "denied"), 0) for day in names)
    step = min(40.0, CHART / len(names))
    lines = [
        _HATCH,
        f'<path class="axis" d="M0 .5H{CHART}M0 120.5H{CHART}"/>',
        f'<text x="{CHART + 6}" y="10">{most}</text>',
    ]
    for at, day in enumerate(names):
        allowed, denied = (round(120 * days.get((day, kind), 0) / most) for kind in _KINDS)
        told = f"{day}: {days.get((day, 'allowed'), 0)} allowed, {days.get((day, 'denied'), 0)} refused"
        place = f'x="{at * step:.1f}" width="{max(1.0, step - 2):.1f}"'
        lines.append(
            f"<g><title>{told}</title>"
            f'<rect class="ok" {place} y="{120 - allowed}" height="{allowed}"/>'
            f'<rect class="no" {place} y="{120 - allowed - denied}" height="{denied}"/></g>'
        )
    lines.append(f'<text x="0" y="138">{names[0]}</text>')
    if len(names) > 1:
        end = max(round(step * len(names)), 170)
        lines.append(f'<text x="{end}" y="138" text-anchor="end">{names[-1]}</text>')
    return _svg("Calls a day; hatched, on top: refused", CHART + 60, 142, lines)


_HATCH = (
    '<defs><pattern id="no" width="5" height="5" patternUnits="userSpaceOnUse"><rect width="5" height="5"/>'
    '<path d="M0 5L5 0" stroke-width="1.2"/></pattern></defs>'
)
"""Refused is told from allowed without colour too: on paper, and by who does not see the two apart."""


def _svg(caption: str, width: int, height: int, lines: Iterable[str]) -> str:
    return (
        f'<figure><figcaption>{escape(caption)}</figcaption><svg viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" aria-label="{escape(caption)}">{"".join(lines)}</svg></figure>'
    )
