"""What marks and commitments cost an engine: `python3 bench/marks/speed.py --device cuda --shape llama-8b --out FILE`.

One engine with random weights in the shape of a real model. At batch 1 and 64 the same requests are answered plain,
marked, and with commitments to their activations, in turn and each round in another order, so that a drift of the card
is shared. Sampled at temperature 1; prompts of 128 random tokens, fresh each time, answers of 256; the clock is the
host's, from the first prompt handed over until the last token is back as a Python number. Reported are tokens a second
(median) and the median over rounds of the time of one kind over that of plain answers.

Random weights are the hard case for a mark: nearly every token of the vocabulary may be drawn and has its random
number computed, and no context repeats. What the HTTP process computes of a commitment beside the engine is timed on
its own (`commitment_us_a_token`), as is its test of a mark (`detection_us_a_token`).
"""

import argparse
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from backend.activations.answer_commitment import Committer  # noqa: E402
from backend.engine.core.sampling import SamplingParams  # noqa: E402
from backend.engine.engine import Engine  # noqa: E402
from backend.engine_config import EngineConfig  # noqa: E402
from backend.marks.detector import is_detectable  # noqa: E402
from backend.marks.scheme import shard_key  # noqa: E402
from backend.models.checkpoints.checkpoint import Checkpoint  # noqa: E402
from bench.engine.gpu import machine  # noqa: E402
from bench.engine.workloads import SHAPES, ids  # noqa: E402

PROMPT, ANSWER = 128, 256
KEY = bytes(range(32))
KINDS = ("plain", "marked", "committed")


@dataclass
class Answered:
    """seconds: of the whole batch. tokens, rows: of each answer, rows only where it commits."""

    seconds: float
    tokens: list[list[int]]
    rows: list[list[bytes]]


@dataclass
class Bench:
    """rounds: at most. until: no round starts after this time (`time.monotonic`)."""

    engine: Engine
    answer: int
    rounds: int
    until: float
    _rng: random.Random = field(default_factory=lambda: random.Random(0))

    def answers(self, batch: int, kind: str) -> Answered:
        prompts = [ids(self._rng, PROMPT, self.engine.vocab_size) for _ in range(batch)]
        tokens: list[list[int]] = [[] for _ in range(batch)]
        rows: list[list[bytes]] = [[] for _ in range(batch)]
        began = time.perf_counter()
        for id, prompt in enumerate(prompts):
            self.engine.add(
                id,
                prompt,
                SamplingParams(
                    max_tokens=self.answer,
                    temperature=1.0,
                    seed=self._rng.randrange(1 << 62),
                    ignore_eos=True,
                    mark=shard_key(KEY, id) if kind == "marked" else None,
                    commits=kind == "committed",
                ),
            )
        while self.engine.has_work:
            for item in self.engine.step():
                assert item.token is not None
                tokens[item.id].append(item.token)
                if item.activations is not None:
                    rows[item.id].append(item.activations)
        seconds = time.perf_counter() - began
        self._check(kind, tokens, rows)
        return Answered(seconds, tokens, rows)

    def _check(self, kind: str, tokens: list[list[int]], rows: list[list[bytes]]) -> None:
        """What was not done costs nothing."""
        if any(len(one) != self.answer for one in tokens):
            raise SystemExit("an answer has not as many tokens as it was asked for; look for what ends it")
        wanted = self.answer if kind == "committed" else 0
        if any(len(one) != wanted for one in rows):
            raise SystemExit(f"a {kind} answer came with other rows of activations; look at the runner")
        marked = [is_detectable(shard_key(KEY, id), some) for id, some in enumerate(tokens)]
        if any(one != (kind == "marked") for one in marked):
            raise SystemExit(f"{sum(marked)} of {len(marked)} {kind} answers carry a mark; look at the sampler")

    def prepared(self, batch: int, kind: str) -> None:
        """Twice: the first time it may show which captures are lacking, which a service makes when it is quiet."""
        for _ in range(2):
            self.answers(batch, kind)
            while self.engine.prepare():
                pass

    def row(self, batch: int) -> dict[str, Any]:
        for kind in KINDS:
            self.prepared(batch, kind)
        taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
        while len(taken["plain"]) < self.rounds and (time.monotonic() < self.until or not taken["plain"]):
            at = len(taken["plain"]) % len(KINDS)
            for kind in KINDS[at:] + KINDS[:at]:
                self.engine.blocks.forget_prefixes()
                taken[kind].append(self.answers(batch, kind).seconds)
        row: dict[str, Any] = {"batch": batch, "prompt": PROMPT, "answer": self.answer, "rounds": len(taken["plain"])}
        for kind in KINDS:
            row[f"{kind}_tokens_per_s"] = round(batch * self.answer / statistics.median(taken[kind]), 1)
        for kind in KINDS[1:]:
            ratios = [one / plain for one, plain in zip(taken[kind], taken["plain"], strict=True)]
            row[f"{kind}_time_ratio"] = round(statistics.median(ratios), 4)
            row[f"{kind}_of_fastest"] = round(min(taken[kind]) / min(taken["plain"]), 4)
            row[f"{kind}_each"] = [round(one, 4) for one in ratios]
        return row

    def host(self) -> dict[str, float]:
        """Microseconds a token of what runs in the process that speaks HTTP, not in the engine's."""
        committed, marked = self.answers(1, "committed"), self.answers(1, "marked")

        def commit() -> None:
            committer = Committer([1, 2, 3], self.engine.hidden_size)
            for token, row in zip(committed.tokens[0], committed.rows[0], strict=True):
                committer.add(token, row)
            committer.finish().to_bytes()

        def detect() -> None:
            is_detectable(shard_key(KEY, 0), marked.tokens[0])

        return {"commitment_us_a_token": self._us(commit), "detection_us_a_token": self._us(detect)}

    def _us(self, work: Callable[[], None]) -> float:
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
        return round(min(taken) * 1e6 / self.answer, 2)


def started(shape: str, device: str) -> Engine:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPES[shape]))
        config = EngineConfig(
            model=folder,
            device=device,
            dtype="bfloat16" if device == "cuda" else "float32",
            load_format="dummy",
            max_num_seqs=64,
            max_num_batched_tokens=8192,
            max_waiting=1 << 20,
            max_model_len=8192,
            **({} if device == "cuda" else {"num_blocks": 2048}),
        )
        return Engine.from_checkpoint(Checkpoint(Path(folder)), config, lambda *_: None, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 64])
    parser.add_argument("--answer", type=int, default=ANSWER, help="tokens of an answer; from 100 on a mark is seen")
    parser.add_argument("--rounds", type=int, default=12, help="at most, of each batch")
    parser.add_argument("--seconds", type=float, default=50.0, help="in all; no round starts later")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    began = time.monotonic()
    engine = started(options.shape, options.device)
    while engine.prepare():
        pass
    gc.collect()
    gc.freeze()
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine()}
    found |= {"device": options.device, "shape": options.shape, "rows": []}
    print(f"started after {time.monotonic() - began:.1f} s", flush=True)
    for number, batch in enumerate(options.batches):
        left = began + options.seconds - time.monotonic()
        until = time.monotonic() + left / (len(options.batches) - number)
        bench = Bench(engine, options.answer, options.rounds, until)
        found["rows"].append(bench.row(batch))
        print(json.dumps(found["rows"][-1]), flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    found["host"] = Bench(engine, options.answer, 1, 0).host()
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{json.dumps(found['host'])}, {time.monotonic() - began:.1f} s in all")


if __name__ == "__main__":
    main()
