"""Speculative decoding on one GPU: what guessing gains where text repeats itself, and costs where it does not.

    python bench/engine/speculation.py out.json [--shape llama-8b] [--device cuda]

Random weights, so answers are greedy loops or noise as they come. An oracle that knows the answer and is wrong in a
given share of places stands for texts of any predictability; the n-gram drafter is measured on the same prompts. The
answers with and without guesses are compared token by token in batch-invariant mode.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from bench.engine.gpu import machine  # noqa: E402
from bench.engine.workloads import SHAPES, ids  # noqa: E402


class Knowing:
    """Knows the answers, and is wrong in a share of places."""

    def __init__(self, answers: dict[int, list[int]], wrong: float) -> None:
        self.answers, self.wrong, self.rng = answers, wrong, random.Random(0)

    def propose(self, wanted: list[tuple[Any, int]]) -> list[list[int]]:
        return [
            [t + 1 if self.rng.random() < self.wrong else t for t in self.answers[s.id][s.num_output :][:most]]
            for s, most in wanted
        ]

    def forget(self, id: int) -> None:
        pass


class Forced:
    """Guesses noise; `agreed` is told to accept each guess with a chance. The tokens are worthless, the times true."""

    def __init__(self, chance: float) -> None:
        self.chance, self.rng = chance, random.Random(0)

    def propose(self, wanted: list[tuple[Any, int]]) -> list[list[int]]:
        return [[self.rng.randrange(10, 1000) for _ in range(most)] for _, most in wanted]

    def agreed(self, guesses: list[int], drawn: list[int | None]) -> int:
        rng = random.Random(str(guesses))  # the same for all who ask: on a GPU the runner does, and the engine
        count = next((i for i in range(len(guesses)) if rng.random() >= self.chance), len(guesses))
        return min(count, len(drawn) - 1)

    def forget(self, id: int) -> None:
        pass


def generate(engine: Any, prompts: list[list[int]], answer: int) -> tuple[float, dict[int, list[int]]]:
    from backend.engine.core.sampling import SamplingParams

    tokens: dict[int, list[int]] = {id: [] for id in range(len(prompts))}
    begin = time.perf_counter()
    for id, prompt in enumerate(prompts):
        engine.add(id, prompt, SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True))
    while engine.has_work:
        for item in engine.step():
            tokens[item.id].append(item.token)
    return time.perf_counter() - begin, tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--answer", type=int, default=192)
    options = parser.parse_args()
    from backend.engine import engine as engine_module
    from backend.engine.core.speculation import Speculation, agreed
    from backend.engine.drafting.ngram_drafter import NgramDrafter
    from backend.engine.engine import Engine
    from backend.engine.gpu import verifier
    from backend.engine_config import EngineConfig
    from backend.models.checkpoints.checkpoint import Checkpoint

    rows = []
    on_gpu = options.device == "cuda"
    for invariant in (False, True) if on_gpu else (False,):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(SHAPES[options.shape]))
            engine = Engine.from_checkpoint(
                Checkpoint(Path(folder)),
                EngineConfig(
                    model=folder,
                    device=options.device,
                    dtype="bfloat16" if on_gpu else "float32",
                    load_format="dummy",
                    max_model_len=2048,
                    max_num_seqs=32,
                    max_num_batched_tokens=2048,
                    speculation="ngram",
                    batch_invariant=invariant,
                    gpu_memory=0.45,
                ),
            )
        rng = random.Random(1)
        for batch in (1, 4, 16) if not invariant else (1, 4):
            prompts = [ids(rng, 64, engine.vocab_size) for _ in range(batch)]
            engine._speculation = None
            generate(engine, prompts, 8)
            plain, answers = generate(engine, prompts, options.answer)
            drafters: list[tuple[str, Any]] = [
                ("n-gram", NgramDrafter()), ("oracle", Knowing(answers, 0)),
                ("oracle wrong in 1 of 4", Knowing(answers, 0.25)),
                ("oracle always wrong", Knowing(answers, 1)), ("forced, 1 of 2", Forced(0.5)),
                ("forced, 3 of 4", Forced(0.75)), ("forced, all", Forced(1.0)),
            ]  # fmt: skip
            for name, drafter in drafters:
                engine._speculation = speculation = Speculation(drafter)
                judge = drafter.agreed if isinstance(drafter, Forced) else agreed
                engine_module.agreed = verifier.agreed = judge
                wall, drawn = generate(engine, prompts, options.answer)
                same = sum(a == b for i in answers for a, b in zip(answers[i], drawn[i], strict=True))
                rows.append({
                    "shape": options.shape, "batch_invariant": invariant, "batch": batch, "drafter": name,
                    "plain_tok_s": round(batch * options.answer / plain, 1),
                    "tok_s": round(batch * options.answer / wall, 1), "speedup": round(plain / wall, 3),
                    "proposed": speculation.proposed, "accepted": speculation.accepted,
                    "equal_tokens": f"{same}/{batch * options.answer}",
                })  # fmt: skip
                print(rows[-1], flush=True)
        engine = None
        if on_gpu:
            import gc

            import torch

            gc.collect()
            torch.cuda.empty_cache()
    options.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
