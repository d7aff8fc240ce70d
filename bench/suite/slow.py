"""Writes tests/slow.txt: the functions of the suite that take most time, from what pytest printed with `--durations=0`.

    make test-all PYTEST_ARGS="-n 2 --dist loadscope --durations=0 -q" > durations.txt
    python -m bench.suite.slow durations.txt [--keep 540]

Time of set-up and tear-down counts for the case that pytest names.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.parts import LIST, function_of

LINE = re.compile(r"([0-9.]+)s (?:call|setup|teardown) +(\S+?::.*)")
HEAD = """# The functions that take most time: seconds of all cases in one run of a machine that was busy, and the name.
# python -m bench.suite.slow writes this file; tests/parts.py says what it is for.
"""


def seconds_by_function(lines: Iterable[str]) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for line in lines:
        if found := LINE.fullmatch(line.rstrip("\n")):
            seconds[function_of(found[2])] += float(found[1])  # type: ignore[assignment]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("durations", type=Path)
    parser.add_argument("--keep", type=int, default=540, help="how many functions are slow")
    options = parser.parse_args()
    with options.durations.open(encoding="utf-8", errors="replace") as lines:
        seconds = seconds_by_function(lines)
    if not seconds:
        raise SystemExit(f"{options.durations} has no durations; run pytest with --durations=0")
    kept = seconds.most_common(options.keep)
    LIST.write_text(HEAD + "".join(f"{round(each):4d}  {name}\n" for name, each in sorted(kept)), encoding="utf-8")
    share = sum(each for _, each in kept) / sum(seconds.values())
    print(f"{len(kept)} of {len(seconds)} functions take {share:.0%} of the time: {LIST}")


if __name__ == "__main__":
    main()
