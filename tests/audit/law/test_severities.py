"""The severities of incidents are those of the laws; the documentation lists them as the table has them."""

from pathlib import Path

from audit.law.deadlines import deadlines, load_clocks

DOCUMENT = Path(__file__).parents[3] / "docs/evidence-pack.md"
BEGIN, END = "<!-- severities: written by `python -m tests.audit.law.test_severities` -->", "<!-- end of severities -->"
AWARE = {"aware": "2026-03-01T09:30:00.000Z"}


def with_severities(page: str) -> str:
    rows = ["| law | `--severity` | what it is | source |", "|---|---|---|---|"]
    rows += [f"| `{one.law}` | `{one.name}` | {one.means} | {one.article} |" for one in load_clocks().severities]
    head, rest = page.split(BEGIN)
    return "\n".join([f"{head}{BEGIN}", *rows, END]) + rest.split(END)[1]


def test_the_documentation_lists_every_severity() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    assert with_severities(page) == page, "run: PYTHONPATH=. python -m tests.audit.law.test_severities"


def test_every_law_has_a_severity_and_every_severity_of_a_clock_is_in_the_table() -> None:
    table = load_clocks()
    assert {one.law for one in table.severities} == table.laws
    assert {clock.severity for clock in table.clocks} - {None} <= {one.name for one in table.severities}
    assert len({one.name for one in table.severities}) == len(table.severities)


def test_an_incident_below_the_threshold_has_no_report_due_but_the_ones_that_were_made() -> None:
    table = load_clocks()

    def clocks(law: str, severity: str | None, met: dict[str, str] | None = None) -> list[str]:
        return [one.clock.name for one in deadlines(table, [law], AWARE, met or {}, severity)]

    assert clocks("dora", "not_major") == [] and clocks("nis2", "not_significant") == []
    assert clocks("dora", "major") == clocks("dora", None) == ["dora.initial", "dora.intermediate", "dora.final"]
    assert clocks("dora", "not_major", {"dora.initial": "2026-03-01T10:00:00.000Z"}) == ["dora.initial"]
    assert clocks("gdpr", "unlikely_risk") == ["gdpr.controller"], "the processor tells the controller of every breach"


if __name__ == "__main__":
    DOCUMENT.write_text(with_severities(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
