"""`docs/control-mapping.md`, made of `duties.json` and `controls.csv`: ``python -m audit.registers.mapping_document >
FILE``."""

import sys
from collections.abc import Iterator

from audit.law.duties import Duties, load_duties
from audit.registers.registers import controls

HEAD = """\
# Duties, features, tests

What laws and standards ask for, from when, what in Domicile answers it, and the test that shows it. The same table is
`control_mapping.csv` in every evidence pack; its sources are `audit/law/duties.json` (the duties) and
`audit/registers/controls.csv` (the features), and `python -m audit.registers.mapping_document` makes this page of them.
It maps; it does not certify: whether an organisation meets a duty depends on how it runs the product.

`domicile audit ai-act --as-of 2026-12-03` prints which duties of the AI Act apply on a day, as the law stood on it.
"""


def mapping_document() -> str:
    duties = load_duties()
    return "\n".join([HEAD, *_sources(duties), "", *_table(duties), ""])


def _sources(duties: Duties) -> Iterator[str]:
    yield f"As of {duties.as_of}. {duties.note}"
    yield ""
    yield "| source | edition | binds as | what was read for this table |"
    yield "|---|---|---|---|"
    for one in duties.sources.values():
        yield f"| [{one.title}]({one.where}) | {one.edition} | {one.binding} | {one.read} |"


def _table(duties: Duties) -> Iterator[str]:
    yield "| framework | control | asks for | applies from | feature | test | provision read |"
    yield "|---|---|---|---|---|---|---|"
    lines: dict[str, list[dict[str, str]]] = {}
    for line in controls():
        lines.setdefault(line["duty"], []).append(line)
    for duty in duties.duties:
        short = duties.sources[duty.source].short
        for line in lines.get(duty.id, [{"feature": "none", "test": ""}]):
            test = f"`{line['test']}`" if line["test"] else ""
            known = f"{short} | {duty.provision} | {duty.asks} | {duties.applies_from(duty.id)}"
            yield f"| {known} | {line['feature']} | {test} | {duty.read} |"


if __name__ == "__main__":
    sys.stdout.write(mapping_document())
