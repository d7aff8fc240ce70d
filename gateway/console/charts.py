"""SVG charts made on the server: shapes with CSS classes, without scripts or inline styles."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT, BASE, LEFT = 720, 170, 146, 44


class Column(NamedTuple):
    """`label` is shown below the column, `said` is its text for screen readers and its tooltip."""

    label: str
    value: float
    said: str


def columns(values: Sequence[Column], title: str, top_label: str) -> Markup:
    """Return a column chart, oldest first. `top_label`: text of the greatest value, beside the upper grid line."""
    greatest = max((each.value for each in values), default=0) or 1
    step = (WIDTH - LEFT) / max(1, len(values))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<line class="grid" x1="{LEFT}" y1="12" x2="{WIDTH}" y2="12"/>',
        f'<line class="grid" x1="{LEFT}" y1="{(12 + BASE) / 2}" x2="{WIDTH}" y2="{(12 + BASE) / 2}"/>',
        f'<line class="grid" x1="{LEFT}" y1="{BASE}" x2="{WIDTH}" y2="{BASE}"/>',
        f'<text x="{LEFT - 6}" y="16" text-anchor="end">{escape(top_label)}</text>',
        f'<text x="{LEFT - 6}" y="{BASE + 4}" text-anchor="end">0</text>',
    ]
    every = max(1, len(values) // 7)
    for at, each in enumerate(values):
        height = max(1.5 if each.value else 0, (BASE - 12) * each.value / greatest)
        x, width = LEFT + at * step + step * 0.16, step * 0.68
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{BASE - height:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2">'
            f"<title>{escape(each.said)}</title></rect>"
        )
        if (len(values) - 1 - at) % every == 0:  # the newest has a label
            parts.append(
                f'<text x="{x + width / 2:.1f}" y="{BASE + 16}" text-anchor="middle">{escape(each.label)}</text>'
            )
    return Markup("".join(parts) + "</svg>")  # noqa: S704  # every value in it was escaped
