"""`domicile redact`: preview redaction of a text or a file, and measure it on a labelled data set."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from policy.errors import RedactionError

PASSES = 3  # runs of the detectors over a labelled set; the fastest is reported

app = typer.Typer(name="redact", help="Try and measure redaction.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WithNames = Annotated[bool, typer.Option("--ner", help="Look for names of persons too; needs the extra `ner`.")]
Act = Annotated[str, typer.Option("--action", help="mask or pseudonymise.")]


@app.command()
def text(
    words: Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads it from standard input.")],
    action: Act = "mask",
    ner: WithNames = False,
    as_json: AsJson = False,
) -> None:
    """Redact TEXT and print it. With --json, also print the position and label of each finding.

    Example: domicile redact text "Write to alice@example.org"
    """
    _show(sys.stdin.read() if words == "-" else words, action, ner=ner, as_json=as_json)


@app.command()
def file(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A UTF-8 text file.")],
    action: Act = "mask",
    ner: WithNames = False,
    as_json: AsJson = False,
) -> None:
    """Redact the text in FILE and print it; the file is not changed.

    Example: domicile redact file letter.txt --action pseudonymise
    """
    _show(_read(path), action, ner=ner, as_json=as_json)


@app.command("eval")
def evaluate_file(
    path: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="One labelled text a line.")],
    ner: WithNames = False,
    as_json: AsJson = False,
) -> None:
    """Measure redaction on labelled texts, one per line: {id, lang, text, variant?, spans: [{start, end, label}]}.

    Offsets count characters, the end is exclusive. Prints recall, precision and correct labels by label, language and
    variant, the share of texts without spans that had a finding, and microseconds of CPU per 1,000 characters (fastest
    of three passes, or one pass with --ner).

    Example: domicile redact eval set.jsonl --json
    """
    from policy.redact.evaluate import evaluate, find_labelled, read_cases

    try:
        cases = read_cases(_read(path).removeprefix("\ufeff").split("\n"))  # a text may contain other line separators
        detectors = _detectors(ner=ner)
        # The name model caches its results, so a second pass would measure the cache.
        result = evaluate(cases, lambda written: find_labelled(written, detectors), passes=1 if ner else PASSES)
    except RedactionError as error:
        _fail(str(error))
    if result.unknown:
        labels = ", ".join(f"{label} ({count} spans)" for label, count in result.unknown.items())
        typer.echo(f"note: unknown labels: {labels}; their spans count as found if covered", err=True)
    if as_json:
        typer.echo(json.dumps(_figures(result), indent=1))
        return
    typer.echo(f"{result.texts} texts; {result.touched} of {result.clean} without personal data were touched;")
    typer.echo(f"{result.micros:.0f} us of CPU a 1,000 characters.")
    for name in ("label", "lang", "variant", "structured_by_variant"):
        typer.echo(f"\n| {name} | spans | recall | right label | precision | F1 |\n|---|---:|---:|---:|---:|---:|")
        for key, score in getattr(result, name if "_" in name else f"by_{name}").items():
            shown = (score.recall, score.right_label, score.precision, score.f1)
            typer.echo(f"| {key} | {score.gold} | " + " | ".join(f"{value:.3f}" for value in shown) + " |")
    if result.names_by_lang:
        typer.echo("\n| names in | spans | recall | precision | F1 |\n|---|---:|---:|---:|---:|")
        for key, score in result.names_by_lang.items():
            typer.echo(f"| {key} | {score.gold} | {score.recall:.3f} | {score.precision:.3f} | {score.f1:.3f} |")


def _show(written: str, action: str, *, ner: bool, as_json: bool) -> None:
    from secrets import token_bytes

    from policy.redact.actions.plan import INPUT_LABELS, LABELS, Action, RedactionPlan
    from policy.redact.actions.pseudonyms import nonce_from
    from policy.redact.evaluate import find_labelled
    from policy.redact.redactor import Redactor
    from policy.redact.request import PLAIN_PROMPT

    if action not in ("mask", "pseudonymise"):
        _fail(f"there is no action {action!r}; name mask or pseudonymise", 2)
    try:
        detectors = _detectors(ner=ner)
        act: Action = "mask" if action == "mask" else "pseudonymise"
        redactor = Redactor(RedactionPlan(dict.fromkeys(INPUT_LABELS if ner else LABELS, act)), detectors=detectors)
        body = {"model": "m", "prompt": written}
        redacted = redactor.redact_body(body, PLAIN_PROMPT, nonce_from(token_bytes(6))).body["prompt"]
        found = find_labelled(written, detectors)
    except RedactionError as error:
        _fail(str(error))
    if as_json:
        findings = [{"start": start, "end": end, "label": label} for start, end, label in found]
        typer.echo(json.dumps({"text": redacted, "findings": findings}, ensure_ascii=False))
    else:
        typer.echo(redacted)


def _detectors(*, ner: bool) -> Any:
    from policy.redact.detectors.detectors import DETECTORS, Detector

    if not ner:
        return DETECTORS
    from policy.redact.names.ner import NameModel

    model = NameModel()
    return (*DETECTORS, Detector("person", lambda written, _: model.find(written)))


def _figures(result: Any) -> dict[str, Any]:
    def table(scores: Mapping[str, Any]) -> dict[str, Any]:
        return {key: _score(score) for key, score in scores.items()}

    return {
        **_score(result.total),
        "texts": result.texts,
        "clean_texts": result.clean,
        "clean_texts_touched": result.touched,
        "touched_share": round(result.touched / result.clean, 4) if result.clean else 0.0,
        "us_per_1000_characters": round(result.micros, 1),
        "by_label": table(result.by_label),
        "by_language": table(result.by_lang),
        "by_variant": table(result.by_variant),
        "structured_by_variant": table(result.structured_by_variant),
        "names_by_language": table(result.names_by_lang),
        "missed": list(result.missed),
        "unknown_labels": dict(result.unknown),
    }


def _score(score: Any) -> dict[str, Any]:
    return {
        "spans": score.gold, "found": score.found, "right_label_count": score.named, "findings": score.findings,
        "right_findings": score.right, "recall": round(score.recall, 4), "precision": round(score.precision, 4),
        "right_label": round(score.right_label, 4), "f1": round(score.f1, 4),
    }  # fmt: skip


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8 text"
        _fail(f"{path}: {reason}; name a file of UTF-8 text")


def _fail(problem: str, status: int = 1) -> NoReturn:
    typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(status)
