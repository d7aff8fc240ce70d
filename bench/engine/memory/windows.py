"""How many sequences fit at once where layers with a window keep what it reaches: the engine's own scheduler and block
manager, with the memory of a card, run without a model.

    python bench/engine/memory/windows.py bench/results/window-tables.json

For each model whole contexts are run, the last tokens one by one as an engine decodes them. `most at once` is the
largest number of them that were all in their answers at the same time, none of them preempted; `predicted` is the
planner's number.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from backend.engine.core.block_manager import BlockManager
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.scheduler import Scheduler
from backend.engine.core.sequence import Sequence
from backend.engine_config import EngineConfig, groups_of
from backend.models.config import ModelConfig
from backend.models.layer_groups import LayerGroups
from backend.planner.memory import kv_block_bytes

ANSWER = 256  # tokens of each context that are decoded
CACHE = 16 << 30  # bytes
CONFIG = EngineConfig(
    model="", device="cuda", dtype="bfloat16", max_num_seqs=4096, max_num_batched_tokens=8192, prefix_cache=False
)
SHAPES: dict[str, dict[str, Any]] = {
    "gpt-oss-20b": {"layers": 24, "kv_heads": 8, "head_dim": 64, "windows": (128, None) * 12},
    "gemma-2-9b": {"layers": 42, "kv_heads": 8, "head_dim": 256, "windows": (4096, None) * 21},
    "gemma-3-27b": {"layers": 62, "kv_heads": 16, "head_dim": 128, "windows": (*((1024,) * 5, None) * 10, 1024, 1024)},
    "mistral-7b-v0.1": {"layers": 32, "kv_heads": 8, "head_dim": 128, "windows": (4096,) * 32},
}


def model_of(name: str, context: int) -> ModelConfig:
    """What of a released model decides over its cache."""
    shape = SHAPES[name]
    windows = tuple(width for part in shape["windows"] for width in (part if isinstance(part, tuple) else (part,)))
    return ModelConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=64,
        num_layers=shape["layers"],
        num_heads=shape["kv_heads"],
        num_kv_heads=shape["kv_heads"],
        head_dim=shape["head_dim"],
        max_position=131072,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        windows=windows,
    ).within(context)


def fitting(model: ModelConfig, context: int, *, tables: bool) -> dict[str, Any]:
    """What is predicted, and the largest number that run at once, looked for from there."""
    config = msgspec.structs.replace(CONFIG, window_tables=tables)
    groups, step = groups_of(config, model), (config.max_num_batched_tokens, config.block_size)
    blocks = CACHE // kv_block_bytes(model, config)
    predicted = groups.at_once(blocks, context, *step)
    most, run = predicted, _run(blocks, groups, config, context, predicted)
    while not run[0] and most:
        most -= 1
        run = _run(blocks, groups, config, context, most)
    while most >= predicted and (more := _run(blocks, groups, config, context, most + 1))[0]:
        most, run = most + 1, more
    return {
        "blocks": blocks, "tables": len(groups.windows), "predicted": predicted, "most at once": most,
        "scheduler us a step": round(run[1] * 1e6),
    }  # fmt: skip


def _run(blocks: int, groups: LayerGroups, config: EngineConfig, context: int, count: int) -> tuple[bool, float]:
    """Whether so many were in their answers at the same time, none preempted; and seconds of a step."""
    manager = BlockManager(blocks, config.block_size, prefix_cache=False, windows=groups.windows)
    scheduler = Scheduler(
        manager, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens
    )
    params = SamplingParams(max_tokens=ANSWER, ignore_eos=True)
    for id in range(count):
        scheduler.add(Sequence(id, [1] * (context - ANSWER), params, arrival=id))
    most, seconds, steps = 0, 0.0, 0
    while scheduler.running or scheduler.waiting:
        began = time.perf_counter()
        batch = scheduler.schedule()
        seconds += time.perf_counter() - began
        steps += 1
        for scheduled in batch:
            sequence, samples = scheduled.sequence, scheduled.samples
            sequence.num_computed += scheduled.num_tokens
            if samples:
                sequence.tokens.append(1)
                if len(sequence.tokens) >= sequence.max_length:
                    scheduler.finish(sequence)
        most = max(most, sum(s.num_computed >= s.num_prompt for s in scheduler.running))
        manager.dirty.clear()
    assert manager.num_used == 0
    return most == count and not scheduler.num_preemptions, seconds / max(1, steps)


def main() -> None:
    rows = []
    for name in SHAPES:
        for context in (8192, 32768):
            model = model_of(name, context)
            one, several = (fitting(model, context, tables=tables) for tables in (False, True))
            rows.append({"model": name, "context": context, "one table": one, "tables for windows": several})
            print(json.dumps(rows[-1]), flush=True)
    Path(sys.argv[1]).write_text(json.dumps({"cache bytes": CACHE, "answer": ANSWER, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
