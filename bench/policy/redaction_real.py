"""What redaction finds in texts that people send: code, logs, tables, dumps, invoices, statutes.

Run: python -m bench.policy.redaction_real FILES... or `make redaction-real FILES=...`. A file holds JSON lines
``{id, class, text}`` without labels: what is found in them has to be judged by a reader, once for each finding. With
``--judge`` the command asks; a judgement (right or false) is appended to ``--judgements`` under a hash of the text's
id, the label and the value, so that the file holds none of the texts. A run then prints, per class, the share of texts
touched and of those with a false finding, and every finding with its context: false ones and new ones first.

Files whose lines have ``spans`` are labelled sets, for which recall is printed. With ``--peers PYTHON`` (an environment
with `presidio-analyzer` and `datafog`) both peers read the same texts in the same run. Their findings are not judged:
what is printed for them is the share of texts touched, and of those with a finding that meets none judged right here.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from policy.redact.actions.plan import general_label
from policy.redact.detectors.detectors import warm
from policy.redact.evaluate import Evaluation, Labelled, evaluate, find_labelled, read_cases
from policy.redact.labels import canonical

JUDGEMENTS = Path(__file__).with_name("redaction_judgements.jsonl")
PASSES = 3  # of which the quickest counts
SHORT = 200  # characters; what a call costs outweighs shorter texts
CONTEXT = 40  # characters on either side of a finding
RIGHT, FALSE = "right", "false"
COMPARED = ("iban", "card", "email", "phone", "vat", "ip", "secret", "address", "person")
WORKERS = {"presidio": "presidio_findings.py", "datafog": "datafog_findings.py"}


class Text(NamedTuple):
    id: str
    kind: str
    text: str


class Found(NamedTuple):
    """A finding: ``key`` is what judgements are kept under, the same for one value under one label in one text."""

    text: Text
    start: int
    end: int
    label: str
    key: str

    def in_context(self) -> str:
        before = self.text.text[max(0, self.start - CONTEXT) : self.start]
        behind = self.text.text[self.end : self.end + CONTEXT]
        return f"{before}[[{self.text.text[self.start : self.end]}]]{behind}".replace("\n", "\\n").replace("\r", "\\r")


@dataclass
class Report:
    """``micros``: us of CPU a 1,000 characters of each text."""

    texts: Sequence[Text]
    findings: Sequence[Found]
    micros: Sequence[float] = field(default=())

    def touched(self) -> set[str]:
        return {found.text.id for found in self.findings}

    def judged(self, judgements: Mapping[str, str], verdict: str | None) -> list[Found]:
        return [found for found in self.findings if judgements.get(found.key) == verdict]


def read_texts(lines: Iterable[str]) -> list[Text]:
    """Texts of JSON lines ``{id, class, text}``; raises ValueError naming the line that is none."""
    texts = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                read = json.loads(line)
                texts.append(Text(str(read["id"]), str(read.get("class", "")), read["text"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"line {number} is not {{id, class, text}}; write one JSON object a line") from error
    return texts


def key_of(text_id: str, label: str, value: str) -> str:
    return sha256(f"{text_id}\0{general_label(label)}\0{value}".encode("utf-8", "surrogatepass")).hexdigest()[:24]


def examine(texts: Sequence[Text]) -> Report:
    """Every finding of the structured detectors in `texts`, and what the search costs."""
    warm()
    findings: list[Found] = []
    micros = []
    for text in texts:
        seconds = float("inf")
        found: Sequence[Labelled] = ()
        for _ in range(PASSES):
            begin = time.process_time()
            found = find_labelled(text.text)
            seconds = min(seconds, time.process_time() - begin)
        micros.append(seconds / max(1, len(text.text)) * 1e9)
        findings += [
            Found(text, start, end, label, key_of(text.id, label, text.text[start:end])) for start, end, label in found
        ]
    return Report(texts, findings, micros)


def read_judgements(path: Path) -> dict[str, str]:
    """Verdicts by key; the last one counts."""
    if not path.exists():
        return {}
    lines = map(json.loads, filter(str.strip, path.read_text(encoding="utf-8").splitlines()))
    return {line["finding"]: line["verdict"] for line in lines}


def judge(report: Report, judgements: dict[str, str], path: Path) -> None:
    """Ask for each finding without a judgement, and append what is answered."""
    with path.open("a", encoding="utf-8") as kept:
        for found in report.judged(judgements, None):
            if found.key in judgements:
                continue
            print(f"\n{found.text.kind} {found.text.id}\n{found.label}: {found.in_context()}")
            answer = input("r: personal data or a secret; f: false; enter: later > ").strip().lower()
            verdict = {"r": RIGHT, "f": FALSE}.get(answer[:1])
            if verdict:
                judgements[found.key] = verdict
                line = {"finding": found.key, "class": found.text.kind, "label": found.label, "verdict": verdict}
                kept.write(json.dumps(line) + "\n")
                kept.flush()


def table(report: Report, judgements: Mapping[str, str]) -> Iterator[str]:
    """A row for each class: texts, those touched, those with a false finding, those with one nobody has judged."""
    texts = Counter(text.kind for text in report.texts)
    rows: dict[str, list[set[str]]] = defaultdict(lambda: [set(), set(), set()])
    for found in report.findings:
        verdict = judgements.get(found.key)
        row = rows[found.text.kind]
        row[0].add(found.text.id)
        if verdict != RIGHT:
            row[1 if verdict == FALSE else 2].add(found.text.id)
    yield "| class | texts | touched | with a false finding | with a finding not judged |"
    yield "|---|---:|---:|---:|---:|"
    for kind in [*sorted(texts), ""]:
        sizes = (
            [len(each) for each in rows[kind]] if kind else [sum(len(r[i]) for r in rows.values()) for i in range(3)]
        )
        count = texts[kind] if kind else len(report.texts)
        yield f"| {kind or 'all'} | {count} | " + " | ".join(f"{n} ({n / max(1, count):.1%})" for n in sizes) + " |"


def listing(report: Report, judgements: Mapping[str, str], *, everything: bool) -> Iterator[str]:
    """Each finding with its context, one line a key, false ones first."""
    for title, verdict in (("false", FALSE), ("not judged", None), *((("right", RIGHT),) if everything else ())):
        seen: Counter[str] = Counter(found.key for found in report.judged(judgements, verdict))
        if seen:
            yield f"\n{title}:"
        for found in report.judged(judgements, verdict):
            if count := seen.pop(found.key, 0):
                times = f" ({count} times)" if count > 1 else ""
                yield f"  {found.text.kind} {found.text.id} {found.label}{times}: {found.in_context()}"


def ask_peer(python: str, name: str, texts: Sequence[str], model: str) -> list[tuple[list[Labelled], float]]:
    """What a peer finds in each text under our labels, and seconds of CPU."""
    worker = [python, "-I", str(Path(__file__).with_name(WORKERS[name])), model]
    done = subprocess.run(worker, input=json.dumps(texts), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {name} did not run: {done.stderr.strip()[-300:]}; install it for {python}")
    answers = json.loads(done.stdout)
    return [([(s, e, canonical(label)) for s, e, label in a["findings"]], a["seconds"]) for a in answers]


def compare_real(report: Report, judgements: Mapping[str, str], python: str, model: str) -> Iterator[str]:
    right: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for found in report.judged(judgements, RIGHT):
        right[found.text.id].append((found.start, found.end))
    false = {found.text.id for found in report.judged(judgements, FALSE)}
    yield "\n| real texts | touched | with a finding that is not judged right | us of CPU a 1,000 characters |"
    yield "|---|---:|---:|---:|"
    beyond = false | {found.text.id for found in report.judged(judgements, None)}
    yield f"| domicile | {len(report.touched())} | {len(beyond)} | {statistics.median(report.micros):.0f} |"
    characters = sum(len(text.text) for text in report.texts)
    for name in WORKERS:
        answers = ask_peer(python, name, [text.text for text in report.texts], model)
        touched = sum(bool(found) for found, _ in answers)
        outside = sum(
            any(not any(a < end and start < b for a, b in right[text.id]) for start, end, _ in found)
            for text, (found, _) in zip(report.texts, answers, strict=True)
        )
        seconds = sum(each for _, each in answers)
        yield f"| {name} | {touched} | {outside} | {seconds / max(1, characters) * 1e9:.0f} |"


def compare_labelled(path: Path, python: str | None, model: str) -> Iterator[str]:
    cases = read_cases(path.read_text(encoding="utf-8").split("\n"))
    results: dict[str, Evaluation] = {"domicile": evaluate(cases)}
    for name in WORKERS if python else ():
        answers = ask_peer(python or "", name, [case.text for case in cases], model)
        known = {case.text: found for case, (found, _) in zip(cases, answers, strict=True)}
        results[name] = evaluate(cases, known.__getitem__)
    yield f"\n{path.name}: {len(cases)} texts\n\n| | {' | '.join(results)} |\n|---|{'---:|' * len(results)}"
    labels = [label for label in COMPARED if results["domicile"].by_label.get(label) is not None]
    for label in labels:
        if results["domicile"].by_label[label].gold:
            scores = [result.by_label[label] for result in results.values()]
            yield f"| {label}, recall (precision) | " + " | ".join(_both(s.recall, s.precision) for s in scores) + " |"
    for title, share in (("national ids, recall", "found"), ("national ids under their own label", "named")):
        gold = sum(score.gold for label, score in results["domicile"].by_label.items() if _is_id(label))
        if gold:
            counts = [
                sum(getattr(score, share) for label, score in result.by_label.items() if _is_id(label))
                for result in results.values()
            ]
            yield f"| {title} | " + " | ".join(f"{count / gold:.3f}" for count in counts) + " |"
    yield "| clean texts touched | " + " | ".join(f"{r.touched} of {r.clean}" for r in results.values()) + " |"


def _both(recall: float, precision: float) -> str:
    return f"{recall:.3f} ({precision:.3f})"


def _is_id(label: str) -> bool:
    return general_label(label) == "national_id"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="JSON lines of texts, or of labelled texts")
    parser.add_argument("--judgements", type=Path, default=JUDGEMENTS)
    parser.add_argument("--judge", action="store_true", help="ask for each finding that has no judgement")
    parser.add_argument("--all", action="store_true", help="print findings judged right too")
    parser.add_argument("--peers", metavar="PYTHON", help="compare with Presidio and DataFog in that environment")
    parser.add_argument("--spacy", metavar="MODEL", default="null", help="Presidio's model; without it, patterns alone")
    asked = parser.parse_args()
    judgements = read_judgements(asked.judgements)
    worst = 0
    for path in asked.files:
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            sys.exit(f"error: {path}: {error.strerror}; name a file of JSON lines")
        if '"spans"' in lines[0]:
            print(*compare_labelled(path, asked.peers, asked.spacy), sep="\n")
            continue
        try:
            report = examine(read_texts(lines))
        except ValueError as error:
            sys.exit(f"error: {path}: {error}")
        if asked.judge:
            judge(report, judgements, asked.judgements)
        print(f"{path.name}\n", *table(report, judgements), sep="\n")
        print(*listing(report, judgements, everything=asked.all), sep="\n")
        micros = sorted(cost for cost, text in zip(report.micros, report.texts, strict=True) if len(text.text) >= SHORT)
        print(
            f"\nus of CPU a 1,000 characters: median {statistics.median(micros or [0]):.0f}, densest "
            f"{max(micros, default=0):.0f}"
        )
        if asked.peers:
            print(*compare_real(report, judgements, asked.peers, asked.spacy), sep="\n")
        worst += len(report.judged(judgements, FALSE))
    sys.exit(1 if worst else 0)


if __name__ == "__main__":
    main()
