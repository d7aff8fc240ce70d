"""What redaction costs: microseconds of CPU a 1,000 characters of prompt, and a piece of a streamed answer.

Run: python -m bench.policy.redaction [--json]. Medians of several rounds on one thread.
With --presidio PYTHON, the Python of an environment with `presidio-analyzer` (and --spacy MODEL for its default
set-up): what it and we find in the same texts, held-out half of tests/data/redaction, in one run. How much we find
alone: `domicile redact eval` (docs/redaction.md).
"""

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from policy.redact.actions.plan import LABELS, OUTPUT_LABELS, RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.evaluate import Evaluation, evaluate
from policy.redact.labels import canonical
from policy.redact.redactor import Redactor
from tests.data.redaction.make import cases
from tests.policy.redact.layouts import LAYOUTS

ROUNDS = 9
COMPARED = ("iban", "card", "email", "phone", "vat", "ip", "secret", "date_of_birth", "address")
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
    parser.add_argument("--presidio", metavar="PYTHON", help="compare with Presidio in that environment")
    parser.add_argument("--spacy", metavar="MODEL", help="its default set-up too, around this model")
    parser.add_argument("--rounds", type=int, default=2, help="size of the compared set: some 190 texts each")
    asked = parser.parse_args()
    if asked.presidio:
        compare(asked.presidio, asked.spacy, asked.rounds, as_json=asked.json)
        return
    results = measure()
    if asked.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{value:9.2f} us  {name}")


def compare(python: str, spacy: str | None, rounds: int, *, as_json: bool) -> None:
    made = list(cases(2026, rounds, held_out=True))
    results = {"domicile": evaluate(made)}
    for name in filter(None, ("null", spacy)):
        worker = [python, "-I", str(Path(__file__).with_name("presidio_findings.py")), name]
        texts = json.dumps([case.text for case in made])
        done = subprocess.run(worker, input=texts, capture_output=True, text=True, check=True)
        answers = {case.text: answer for case, answer in zip(made, json.loads(done.stdout), strict=True)}
        found = evaluate(
            made,
            lambda text, known=answers: [
                (start, end, canonical(label)) for start, end, label in known[text]["findings"]
            ],
        )
        seconds = sum(answer["seconds"] for answer in answers.values())
        micros = seconds / sum(len(text) for text in answers) * 1e9
        results[f"presidio, {'no model' if name == 'null' else name}"] = replace(found, micros=micros)
    table = {name: _compared(result) for name, result in results.items()}
    if as_json:
        print(json.dumps(table, indent=1))
        return
    rows = list(next(iter(table.values())))
    print(f"{len(made)} texts\n\n| | {' | '.join(table)} |\n|---|{'---:|' * len(table)}")
    for row in rows:
        print(f"| {row} | " + " | ".join(f"{figures[row]}" for figures in table.values()) + " |")


def _compared(result: Evaluation) -> dict[str, object]:
    ids = [score for label, score in result.by_label.items() if label.startswith("national_id") and score.gold]
    gold = sum(score.gold for score in ids)
    return {
        **{f"recall of {label}": round(result.by_label[label].recall, 3) for label in COMPARED},
        "recall of national numbers": round(sum(score.found for score in ids) / gold, 3),
        "of these under the right label": round(sum(score.named for score in ids) / gold, 3),
        **{f"structured recall, {variant}": round(score.recall, 3)
           for variant, score in result.structured_by_variant.items() if score.gold},
        "clean texts touched": f"{result.touched} of {result.clean}",
        "us of CPU a 1,000 characters": round(result.micros),
    }  # fmt: skip


def measure() -> dict[str, float]:
    redactor = Redactor(PLAN)
    results = {}
    for name, text in (("prose", PROSE), ("german", GERMAN), ("code", CODE), ("personal", PERSONAL)):
        prompt = (text * (1000 // len(text) + 1))[:1000]
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "stream": True}
        results[f"prompt of 1,000 characters, {name}"] = _median(
            lambda b=body: redactor.redact_body(b, LAYOUTS["chat"], NONCE), 1
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
