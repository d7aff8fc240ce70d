"""How well watermarks are found, and what they cost, on the demo's model.

    python -m bench.marks --peers vllm synthid --texts ../shared/data FOLDER --cache build/marks --json FILE

- found: the share of marked answers whose text is found at a false positive rate of 1e-3, all shards of the key
  counted, by length and by share of words edited; of all answers, and of those that are prose (a small model repeats
  itself: an answer counts as prose if at least 60 % of its contexts occur once and it has 40 different tokens). With
  `--peers` beside the published marks of vLLM and SynthID, each by its own detector, on the same prompts.
- quality: perplexity of marked answers over that of unmarked ones under the model itself, with the 95 % interval of a
  bootstrap; the same of the draws alone (`by_steps`); share of distinct 4-grams of both, and the p-value of a rank test
  for a difference.
- by entropy: found, of answers in quarters by the mean entropy of their draws.
- false positives: distinct pieces of texts that people wrote, each by a random key; and how probable as many alarms or
  more are at the stated rate.
- speed: tokens a second with and without marks, interleaved, the median of the ratios.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from math import exp, fsum, lgamma, log, log1p, sqrt
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backend.engine.cpu.sampler import Draw
from backend.marks import scheme
from backend.marks.detector import p_value, pairs_of, score
from bench.marks.answers import Answer, answers, checkpoint, decoder_of, edited, kept, prompts_of
from bench.marks.people import here, pieces
from bench.marks.published import CONTEXT, SynthId, Vllm
from bench.marks.schemes import WORDS
from bench.marks.steps import steps_of
from bench.measurement import Measurement, options_of

KEY = bytes(32)
ALPHA = 1e-3
TOKENS = 200
BATCH = 64
LEAST = 50
"""Tokens of an answer whose draws are looked at."""
PValue = Callable[[Sequence[int], Answer], float]
"""Of the tokens of a text that was an answer, corrected for all keys that are tried."""
SPECIAL = frozenset({0, 1, 2})  # of SmolLM2: what follows an end is no answer


def is_prose(tokens: list[int]) -> bool:
    return not SPECIAL & set(tokens) and len(pairs_of(tokens)) >= 0.6 * len(tokens) and len(set(tokens)) >= 40


def found(model: str, made: list[Answer], length: int, share: float, of: PValue) -> tuple[int, int]:
    """Hits and tries, with three sets of edits of each answer."""
    text, hits, tries = checkpoint(model).text, 0, 0
    for seed in range(3 if share else 1):
        rng = random.Random(seed)
        for answer in made:
            said = edited(text.decode(answer.tokens[:length]), share, WORDS, rng)
            hits += of(text.encode_words(said), answer) <= ALPHA
            tries += 1
    return hits, tries


def detection(model: str, made: Mapping["Scheme", list[Answer]]) -> list[dict[str, Any]]:
    rows = []
    for kind in ("all", "prose"):
        for length in (50, 100, 150, TOKENS):
            for share in (0.0, 0.1, 0.2):
                row: dict[str, Any] = {"answers": kind, "tokens": length, "edited": share, "found": {}, "tries": {}}
                for one, answered in made.items():
                    some = answered if kind == "all" else [each for each in answered if is_prose(each.tokens)]
                    hits, tries = found(model, some, length, share, one.p_value)
                    row["found"][one.name] = hits / tries if tries else None
                    row["tries"][one.name] = tries
                rows.append(row)
    return rows


def by_entropy(model: str, marked: list[Answer], steps: list[NDArray[Any]]) -> list[dict[str, Any]]:
    """Found of our marks, of answers in quarters by the mean entropy of their draws (nats)."""
    long = [one for one in marked if len(whole(one.tokens)) >= LEAST]
    ordered = sorted(zip((float(each[:, 0].mean()) for each in steps), long, strict=True), key=lambda pair: pair[0])
    rows, size = [], -(-len(ordered) // 4)
    for start in range(0, len(ordered), size):
        quarter = ordered[start : start + size]
        row: dict[str, Any] = {"answers": len(quarter), "entropy": [round(quarter[at][0], 3) for at in (0, -1)]}
        for share in (0.0, 0.2):
            for length in (100, TOKENS):
                hits, tries = found(model, [one for _, one in quarter], length, share, OURS.p_value)
                row[f"{length} tokens, {share:.0%} edited"] = round(hits / tries, 3)
        rows.append(row)
    return rows


def by_steps(marked: list[NDArray[Any]], plain: list[NDArray[Any]]) -> dict[str, Any]:
    """The ratio of perplexities that the draws themselves account for: surprise of what was drawn less what a draw has
    on average, behind the very same text. Where an answer wanders is not in it, which is most of the plain ratio's
    spread and no doing of a mark."""
    rests = [[each[:, 2] - each[:, 1] for each in some] for some in (marked, plain)]
    rng = np.random.default_rng(0)

    def mean(some: list[NDArray[Any]], chosen: NDArray[Any]) -> float:
        return float(np.concatenate([some[at] for at in chosen]).mean())

    ratios = sorted(
        exp(
            mean(rests[0], rng.integers(0, len(rests[0]), len(rests[0])))
            - mean(rests[1], rng.integers(0, len(rests[1]), len(rests[1])))
        )
        for _ in range(2000)
    )
    ratio = exp(mean(rests[0], np.arange(len(rests[0]))) - mean(rests[1], np.arange(len(rests[1]))))
    return {
        "draws_ratio": ratio,
        "draws_interval": [ratios[50], ratios[1949]],
        "draws": [sum(map(len, some)) for some in (marked, plain)],
    }


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


def false_positives(model: str, folders: list[Path], tests: int, minutes: float) -> dict[str, Any]:
    """Distinct pieces of texts that people wrote, each with a key of its own; as many as there is time for."""
    until = time.monotonic() + 60 * minutes
    text, rng, alarms = checkpoint(model).text, random.Random(5), dict.fromkeys((0.05, 0.01, 1e-3, 1e-4), 0)
    lengths: list[int] = []
    for piece in takewhile(lambda _: time.monotonic() < until, islice(pieces(folders), tests)):
        pairs = pairs_of(text.encode_words(piece))
        lengths.append(len(pairs))
        p = p_value(rng.randbytes(32), pairs)
        for alpha in alarms:
            alarms[alpha] += p <= alpha
    return {
        "texts": len(lengths),
        "median_pairs": statistics.median(lengths),
        "alarms": {str(alpha): count for alpha, count in alarms.items()},
        "expected_at_most": {str(alpha): alpha * len(lengths) for alpha in alarms},
        "probability_of_as_many": {str(alpha): as_many(len(lengths), alpha, count) for alpha, count in alarms.items()},
    }


def as_many(tests: int, rate: float, count: int) -> float:
    """P(count or more of so many independent tests), each with that probability."""
    logs = (
        lgamma(tests + 1) - lgamma(k + 1) - lgamma(tests - k + 1) + k * log(rate) + (tests - k) * log1p(-rate)
        for k in range(count)
    )
    return max(0.0, 1 - fsum(map(exp, logs)))


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


def all_of_quality(
    marked: list[Answer], plain: list[Answer], steps: list[NDArray[Any]], plain_steps: list[NDArray[Any]]
) -> dict[str, Any]:
    return quality(marked, plain) | by_steps(steps, plain_steps)


@dataclass(frozen=True)
class Scheme:
    """draw: in place of the engine's own. context: tokens of it."""

    name: str
    p_value: PValue
    draw: Callable[[Tensor, Draw], int] | None = None
    context: int = scheme.CONTEXT

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """While the block runs, the engine takes as much context for a mark."""
        own = scheme.CONTEXT
        scheme.CONTEXT = self.context
        try:
            yield
        finally:
            scheme.CONTEXT = own


