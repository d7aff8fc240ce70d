"""What the form of an answer costs, and what batch invariance costs: tokens a second of one batch, each way.

    python bench/engine/structured.py --shape llama-8b                                    # a GPU, random weights
    python bench/engine/structured.py --model ./Llama-3.1-8B-Instruct                     # a GPU, those weights
    python bench/engine/structured.py --shape tiny --device cpu --batch 8 --tokens 32     # anywhere, briefly

The ways take turns, plain first: held to a JSON schema; with penalties; with log probabilities; then, on a GPU, plain
with `batch_invariant`, in turns with plain again. Each line is printed when it is known, the medians at the end of each
part. No round begins after --budget seconds. "masks" is what the host spends on one step's masks of allowed tokens: the
CPU time of all its threads, and how long the step's draw had to wait for them; the model runs meanwhile.

Random weights need a tokenizer for the grammar. By default the demo model's, whose tokens are the first of a larger
vocabulary; under the grammar the others are forbidden. With --out, JSON.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from backend.chat.structured import grammar_of  # noqa: E402
from backend.engine.core.sampling import SamplingParams  # noqa: E402
from backend.engine.engine import Engine  # noqa: E402
from backend.engine_config import EngineConfig  # noqa: E402
from backend.models.checkpoints.checkpoint import Checkpoint, resolve  # noqa: E402
from backend.wire import CompletionRequest  # noqa: E402
from bench.engine.workloads import SHAPES  # noqa: E402

SCHEMA = {  # as long as it likes: an answer under it does not end before its tokens are used up
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "amount": {"type": "integer"}, "paid": {"type": "boolean"}},
        "required": ["name", "amount", "paid"],
        "additionalProperties": False,
    },
    "minItems": 10_000,
}
ROUNDS = 3
CONTEXT = 1024
BLOCK = 16


@dataclass
class Masks:
    """Seconds of computing masks, in one run."""

    cpu: float = 0.0
    wall: float = 0.0
    steps: int = 0

    @property
    def told(self) -> str:
        if not self.steps:
            return ""
        cpu, wall = (1e3 * seconds / self.steps for seconds in (self.cpu, self.wall))
        return f"   masks: {cpu:.2f} ms of CPU time, {wall:.2f} ms of waiting a step"


@dataclass
class Bench:
    """One engine and its prompts."""

    name: str
    engine: Engine
    prompts: list[list[int]]
    tokens: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    masks: Masks = field(default_factory=Masks)

    def __post_init__(self) -> None:
        computed = self.engine._allowed

        def timed(*given: Any) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                return computed(*given)
            finally:
                self.masks.cpu += time.process_time() - cpu
                self.masks.wall += time.perf_counter() - wall
                self.masks.steps += 1

        self.engine._allowed = timed  # type: ignore[method-assign]

    def warm(self, ways: dict[str, SamplingParams]) -> None:
        """Kernels are compiled and graphs captured."""
        for name, params in ways.items():
            begin = time.perf_counter()
            self._run(msgspec.structs.replace(params, max_tokens=4))
            say(f"  {self.name}, {name}: warmed up in {time.perf_counter() - begin:.1f} s")

    def time(self, name: str, params: SamplingParams) -> None:
        self.masks = Masks()
        rate, made = self._run(params)
        self.rates.setdefault(name, []).append(rate)
        short = "" if made == self.tokens * len(self.prompts) else f"   WRONG: only {made} tokens came"
        say(f"  {self.name}, {name}: {rate:.0f} tokens/s{self.masks.told}{short}")

    def _run(self, params: SamplingParams) -> tuple[float, int]:
        """Tokens a second of the answers alone, from the first of the first to the last of the last, and how many."""
        for id, prompt in enumerate(self.prompts):
            self.engine.add(id, prompt, msgspec.structs.replace(params, seed=id))
        first = last = 0.0
        count = 0
        while self.engine.has_work:
            made = sum(item.token is not None for item in self.engine.step())
            if made:
                last = time.perf_counter()
                first = first or last
                count += made
        return count / (last - first), count

    def median(self, name: str) -> float:
        return statistics.median(self.rates[name])


def ways(tokens: int) -> dict[str, SamplingParams]:
    grammar, _ = grammar_of(CompletionRequest(model="x", prompt="x", guided_json=SCHEMA))
    plain = SamplingParams(max_tokens=tokens, temperature=0.8, ignore_eos=True)
    return {
        "plain": plain,
        "json schema": msgspec.structs.replace(plain, grammar=grammar),
        "penalties": msgspec.structs.replace(plain, presence_penalty=0.5, repetition_penalty=1.1),
        "logprobs 5": msgspec.structs.replace(plain, logprobs=5),
    }


def random_checkpoint(shape: str, tokenizer: str, folder: Path) -> Path:
    """A folder with the shape and the tokenizer (of a folder, a GGUF file or the demo model), for random weights."""
    text = Checkpoint(resolve(tokenizer)).text
    config = {**SHAPES[shape], "eos_token_id": sorted(text.eos_ids)}
    config["vocab_size"] = max(config["vocab_size"], text.vocab_size)
    (folder / "config.json").write_text(json.dumps(config))
    text.tokenizer.save(str(folder / "tokenizer.json"))
    say(f"{shape}: random weights; {text.vocab_size} of {config['vocab_size']} tokens have a text")
    return folder


def built(name: str, settings: dict[str, Any], options: argparse.Namespace, **changes: Any) -> Bench:
    begin = time.perf_counter()
    config = EngineConfig(**{**settings, **changes})
    checkpoint = Checkpoint(resolve(config.model))
    engine = Engine.from_checkpoint(checkpoint, config)
    encode = checkpoint.text.encode_completion
    prompts = [encode(f"Invoice number {i}: list the items as JSON.\n") for i in range(options.batch)]
    say(f"  {name}: ready in {time.perf_counter() - begin:.1f} s")
    return Bench(name, engine, prompts, options.tokens)


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--model", help="a checkpoint, or demo")
    given.add_argument("--shape", default="llama-8b", choices=list(SHAPES), help="random weights of that shape")
    parser.add_argument("--tokenizer", default="demo", help="for --shape: a folder, a GGUF file, or demo")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--budget", type=float, default=150, help="seconds after which no round begins")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = options.model or str(random_checkpoint(options.shape, options.tokenizer, Path(folder)))
        measure(source, options)


def measure(source: str, options: argparse.Namespace) -> None:
    ends = time.monotonic() + options.budget
    on_gpu = options.device.startswith("cuda")
    settings: dict[str, Any] = {
        "model": source, "load_format": "auto" if options.model else "dummy", "device": options.device,
        "dtype": "bfloat16" if on_gpu else "float32", "max_num_seqs": options.batch, "max_model_len": CONTEXT,
        "max_num_batched_tokens": max(512, options.batch * 16), "num_blocks": options.batch * CONTEXT // BLOCK,
        "block_size": BLOCK, "prefix_cache": False,
    }  # fmt: skip
    asked = ways(options.tokens)
    bench = built("engine", settings, options)
    bench.warm(asked)
    for _ in rounds(ends):
        for name, params in asked.items():
            bench.time(name, params)
    found = {name: bench.median(name) for name in asked}
    report(found, options)
    if not on_gpu:
        say("batch-invariant: not measured, it is a mode of a GPU")
        return
    invariant = built("invariant", settings, options, batch_invariant=True)
    plain = {"plain": asked["plain"]}
    invariant.warm(plain)
    bench.rates.clear()
    for _ in rounds(ends):
        bench.time("plain", asked["plain"])
        invariant.time("plain", asked["plain"])
    report(found | {"batch-invariant": invariant.median("plain") * found["plain"] / bench.median("plain")}, options)


def rounds(ends: float) -> Any:
    """At least one, at most ROUNDS, none begun after `ends`."""
    for number in range(ROUNDS):
        if number and time.monotonic() > ends:
            say(f"  out of time after {number} of {ROUNDS} rounds")
            return
        yield number


def report(found: dict[str, float], options: argparse.Namespace) -> None:
    for name, rate in found.items():
        say(f"{name:16} {rate:10.0f} tokens/s   {100 * (1 - rate / found['plain']):5.1f} % slower than plain")
    if options.out:
        text = json.dumps({"batch": options.batch, "tokens": options.tokens, "tokens_per_s": found}, indent=2)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
