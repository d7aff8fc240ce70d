"""The suite in two parts: `quick`, which `make test` runs, and `rest`, which CI runs after it. Together they are all.

tests/slow.txt lists the functions that take most time (`python -m bench.suite.slow` writes it from a run's durations).
Of one with many cases a fixed sample is quick, the same in every process; whatever is not listed is quick.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

LIST: Final = Path(__file__).with_name("slow.txt")
SHARE: Final = 10
"""Of this many cases of a slow function one is quick; none where it has less than half as many."""


def slow_functions() -> frozenset[str]:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line.split()[1] for line in lines if line and not line.startswith("#"))


def function_of(case: str) -> str:
    """The function of a case, by its node id: `file::Class::function[parameters]`."""
    path, _, name = case.partition("::")
    return f"{path}::{name.partition('[')[0]}"


def quick(cases: Iterable[str], slow: frozenset[str]) -> set[str]:
    """Those of the node ids `cases` that are of the quick part."""
    listed: dict[str, list[str]] = defaultdict(list)
    chosen = set()
    for case in cases:
        function = function_of(case)
        if function in slow:
            listed[function].append(case)
        else:
            chosen.add(case)
    for of_function in listed.values():
        chosen |= _sample(of_function)
    return chosen


def _sample(cases: Sequence[str]) -> set[str]:
    if len(cases) < SHARE / 2:
        return set()
    by_hash = {case: crc32(case.encode()) for case in cases}
    return {case for case, number in by_hash.items() if number % SHARE == 0} or {min(by_hash, key=by_hash.__getitem__)}
