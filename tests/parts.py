"""The suite in two parts: `quick`, which `make test` runs, and `rest`, which CI runs after it. Together they are all.

tests/slow.txt lists the functions that take most time (`python -m bench.suite.slow` writes it from a run's durations).
Of one with many cases a fixed sample of some seconds is quick, the same in every process. All others are quick.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

LIST: Final = Path(__file__).with_name("slow.txt")
SHARE: Final = 10
"""Of this many cases of a slow function one is quick; none where it has less than half as many."""
MOST_S: Final = 2
"""Seconds of a slow function that are quick at most, by the time that all its cases take; but one case always is."""


def slow_functions() -> dict[str, int]:
    """Seconds of all cases, by name of the function."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    rows = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: int(seconds) for seconds, name in rows}


def function_of(case: str) -> str:
    """The function of a case, by its node id: `file::Class::function[parameters]`."""
    path, _, name = case.partition("::")
    return f"{path}::{name.partition('[')[0]}"


def quick(cases: Iterable[str], slow: Mapping[str, int]) -> set[str]:
    """Return those of the node ids `cases` that are of the quick part. `slow`: as `slow_functions`."""
    listed: dict[str, list[str]] = defaultdict(list)
    chosen = set()
    for case in cases:
        function = function_of(case)
        if function in slow:
            listed[function].append(case)
        else:
            chosen.add(case)
    for function, of_function in listed.items():
        chosen |= _sample(of_function, slow[function])
    return chosen


def _sample(cases: Sequence[str], seconds: int) -> set[str]:
    """`seconds`: of all `cases` together."""
    if len(cases) < SHARE / 2:
        return set()
    by_hash = sorted(cases, key=lambda case: (crc32(case.encode()), case))
    drawn = [case for case in by_hash if crc32(case.encode()) % SHARE == 0]
    most = len(drawn) if seconds == 0 else max(1, MOST_S * len(cases) // seconds)
    return set(drawn[:most] or by_hash[:1])
