"""SVG charts made on the server: shapes with CSS classes, without scripts or inline styles."""

from collections.abc import Callable, Sequence
from math import floor, log10
from typing import Final, NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT, BASE, LEFT = 720, 170, 146, 44
LINE_WIDTH, LINE_HEIGHT, LINE_BASE, LINE_LEFT, LINE_TOP = 480, 172, 146, 50, 10
STEPS: Final = (1, 2, 2.5, 5, 10)


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


class Line(NamedTuple):
    """`values`: one a step, None where nothing is known, which leaves a gap."""

    name: str
    values: Sequence[float | None]


class Mark(NamedTuple):
    """A label of the time axis, below the step `at`."""

    at: int
    label: str


def lines(series: Sequence[Line], marks: Sequence[Mark], said: str, written: Callable[[float], str]) -> Markup:
    """Return a line chart from 0 up, oldest first, of series of one length. `said`: title, unit and sums in words, for
    screen readers. `written`: a value of the value axis as text."""
    greatest = max((value for each in series for value in each.values if value is not None), default=0)
    top = round_up(greatest) if greatest > 0 else 1.0
    count = max((len(each.values) for each in series), default=1)
    step = (LINE_WIDTH - LINE_LEFT) / max(1, count - 1)
    parts = [
        f'<svg class="chart lines" viewBox="0 0 {LINE_WIDTH} {LINE_HEIGHT}" role="img" aria-label="{escape(said)}">'
    ]
    for share in (0, 0.5, 1):
        y = LINE_BASE - (LINE_BASE - LINE_TOP) * share
        parts.append(f'<line class="grid" x1="{LINE_LEFT}" y1="{y:g}" x2="{LINE_WIDTH}" y2="{y:g}"/>')
        parts.append(f'<text x="{LINE_LEFT - 6}" y="{y + 4:g}" text-anchor="end">{escape(written(top * share))}</text>')
    for at, label in marks:
        x = LINE_LEFT + at * step
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{LINE_BASE}" x2="{x:.1f}" y2="{LINE_BASE + 4}"/>')
        anchor = "end" if at > count * 0.95 else "start" if at < count * 0.05 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{LINE_BASE + 18}" text-anchor="{anchor}">{escape(label)}</text>')
    for number, each in enumerate(series):
        drawn = _path(each.values, step, (LINE_BASE - LINE_TOP) / top)
        parts.append(f'<path class="line line{number}" d="{drawn}"/>' if drawn else "")
    return Markup("".join(parts) + "</svg>")  # noqa: S704  # every text in it was escaped


def _path(values: Sequence[float | None], step: float, scale: float) -> str:
    """A line over neighbours that are known; a dot for one without."""
    parts, drawing = [], False
    for at, value in enumerate(values):
        if value is not None:
            place = f"{LINE_LEFT + at * step:.1f} {LINE_BASE - value * scale:.1f}"
            following = values[at + 1] if at + 1 < len(values) else None
            parts.append(f"{'L' if drawing else 'M'}{place}" + ("" if drawing or following is not None else "h0"))
        drawing = value is not None
    return "".join(parts)


def round_up(value: float) -> float:
    """The least of 1, 2, 2.5 and 5 times a power of ten that is not below a positive value."""
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in STEPS if step * power >= value * (1 - 1e-9))
