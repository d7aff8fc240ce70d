"""How well watermarks are found, and what they cost, on the demo's model.

    python -m bench.marks --texts ../shared/data --json FILE

- found: the share of marked answers whose text is found at a false positive rate of 1e-3, all shards of the key
  counted, by length and by share of words edited; of all answers, and of those that are prose (a small model repeats
  itself: an answer counts as prose if at least 60 % of its contexts occur once and it has 40 different tokens).
- quality: perplexity of marked answers over that of unmarked ones under the model itself, with the 95 % interval of a
  bootstrap; share of distinct 4-grams of both, and the p-value of a rank test for a difference.
- false positives: texts that people wrote, by so many random keys each.
- speed: tokens a second with and without marks, interleaved, the median of the ratios.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from math import exp, sqrt
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
import torch

from backend.marks.detector import p_value, pairs_of
from backend.marks.scheme import SCHEME
from bench.marks.answers import Answer, answers, checkpoint, edited
from bench.marks.schemes import WORDS

KEY = bytes(32)
ALPHA = 1e-3
TOKENS = 200
SPECIAL = frozenset({0, 1, 2})  # of SmolLM2: what follows an end is no answer


def is_prose(tokens: list[int]) -> bool:
    return not SPECIAL & set(tokens) and len(pairs_of(tokens)) >= 0.6 * len(tokens) and len(set(tokens)) >= 40


def found(model: str, made: list[Answer], length: int, share: float) -> tuple[int, int]:
    """Hits and tries, with three sets of edits of each answer."""
    text, hits, tries = checkpoint(model).text, 0, 0
    for seed in range(3 if share else 1):
        rng = random.Random(seed)
        for answer in made:
            said = edited(text.decode(answer.tokens[:length]), share, WORDS, rng)
            hits += p_value(KEY, pairs_of(text.encode_words(said))) <= ALPHA
            tries += 1
    return hits, tries


def detection(model: str, made: list[Answer]) -> list[dict[str, Any]]:
    rows = []
    for kind, some in (("all", made), ("prose", [one for one in made if is_prose(one.tokens)])):
        for length in (50, 100, 150, TOKENS):
            for share in (0.0, 0.1, 0.2):
                hits, tries = found(model, some, length, share)
                rows.append({"answers": kind, "tokens": length, "edited": share, "found": hits / tries, "tries": tries})
    return rows


def quality(marked: list[Answer], plain: list[Answer]) -> dict[str, Any]:
    losses = [np.array([-fmean(one.logprobs) for one in some]) for some in (marked, plain)]
    rng = np.random.default_rng(0)
    ratios = sorted(
        exp(rng.choice(losses[0], len(losses[0])).mean() - rng.choice(losses[1], len(losses[1])).mean())
        for _ in range(2000)
    )
    distinct = [[distinct_share(one.tokens) for one in some] for some in (marked, plain)]
    return {
        "perplexity_ratio": exp(losses[0].mean() - losses[1].mean()),
        "perplexity_interval": [ratios[50], ratios[1949]],
        "distinct_4_grams": [fmean(some) for some in distinct],
        "repetition_p": rank_test(*distinct),
    }


def distinct_share(tokens: list[int]) -> float:
    grams = [tuple(tokens[at : at + 4]) for at in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams)


def rank_test(one: list[float], other: list[float]) -> float:
    """Two-sided p-value of Mann and Whitney's U, by its normal approximation with ties."""
    pooled = sorted([*one, *other])
    rank = {value: fmean(at + 1 for at, each in enumerate(pooled) if each == value) for value in set(pooled)}
    n, m = len(one), len(other)
    u = sum(rank[value] for value in one) - n * (n + 1) / 2
    ties = sum(pooled.count(value) ** 3 - pooled.count(value) for value in set(pooled))
    spread = sqrt(n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1))))
    return 2 * (1 - NormalDist().cdf(abs(u - n * m / 2) / spread))


def human_texts(folder: Path) -> Iterator[str]:
    for file in sorted(folder.rglob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if len(text := json.loads(line).get("text", "")) >= 300:
                    yield text[:2500]


def false_positives(model: str, folder: Path, tests: int) -> dict[str, Any]:
    """Texts of 300 to 2,500 characters; `tests` pairs of a text and a key."""
    text = checkpoint(model).text
    texts = [pairs_of(text.encode_words(one)) for one in human_texts(folder)]
    rng, alarms = random.Random(5), {alpha: 0 for alpha in (0.05, 0.01, 1e-3, 1e-4)}
    lengths = [len(one) for one in texts]
    for number in range(tests):
        p = p_value(rng.randbytes(32), texts[number % len(texts)])
        for alpha in alarms:
            alarms[alpha] += p <= alpha
    return {
        "texts": len(texts),
        "tests": tests,
        "median_pairs": statistics.median(lengths),
        "alarms": {str(alpha): count for alpha, count in alarms.items()},
        "expected_at_most": {str(alpha): alpha * tests for alpha in alarms},
    }


def speed(model: str, repeats: int) -> list[dict[str, Any]]:
    rows = []
    for batch in (1, 16):
        taken: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * repeats + 2):
            marked = number % 2 == 0
            began = time.perf_counter()
            answers(
                model, count=batch, tokens=40, temperature=1.0, key=KEY if marked else None, batch=batch, logprobs=None
            )
            if number >= 2:
                taken[marked].append(time.perf_counter() - began)
        ratios = [one / other for one, other in zip(taken[True], taken[False], strict=True)]
        rows.append({"batch": batch, "time_ratio": statistics.median(ratios), "each": ratios})
    return rows


def cached(folder: Path | None, name: str, make: Any) -> list[Answer]:
    """What was generated before, if it was kept: a slow machine measures again without generating again."""
    file = None if folder is None else folder / f"{name}.json"
    if file is not None and file.exists():
        return [Answer(tokens, logprobs, None) for tokens, logprobs in json.loads(file.read_text())]
    made: list[Answer] = make()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([[one.tokens, one.logprobs] for one in made]))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--count", type=int, default=64, help="answers of each kind")
    parser.add_argument("--texts", type=Path, help="folder with texts that people wrote, in .jsonl")
    parser.add_argument("--tests", type=int, default=20_000, help="of those texts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="folder in which generated answers are kept")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "model": options.model,
        "scheme": SCHEME,
        "count": options.count,
    }
    for temperature in (0.7, 1.0):
        made = {
            marked: cached(
                options.cache,
                f"{temperature}-{'marked' if marked else 'plain'}-{options.count}",
                lambda marked=marked, temperature=temperature: answers(
                    options.model,
                    count=options.count,
                    tokens=TOKENS,
                    temperature=temperature,
                    key=KEY if marked else None,
                    batch=min(64, options.count),
                ),
            )
            for marked in (True, False)
        }
        rows = detection(options.model, made[True])
        said = quality(made[True], made[False])
        result[f"temperature {temperature}"] = {"found": rows, **said}
        print(f"temperature {temperature}: {json.dumps(said)}")
        for row in rows:
            print(
                f"  {row['answers']:5} {row['tokens']:4} tokens, {row['edited']:.0%} edited: {row['found']:.3f}"
                f" of {row['tries']}"
            )
    if options.texts is not None:
        result["false_positives"] = false_positives(options.model, options.texts, options.tests)
        print(json.dumps(result["false_positives"]))
    result["speed"] = speed(options.model, options.repeats)
    for row in result["speed"]:
        print(f"batch {row['batch']}: {row['time_ratio']:.3f} of the time without marks")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
