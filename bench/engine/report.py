"""docs/performance.md's table and plots, from what `gpu.py` measured.

    python bench/engine/report.py [docs/performance.md]

Replaces what stands between the page's markers by a section for each bench/results/engine-CARD.json, and writes an SVG
beside it for each card and run: bars of our figure over the better peer's, with title, axis and a line at 1.
"""

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
CARDS = ("h100", "h200")
BAR, GAP, LEFT, WIDTH, MOST = 16, 8, 330, 820, 2.5  # pixels; ratios beyond MOST are cut, and say so
AXIS = "Domicile over the better peer, as a ratio; of times the inverse, so that more is better (▸: cut)"
TOP, FOOT = 36, 44  # pixels above and below the bars: the title, the axis


def main() -> None:
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/performance.md"
    parts = [part for card in CARDS for part in section(card, page)]
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text("\n".join([before + BEGIN, *parts, END + after]))


def section(card: str, page: Path) -> list[str]:
    report = json.loads((ROOT / f"bench/results/engine-{card}.json").read_text())
    parts = [f"### {card.upper()}", "", f"{report['date']}, {describe(report['machine'])}. {report['note']}", ""]
    for run in report["runs"]:
        rows = [w for w in report["workloads"] if w["name"].startswith(run + " ")]
        plot = page.with_name(f"performance-{card}-{run.replace(':', '-')}.svg")
        plot.write_text(svg(f"{run} on an {card.upper()}: Domicile over the better peer", run, rows))
        image = f"![{run} on an {card.upper()}: our figures over the better peer's]({plot.name})"
        parts += [f"#### {run}, {card.upper()}", "", *table(run, rows), "", image, ""]
    return parts


def describe(machine: dict[str, Any]) -> str:
    return f"{machine['card']}, torch {machine['torch']}, Triton {machine['triton']}, Python {machine['python']}"


def table(run: str, rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| workload | ours | better peer | ours / peer | target | reached |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        unit, target = row["unit"], row["target"]
        peer = f"{row['peer_value']:,g} ({row['peer']})" if row["peer"] else "–"
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "–"
        goal = f"{'≤' if lower_is_better(row) else '≥'} {target:,g}" if target is not None else "–"
        lines.append(f"| {label(run, row)} | {row['value']:,g} {unit} | {peer} | {ratio} | {goal} | {verdict(row)} |")
    return lines


def label(run: str, row: dict[str, Any]) -> str:
    return str(row["name"]).removeprefix(run + " ")


def lower_is_better(row: dict[str, Any]) -> bool:
    return row["unit"] in ("ms", "s", "")


def verdict(row: dict[str, Any]) -> str:
    if row["target"] is None:
        return "–"
    reached = row["value"] <= row["target"] if lower_is_better(row) else row["value"] >= row["target"]
    return "yes" if reached else "no"


def svg(title: str, run: str, rows: list[dict[str, Any]]) -> str:
    bars = [row for row in rows if row["ratio"]]
    height = TOP + len(bars) * (BAR + GAP) + FOOT
    base = height - FOOT
    scale = (WIDTH - LEFT - 60) / MOST
    one = LEFT + scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for i, row in enumerate(bars):
        y = TOP + i * (BAR + GAP)
        length = min(row["ratio"], MOST) * scale
        colour = "#2b6cb0" if row["ratio"] >= 1 else "#c05621"
        mark = " ▸" if row["ratio"] > MOST else ""
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(label(run, row))}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{LEFT + length + 5:.1f}" y="{y + 12}">{row["ratio"]:.2f}{mark}</text>',
        ]
    parts.append(f'<line x1="{LEFT}" x2="{LEFT + MOST * scale:.1f}" y1="{base}" y2="{base}" stroke="#1a202c"/>')
    for tick in (0, 0.5, 1, 1.5, 2, 2.5):
        x = LEFT + tick * scale
        parts += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}" stroke="#1a202c"/>',
            f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{tick:g}</text>',
        ]
    parts += [
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 6}" y2="{base}" stroke="#1a202c" stroke-dasharray="4 3"/>',
        f'<text x="{(LEFT + WIDTH - 60) / 2:.1f}" y="{height - 8}" text-anchor="middle">{escape(AXIS)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
