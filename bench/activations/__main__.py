"""How well commitments to activations tell models apart, and what they cost, on the demo's model.

    python -m bench.activations --json FILE

- distances: answers of the engine, each with its commitment, are computed again by several kinds of servers, from the
  claimed one in another dtype to quantised ones and other models; of each kind the mean distance of an answer (steps of
  bfloat16, `backend.activations.answer_commitment`), least, median and most.
- AUC: the probability that an answer of the kind is further away than an honest one: of a server in float32, and of
  honest ones in bfloat16 (whichever of the two that are here is further).
- verdicts: what `domicile audit challenge` would say, by the limit for that dtype.
- making: CPU time of one commitment, which the process that speaks HTTP makes.
- cost: CPU time of the engine with and without, interleaved, the median of the ratios.
"""

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch

from backend.activations.answer_commitment import Commitment, Committer, distance
from backend.activations.largest_activations import CHUNK
from backend.activations.verdict import LIMITS, verdict_of
from backend.engine.cpu.prefill import rows_behind
from backend.models.decoders.decoder import Decoder
from bench.activations.servers import (
    Rows,
    answered,
    by_twins,
    changed,
    int8,
    model,
    plain,
    with_noise,
    without_a_layer,
)
from bench.marks.answers import prompts_of
from bench.measurement import Measurement, options_of

HONEST = {"float32": ("float32",), "bfloat16": ("bfloat16", "bfloat16, the kernels' twins")}


def servers(name: str) -> dict[str, Rows]:
    """By what is said of each."""
    exact, rounded = model(name, "float32"), model(name, "bfloat16")
    return {
        "float32": plain(exact),
        "bfloat16": plain(rounded),
        "bfloat16, the kernels' twins": by_twins(rounded, fp8=False, fp8_cache=False),
        "float32, weights rounded to INT8": plain(changed(exact, int8)),
        "float32, FP8 cache": by_twins(exact, fp8=False, fp8_cache=True),
        "bfloat16, FP8 cache": by_twins(rounded, fp8=False, fp8_cache=True),
        "bfloat16, FP8 weights": by_twins(rounded, fp8=True, fp8_cache=False),
        "float32, weights moved by 2 %": plain(changed(exact, with_noise)),
        "float32, without one layer": plain(without_a_layer(exact)),
    }


def distances(made: Sequence[tuple[list[int], list[int], Commitment]], rows_of: Rows) -> list[float]:
    """Of each answer, of which prompt, tokens and commitment are given."""
    found = []
    for prompt, tokens, commitment in made:
        rows = rows_of(prompt, tokens)
        parts = [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]
        each = [distance(chunk, part, commitment.width) for chunk, part in zip(commitment.chunks, parts, strict=True)]
        found.append(fmean(one.steps for one in each))
    return found


def auc(honest: Sequence[float], others: Sequence[float]) -> float:
    """Of all pairs, the share in which the other is further away; a tie counts half."""
    pairs = [(other > own) + 0.5 * (other == own) for own in honest for other in others]
    return fmean(pairs)


def detection(name: str, count: int, tokens: int, batch: int) -> dict[str, Any]:
    prompts = list(prompts_of(name, count, seed=0))
    exact = model(name, "float32")
    made = []
    for start in range(0, count, batch):
        some = prompts[start : start + batch]
        made += [(p, *one) for p, one in zip(some, answered(exact, some, tokens, 0.8), strict=True)]
    found: dict[str, list[float]] = {}
    for kind, rows_of in servers(name).items():
        found[kind] = distances(made, rows_of)
        print(f"  {kind:34} {summary(found[kind])}", flush=True)
    rows = []
    for kind, each in found.items():
        row: dict[str, Any] = {"server": kind, "steps": summary(each)}
        for dtype, honest in HONEST.items():
            row[f"verdicts, {dtype}"] = dict(Counter(verdict_of(dtype, one) for one in each))
            if kind not in honest and not (dtype == "bfloat16" and kind == "float32"):
                row[f"AUC, {dtype}"] = round(min(auc(found[own], each) for own in honest), 5)
        rows.append(row)
    size = len(made[0][2].to_bytes())
    return {"answers": count, "tokens": tokens, "bytes_of_an_answer": size, "servers": rows}


def summary(each: Sequence[float]) -> list[float]:
    return [round(one, 3) for one in (min(each), statistics.median(each), max(each))]


def cost(name: str, repeats: int, tokens: int) -> list[dict[str, Any]]:
    exact, rows = model(name, "float32"), []
    for batch in (1, 8):
        prompts = list(prompts_of(name, batch, seed=1))
        taken: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * repeats + 2):
            commits = number % 2 == 0
            began = time.process_time()
            answered(exact, prompts, tokens, 0.8, commits=commits, finish=False)
            if number >= 2:
                taken[commits].append(time.process_time() - began)
        ratios = [one / other for one, other in zip(taken[True], taken[False], strict=True)]
        rows.append({"batch": batch, "tokens": tokens, "cpu_ratio": round(statistics.median(ratios), 4),
                     "each": [round(one, 4) for one in ratios]})  # fmt: skip
    return rows


def making(decoder: Decoder, name: str, tokens: int) -> dict[str, float]:
    """CPU milliseconds of a commitment, for the HTTP process: each token's row, and the polynomials at the end."""
    (prompt,) = prompts_of(name, 1, seed=2)
    answer = prompt * (tokens // len(prompt) + 1)
    rows = rows_behind(decoder, prompt, answer, tokens)
    packed = [row.astype("<u4").tobytes() for row in rows]
    best = {"add": float("inf"), "finish": float("inf")}
    for _ in range(5):
        committer = Committer(prompt, decoder.config.hidden_size)
        began = time.process_time()
        for token, row in zip(answer, packed, strict=False):
            committer.add(token, row)
        added = time.process_time()
        committer.finish()
        best["add"] = min(best["add"], added - began)
        best["finish"] = min(best["finish"], time.process_time() - added)
    return {f"{part}_ms_a_token": round(seconds * 1000 / tokens, 5) for part, seconds in best.items()}


def main() -> None:
    parser = options_of(__doc__, count=32, of="answers")
    parser.add_argument("--tokens", type=int, default=300, help="of each")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    run = Measurement(options, limits=LIMITS)
    with torch.inference_mode():
        run.part("making", lambda: making(model(options.model, "float32"), options.model, options.tokens))
        run.part("detection", lambda: detection(options.model, options.count, options.tokens, options.batch))
        run.part("cost", lambda: cost(options.model, options.repeats, 40))


if __name__ == "__main__":
    main()
