"""Curves over the last hour, day and week: rates, refusals, latency and speed of calls; queue, cache and power of the
backends."""

from collections.abc import Sequence
from datetime import datetime
from io import StringIO
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from starlette.responses import Response

from gateway.console.drawing import charts
from gateway.console.page import Page
from gateway.console.visit import Visit

PERIODS: Final = ("1h", "24h", "7d")
MARK_EVERY_S: Final = {"1h": 900, "24h": 4 * 3600, "7d": 86_400}
JOULES_A_KWH: Final = 3.6e6


class Curve(NamedTuple):
    """One chart. `key`: of its title; `unit`: key of its unit; `series`: fields of the points, each with the key of its
    name. `scale`: what a value is multiplied by."""

    key: str
    unit: str
    series: tuple[tuple[str, str], ...]
    scale: float = 1.0


OF_CALLS: Final = (
    Curve("calls", "calls_minute", (("calls_per_minute", "all"), ("refused_per_minute", "refused"))),
    Curve("latency", "ms", (("latency_p50_ms", "median"), ("latency_p95_ms", "p95"))),
    Curve("first_token", "ms", (("first_token_ms", "mean"),)),
    Curve("tokens", "tokens_s", (("tokens_per_s", "written"),)),
)
OF_BACKENDS: Final = (
    Curve("queue", "sequences", (("running", "running"), ("waiting", "waiting"))),
    Curve("speed", "tokens_s", (("tokens_per_s", "written"),)),
    Curve("power", "watts", (("watts", "drawn"),)),
    Curve("kv", "percent", (("kv_use", "used"),), scale=100),
)


class Shown(NamedTuple):
    """A chart as the page shows it. `series`: names, each with its last and its greatest value in words."""

    title: str
    unit: str
    chart: Markup
    series: list[tuple[str, str]]
    more: str = ""


async def show(visit: Visit) -> Response:
    """Return the page; for scripts the charts alone, which the page fetches every half minute."""
    period = _period(visit)
    calls = await visit.of_tenant("usage", "curves", period=period)
    sees = visit.may("backends.read")
    backends = await visit.of_tenant("backend-curves", period=period) if sees else ()
    template = "_curves.html" if visit.request.headers.get("hx-request") == "true" else "curves.html"
    return visit.render(
        template,
        shown_tenant=visit.tenant,
        active="curves",
        period=period,
        periods=PERIODS,
        of_calls=[_shown(visit, period, curve, calls) for curve in OF_CALLS],
        of_backends=[_shown(visit, period, curve, backends) for curve in OF_BACKENDS] if _told(backends) else (),
        sees_backends=sees,
    )


def _told(points: Sequence[Any]) -> bool:
    return any(one["running"] is not None for one in points)


def _period(visit: Visit) -> str:
    asked = visit.request.query_params.get("period", "")
    return asked if asked in PERIODS else "24h"


def _shown(visit: Visit, period: str, curve: Curve, points: Sequence[Any]) -> Shown:
    t, unit = visit.language.text, visit.language.text(f"unit.{curve.unit}")

    def written(value: float) -> str:
        return visit.language.number(value, 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2)

    drawn, words = [], []
    for field, key in curve.series:
        values = [None if one[field] is None else one[field] * curve.scale for one in points]
        name, known = t(f"curve.{key}"), [value for value in values if value is not None]
        drawn.append(charts.Line(name, values))
        said = t("curve.said", last=written(known[-1]), highest=written(max(known))) if known else t("curve.nothing")
        words.append((name, said))
    title = t(f"curves.{curve.key}")
    spoken = f"{title}, {unit}, {t(f'period.{period}')}. " + " ".join(f"{name}: {said}." for name, said in words)
    more = _energy(visit, points) if curve.key == "power" else ""
    return Shown(title, unit, charts.lines(drawn, marks_of(points, period), spoken, written), words, more)


def _energy(visit: Visit, points: Sequence[Any]) -> str:
    """What the cards drew in the period, in words."""
    moments = [datetime.fromisoformat(one["begin"]) for one in points]
    step_s = (moments[1] - moments[0]).total_seconds()
    joules = sum((one["watts"] or 0.0) * step_s for one in points)
    return visit.language.text("curves.energy", kwh=visit.language.number(joules / JOULES_A_KWH, 2))


def marks_of(points: Sequence[Any], period: str) -> list[charts.Mark]:
    """The whole quarters of an hour, every fourth hour or the days, in UTC."""
    found = []
    for at, one in enumerate(points):
        begin = datetime.fromisoformat(one["begin"])
        if begin.timestamp() % MARK_EVERY_S[period] == 0:
            found.append(charts.Mark(at, f"{begin:%m-%d}" if period == "7d" else f"{begin:%H:%M}"))
    return found


async def as_csv(visit: Visit) -> Response:
    """The points of the charts, a line each; fields of backends only for who may read of them."""
    period = _period(visit)
    rows = await visit.of_tenant("usage", "curves", period=period)
    if visit.may("backends.read"):
        backends = await visit.of_tenant("backend-curves", period=period)
        of_backends = {
            one["begin"]: {f"backend_{name}": one[name] for name in one if name != "begin"} for one in backends
        }
        rows = [one | of_backends.get(one["begin"], {}) for one in rows]
    text = StringIO()
    names = max(rows, key=len).keys()
    text.write(",".join(names) + "\n")
    for one in rows:
        text.write(",".join("" if one.get(name) is None else str(one[name]) for name in names) + "\n")
    headers = {"content-disposition": f'attachment; filename="curves-{period}.csv"'}
    return Response(text.getvalue(), headers=headers, media_type="text/csv; charset=utf-8")


PAGES: Final = (
    Page("/t/{tenant}/curves", show),
    Page("/t/{tenant}/curves.csv", as_csv),
)
