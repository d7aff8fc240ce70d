"""What redaction costs: microseconds of CPU a 1,000 characters of prompt, and a piece of a streamed answer.

Run: python -m bench.redaction [--json]. Medians of several rounds on one thread.
How much is found: `domicile redact eval` (docs/redaction.md).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

from policy.redact.plan import LABELS, OUTPUT_LABELS, RedactionPlan
from policy.redact.pseudonyms import Pseudonyms
from policy.redact.redactor import Redactor

ROUNDS = 9
NONCE = "k7f3qw"
PLAN = RedactionPlan({label: "pseudonymise" for label in LABELS}, {label: "mask" for label in OUTPUT_LABELS})

PROSE = (
    "The committee met on Tuesday to talk about the new harbour, which will open in 2027 if the council agrees. "
    "Its members had read the report and asked for a second opinion on pages 12 and 40. "
)
GERMAN = "Die Sitzung beginnt um neun Uhr; über die Höhe der Gebühren für das Jahr 2026 wird später entschieden. "
PERSONAL = (
    "Please write to alice@example.org or call +49 30 901820 about IBAN DE89 3704 0044 0532 0130 00, "
    "card 4111 1111 1111 1111, and order 20417 of 3 May. "
)
CODE = "def total(rows):\n    return sum(row['net_amount'] * 1.19 for row in rows if row[\"id\"] > 10_000)\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    results = measure()
    if asked.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{value:9.2f} us  {name}")


def measure() -> dict[str, float]:
    redactor = Redactor(PLAN)
    results = {}
    for name, text in (("prose", PROSE), ("german", GERMAN), ("code", CODE), ("personal", PERSONAL)):
        prompt = (text * (1000 // len(text) + 1))[:1000]
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "stream": True}
        results[f"prompt of 1,000 characters, {name}"] = _median(
            lambda b=body: redactor.redact_body(b, "chat", NONCE), 1
        )
    for name, text in (("prose", PROSE), ("german", GERMAN), ("code", CODE), ("personal", PERSONAL)):
        pieces = _words(text * 40)
        results[f"feed, redact and restore, {name}"] = _median(lambda p=pieces: _stream(redactor, p), len(pieces))
    restore_only = Redactor(RedactionPlan({"email": "pseudonymise"}, {}))
    pieces = _words(PROSE * 40)
    results["feed, restore only, prose"] = _median(lambda: _stream(restore_only, pieces), len(pieces))
    return results


def _words(text: str) -> list[str]:
    """Pieces as a tokenizer gives them: a blank and the letters behind it, at most six."""
    pieces: list[str] = []
    for word in text.split(" "):
        spaced = " " + word
        pieces += [spaced[i : i + 6] for i in range(0, len(spaced), 6)]
    return pieces


def _stream(redactor: Redactor, pieces: list[str]) -> None:
    pseudonyms = Pseudonyms(NONCE)
    pseudonyms.placeholder("email", "alice@example.org")
    stream = redactor.stream_filter(pseudonyms)
    for piece in pieces:
        stream.feed(piece)
    stream.flush()


def _median(work: Callable[[], object], units: int) -> float:
    repeat = max(1, 2000 // units)
    rounds = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        for _ in range(repeat):
            work()
        rounds.append((time.process_time() - begin) / (repeat * units) * 1e6)
    return statistics.median(rounds)


if __name__ == "__main__":
    main()