OURS = Scheme("domicile", lambda tokens, _: p_value(KEY, pairs_of(tokens)))
ONE_SHARD = Scheme("one shard", lambda tokens, answer: of_its_shard(tokens, answer))
"""Ours, where it is known which of its shards marked the answer: as comparable with a mark of one key."""
PEERS = tuple(
    Scheme(one.name, lambda tokens, _, one=one: one.p_value(tokens), one.draw, CONTEXT)  # type: ignore[misc]
    for one in (Vllm(), SynthId())
)


def of_its_shard(tokens: Sequence[int], answer: Answer) -> float:
    assert answer.key is not None
    return score(answer.key, pairs_of(tokens)).p_value


@dataclass(frozen=True)
class Generated:
    """Answers to the same prompts, in parts of BATCH, each kept in the folder as soon as it is there."""

    model: str
    count: int
    folder: Path | None

    def by(self, one: Scheme | None, temperature: float) -> list[Answer]:
        """None: unmarked."""
        parts = range(-(-self.count // BATCH))
        made = [answer for part in parts for answer in self._part(one, temperature, part)][: self.count]
        shards = [None if one is None else scheme.shard_key(KEY, number % BATCH) for number in range(len(made))]
        return [replace(answer, key=key) for answer, key in zip(made, shards, strict=True)]

    def _part(self, one: Scheme | None, temperature: float, part: int) -> list[Answer]:
        def make() -> list[Answer]:
            with (one or OURS).in_force():
                return answers(
                    self.model,
                    count=BATCH,
                    tokens=TOKENS,
                    temperature=temperature,
                    key=None if one is None else KEY,
                    batch=BATCH,
                    seed=part,
                    draw=None if one is None else one.draw,
                )

        return kept(self.folder, f"{one.name if one else 'plain'}-{temperature}-{part}", make)

    def steps(self, made: list[Answer], temperature: float) -> list[NDArray[Any]]:
        """Of each answer, see `steps_of`. Not of what follows an end, which no caller sees."""
        parts = range(-(-self.count // BATCH))
        prompts = [prompt for part in parts for prompt in prompts_of(self.model, BATCH, part)]
        decoder = decoder_of(self.model)
        return [
            steps_of(decoder, prompt, whole(one.tokens), temperature)
            for prompt, one in zip(prompts, made, strict=False)
            if len(whole(one.tokens)) >= LEAST
        ]


def whole(tokens: list[int]) -> list[int]:
    """Up to an end of the answer."""
    return list(takewhile(lambda token: token not in SPECIAL, tokens))


def main() -> None:
    parser = options_of(__doc__, count=64, of="answers of each kind", repeats=5)
    parser.add_argument("--texts", type=Path, nargs="*", default=[], help="folders with texts that people wrote")
    parser.add_argument(
        "--tests", type=int, default=300_000, help="of pieces of those texts and of this machine's, at most"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="for them, at most")
    parser.add_argument("--cache", type=Path, help="folder in which generated answers are kept")
    parser.add_argument("--temperature", type=float, nargs="*", default=[0.7, 1.0])
    parser.add_argument("--peers", nargs="*", default=[], choices=[one.name for one in PEERS], help="published marks")
    parser.add_argument("--parts", nargs="*", default=["found", "quality", "people", "speed"], help="all by default")
    options = parser.parse_args()
    run = Measurement(options, scheme=scheme.SCHEME)
    generated = Generated(options.model, options.count, options.cache)
    for temperature in options.temperature:
        marked = generated.by(OURS, temperature)
        if "found" in options.parts:
            peers = [one for one in PEERS if one.name in options.peers]
            each = {OURS: marked, ONE_SHARD: marked} | {one: generated.by(one, temperature) for one in peers}
            rows = run.part(f"found at {temperature}", partial(detection, options.model, each))
            print(table(rows))
        if "quality" in options.parts:
            plain = generated.by(None, temperature)
            steps = [generated.steps(some, temperature) for some in (marked, plain)]
            run.part(f"quality at {temperature}", partial(all_of_quality, marked, plain, *steps))
            run.part(f"by entropy at {temperature}", partial(by_entropy, options.model, marked, steps[0]))
    if "people" in options.parts:
        folders = [*options.texts, *here()]
        run.part("false positives", lambda: false_positives(options.model, folders, options.tests, options.minutes))
    if "speed" in options.parts:
        run.part("speed", lambda: speed(options.model, options.repeats))


def table(rows: list[dict[str, Any]]) -> str:
    """Schemes beside each other."""
    names = [name for name in rows[0]["found"]]
    lines = [f"{'answers':7} tokens edited  " + "  ".join(f"{name:>9}" for name in names)]
    for row in rows:
        found = "  ".join(f"{row['found'][name]:9.3f}" for name in names)
        lines.append(f"{row['answers']:7} {row['tokens']:6} {row['edited']:6.0%}  {found}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
