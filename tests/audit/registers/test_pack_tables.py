"""Cells of the pack's CSV files: what a spreadsheet would run is text, whoever wrote it, and verify.py agrees."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.pack_verifier.pack_tables import csv_line
from audit.registers.pack_tables import FORMULA, plain_table, table


@pytest.mark.parametrize(
    "cell",
    [
        "=1+1", "+1", "-2+3", "@SUM(A1)", "\t=1+1", "\r=1+1", "\n=1+1", "\uff1d1+1", "\uff0b1", "\uff0d1",
        "\uff20SUM(1)",
        '=HYPERLINK("http://x","y")', "=cmd|' /C calc'!A0",
    ],
)  # fmt: skip
def test_a_cell_that_a_spreadsheet_would_run_begins_with_an_apostrophe(cell: str) -> None:
    _, (read,) = csv.reader(io.StringIO(plain_table("a", [[cell]]), newline=""))
    assert read == f"'{cell}"


@given(st.lists(st.one_of(st.text(max_size=12), st.integers(-9, 9), st.none()), min_size=2, max_size=5))
def test_any_cells_come_back_and_verify_py_writes_the_same_line(cells: list[object]) -> None:
    line = plain_table("h", [cells]).removeprefix("h\r\n")
    assert line == csv_line(cells)
    (read,) = csv.reader(io.StringIO(line, newline=""))
    assert len(read) == len(cells)
    assert not any(text.startswith(FORMULA) for text, cell in zip(read, cells, strict=True) if isinstance(cell, str))


def test_files_for_people_begin_with_a_byte_order_mark() -> None:
    assert table("a", []).encode().startswith(b"\xef\xbb\xbf")
