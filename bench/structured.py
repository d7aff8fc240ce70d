"""What the form of an answer costs, and what batch invariance costs: tokens a second of one batch, each way.

    python bench/structured.py --model ./Llama-3.1-8B-Instruct --batch 64          # a GPU
    python bench/structured.py --model demo --device cpu --batch 8 --tokens 32     # anywhere, briefly

Each run warms up once, then times the same prompts: plain; held to a JSON schema; with penalties; with log
probabilities; and, on a GPU, plain with `batch_invariant`. Prints one line a run and, with --out, JSON.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent))

from backend.engine.config import EngineConfig
from backend.engine.engine import Engine
from backend.engine.sampling import SamplingParams
from backend.models.checkpoint import Checkpoint, resolve
from backend.structured import grammar_of
from backend.wire import CompletionRequest

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


def tokens_per_second(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> float:
    """Of the answers alone, from the first token of the first to the last of the last."""
    for id, prompt in enumerate(prompts):
        engine.add(id, prompt, msgspec.structs.replace(params, seed=id))
    first = last = 0.0
    count = 0
    while engine.has_work:
        made = sum(item.token is not None for item in engine.step())
        if made:
            last = time.perf_counter()
            first = first or last
            count += made
    return count / (last - first)


def ways(tokens: int) -> dict[str, SamplingParams]:
    grammar, _ = grammar_of(CompletionRequest(model="x", prompt="x", guided_json=SCHEMA))
    plain = SamplingParams(max_tokens=tokens, temperature=0.8, ignore_eos=True)
    return {
        "plain": plain,
        "json schema": msgspec.structs.replace(plain, grammar=grammar),
        "penalties": msgspec.structs.replace(plain, presence_penalty=0.5, repetition_penalty=1.1),
        "logprobs 5": msgspec.structs.replace(plain, logprobs=5),
    }


def measured(config: EngineConfig, batch: int, tokens: int, names: list[str]) -> dict[str, float]:
    checkpoint = Checkpoint(resolve(config.model))
    engine = Engine.from_checkpoint(checkpoint, config)
    encode = checkpoint.text.encode_completion
    prompts = [encode(f"Invoice number {i}: list the items as JSON.\n") for i in range(batch)]
    found = {}
    for name in names:
        params = ways(tokens)[name]
        tokens_per_second(engine, prompts, msgspec.structs.replace(params, max_tokens=8))  # captures and compiles
        found[name] = max(tokens_per_second(engine, prompts, params) for _ in range(2))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    on_gpu = given.device.startswith("cuda")
    settings: dict[str, Any] = {
        "model": given.model, "device": given.device, "dtype": "bfloat16" if on_gpu else "float32",
        "max_num_seqs": given.batch, "max_num_batched_tokens": max(512, given.batch * 16), "max_model_len": 1024,
    }  # fmt: skip
    found = measured(EngineConfig(**settings), given.batch, given.tokens, list(ways(1)))
    if on_gpu:
        invariant = measured(EngineConfig(**settings, batch_invariant=True), given.batch, given.tokens, ["plain"])
        found["batch-invariant"] = invariant["plain"]
    for name, rate in found.items():
        print(f"{name:16} {rate:10.0f} tokens/s   {100 * (1 - rate / found['plain']):5.1f} % slower than plain")
    if given.out:
        given.out.write_text(json.dumps({"batch": given.batch, "tokens_per_s": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
