"""How the processor time of redaction grows with hostile text: with its length, and not with the square of it.

    python -m bench.suite.growth

A regular expression that goes back over what it has read shows here only: the tests count function calls, since time
depends on the machine. Ends with 1 if twice the text takes more than 2.8 times as long for one of the texts.
"""

import sys
import time

from policy.redact.detectors.detectors import find_spans
from policy.redact.text.json_text import as_read
from tests.policy.redact.detectors.test_detectors import DETECTORS, HOSTILE

MOST = 2.8  # quadratic is 4
TEXTS = {12_000: HOSTILE, 500_000: ["The committee met on Tuesday in room 12. ", "a1b2-", "Tel. 030 "]}


def cost(text: str) -> float:
    begin = time.process_time()
    find_spans(as_read(text).text, 0, DETECTORS)
    return time.process_time() - begin


def growth(unit: str, length: int) -> float:
    """How much dearer twice the text is; the best of five tries, since other work on the machine only adds."""
    text = (unit * length)[: 2 * length]
    cost(unit * 100)
    return min(cost(text) / cost(text[:length]) for _ in range(5))


def main() -> int:
    worst = {(unit, length): growth(unit, length) for length, units in TEXTS.items() for unit in units}
    for (unit, length), factor in sorted(worst.items(), key=lambda item: -item[1])[:5]:
        print(f"{factor:.2f}  {length} characters of {unit!r}")
    return int(max(worst.values()) > MOST)


if __name__ == "__main__":
    sys.exit(main())
