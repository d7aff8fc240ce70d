"""First token of a long prompt: computed, and with its blocks brought back from the host's memory.

    python bench/engine/host_tier.py --lengths 4096,8000 --json bench/results/host-tier-cpu.json
    python bench/engine/gpu.py --runs llama-8b:bf16:host --only "host tier" --out host-tier-h200.json

The KV cache holds one such prompt; so another prompt evicts the first to the host, and is evicted when
that comes back. Prompts are random token ids, greedy, and the token has to be the same both times. The clock is the
host's, from the prompt handed over until the token is back; the median of a few prompts.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["HF_HUB_OFFLINE"] = "1"

LENGTH = 32_768  # on a card
BLOCK = 16
SETTINGS: dict[str, Any] = {  # of an engine on a card
    "max_model_len": LENGTH + 64, "num_blocks": (LENGTH + 128) // BLOCK, "host_cache_bytes": 16 << 30,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="GGUF file, folder, or 'demo'")
    parser.add_argument("--lengths", default="4096,8000")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the result here")
    options = parser.parse_args()
    import torch

    from backend.engine.engine import Engine
    from backend.engine_config import EngineConfig
    from backend.models.checkpoints.checkpoint import Checkpoint, resolve

    lengths = [int(length) for length in options.lengths.split(",")]
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(), "model": options.model, "threads": options.threads,
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "torch": torch.__version__, "repetitions": options.repetitions, "load_average": os.getloadavg()[0], "rows": [],
    }  # fmt: skip
    for length in lengths:
        config = EngineConfig(
            model=options.model,
            num_blocks=-(-(length + 8) // BLOCK),
            host_cache_bytes=4 << 30,
            threads=options.threads,
        )
        engine = Engine.from_checkpoint(Checkpoint(resolve(options.model)), config)
        result["rows"] += measured(engine, length, options.repetitions)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(result, indent=1) + "\n")


def measured(engine: Any, length: int, repetitions: int = 3, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of one length: computed, brought back, and how many times faster that is."""
    draw = random.Random(seed + length)
    tier = engine.blocks.tier
    computed, brought, rates = [], [], []
    for _ in range(repetitions):
        prompt, other = ([draw.randrange(engine.vocab_size) for _ in range(length)] for _ in range(2))
        taken, _ = first_token(engine, prompt)
        computed.append(taken)
        # Random weights choose between near ties, so what is compared comes from the same blocks by the same kernels.
        _, token = first_token(engine, prompt)
        first_token(engine, other)
        hits = tier.hits
        taken, again = first_token(engine, prompt)
        spare = (len(engine.blocks.blocks) + 2) * tier.block_size - length  # what the card may have kept beside it
        if tier.hits - hits < length - spare:
            raise SystemExit(f"{tier.hits - hits} of {length} tokens came from the host; measure on a quiet machine")
        if again != token:
            raise SystemExit("the first token is another one when its blocks have been on the host")
        brought.append(taken)
        rates.append(tier.copying.value)
    named = str(length) if length % 1024 else f"{length // 1024}k"
    slow, fast = statistics.median(computed), statistics.median(brought)
    rows = [
        {"name": f"host tier {named}, computed", "value": round(slow * 1e3, 1), "unit": "ms",
         "walls_s": computed},
        {"name": f"host tier {named}, from the host", "value": round(fast * 1e3, 1), "unit": "ms",
         "walls_s": brought},
        {"name": f"host tier {named}, times faster", "value": round(slow / fast, 1), "unit": "x"},
        {"name": f"host tier {named}, copies", "value": round(rates[-1] / 1e9, 2), "unit": "GB/s"},
    ]  # fmt: skip
    for row in rows:
        print(f"{row['name']:40s} {row['value']:12,.2f} {row['unit']}", flush=True)
    return rows


def first_token(engine: Any, prompt: list[int]) -> tuple[float, int]:
    """Seconds until it is here, and which it is."""
    from backend.engine.core.sampling import SamplingParams

    begin = time.perf_counter()
    engine.add(1, prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True))
    tokens = []
    while engine.has_work:
        tokens += [item.token for item in engine.step()]
    return time.perf_counter() - begin, tokens[0]


if __name__ == "__main__":
    main()
