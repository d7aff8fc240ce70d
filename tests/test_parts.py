"""The two parts of the suite are all of it, and the list that divides them is true."""

import ast
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bench.suite.slow import seconds_by_function
from tests.parts import SHARE, function_of, quick, slow_functions

TREE = Path(__file__).parents[1]
SLOW = {"tests/a.py::test_slow": 2, "tests/a.py::TestOf::test_slow": 2}


def names_in(path: Path) -> set[str]:
    """Functions and methods of a file, as node ids have them."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if hasattr(each, "name")}
        elif isinstance(node, ast.Assign):  # a state machine of Hypothesis as a test
            found |= {f"{target.id}::runTest" for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_every_function_that_is_listed_as_slow_is_there():
    by_file: dict[str, set[str]] = {}
    for name in slow_functions():
        path, _, function = name.partition("::")
        by_file.setdefault(path, set()).add(function)
    for path, functions in by_file.items():
        assert functions <= names_in(TREE / path), f"{path}; run: python -m bench.suite.slow"


def test_what_is_not_listed_is_quick():
    assert quick(["tests/a.py::test_fast", "tests/b.py::test_slow"], SLOW) == {
        "tests/a.py::test_fast",
        "tests/b.py::test_slow",
    }


def test_a_slow_function_with_few_cases_is_not_quick():
    assert quick(["tests/a.py::test_slow"], SLOW) == set()
    assert quick([f"tests/a.py::TestOf::test_slow[{n}]" for n in range(4)], SLOW) == set()


@given(st.sets(st.text(min_size=1, max_size=8), min_size=SHARE // 2, max_size=60))
def test_of_a_slow_function_with_many_cases_some_are_quick_and_the_same_in_any_order(parameters):
    cases = [f"tests/a.py::test_slow[{each}]" for each in parameters]
    chosen = quick(cases, SLOW)
    assert chosen and chosen <= set(cases)
    assert quick(reversed(cases), SLOW) == chosen


def test_about_one_case_in_ten_is_quick():
    cases = [f"tests/a.py::test_slow[{n}]" for n in range(1000)]
    assert 60 < len(quick(cases, SLOW)) < 140


def test_of_a_function_that_takes_long_a_few_seconds_are_quick_and_one_case_at_least():
    cases = [f"tests/a.py::test_slow[{n}]" for n in range(100)]
    drawn = quick(cases, {"tests/a.py::test_slow": 20})
    for seconds, most in ((25, 8), (50, 4), (100, 2), (1000, 1)):
        fewer = quick(cases, {"tests/a.py::test_slow": seconds})
        assert fewer <= drawn and len(fewer) == min(most, len(drawn)), seconds


def test_what_was_listed_with_no_second_is_drawn_in_full():
    cases = [f"tests/a.py::test_slow[{n}]" for n in range(100)]
    assert quick(cases, {"tests/a.py::test_slow": 0}) == quick(cases, {"tests/a.py::test_slow": 1})


def test_parameters_may_look_like_names():
    assert function_of("tests/a.py::test_slow[x::y[z]]") == "tests/a.py::test_slow"
    assert function_of("tests/a.py::TestOf::test_slow") == "tests/a.py::TestOf::test_slow"


def test_durations_are_added_up_by_function():
    said = [
        "1.50s call     tests/a.py::test_slow[x]\n",
        "0.25s setup    tests/a.py::test_slow[y z]\n",
        "2.00s teardown tests/a.py::TestOf::test_slow\n",
        "====== slowest durations ======\n",
    ]
    assert seconds_by_function(said) == Counter({"tests/a.py::test_slow": 1.75, "tests/a.py::TestOf::test_slow": 2.0})
