"""Our engine beside transformers' `generate`, on the CPU: same float32 weights, same threads, one run.

    python bench/engine/cpu.py --threads 2 --json bench/results/engine-cpu.json

Three workloads, greedy, end tokens ignored: transformers one request at a time, ours one at a time, ours `--concurrent`
at once. Repeats are interleaved, so that a busy neighbour hurts all three; the median counts. Targets: one at a time at
least transformers' tokens/s, 16 at once at least three times as many.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["HF_HUB_OFFLINE"] = "1"

TOPICS = ["rain", "the sea", "mountains", "bread", "a lighthouse", "winter", "bees", "a market", "rivers", "trains"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="GGUF file, folder, or 'demo'")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tokens", type=int, default=48, help="new tokens a request")
    parser.add_argument("--concurrent", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the result here")
    options = parser.parse_args()
    result = measure(options)
    print_table(result)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(options.threads)
    from backend.engine.core.sampling import SamplingParams
    from backend.engine.engine import Engine
    from backend.engine_config import EngineConfig, size_cache
    from backend.models.checkpoints.checkpoint import Checkpoint, resolve
    from backend.models.loader import load_model
    from tests.backend.hugging_face import reference_llama

    checkpoint = Checkpoint(resolve(options.model))
    decoder = load_model(checkpoint, "float32")
    theirs = reference_llama(checkpoint, decoder)
    text = checkpoint.text
    questions = [f"Write a few words about {TOPICS[i % len(TOPICS)]}, number {i}." for i in range(options.concurrent)]
    prompts = [text.encode_completion(f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n") for q in questions]
    # No prefix cache: every repeat is to do the whole work, as transformers does.
    config = EngineConfig(
        model=options.model, max_num_seqs=options.concurrent, prefix_cache=False, max_num_batched_tokens=1024
    )
    engine = Engine(decoder, config, size_cache(config, decoder.config, 4))
    params = SamplingParams(max_tokens=options.tokens, temperature=0, ignore_eos=True)

    def ours(count: int) -> int:
        for id in range(count):
            engine.add(id, prompts[id], params)
        made = 0
        while engine.has_work:
            made += len(engine.step())
        return made

    def transformers() -> int:
        ids = torch.tensor([prompts[0]])
        with torch.no_grad():
            out = theirs.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=options.tokens,
                min_new_tokens=options.tokens,
                do_sample=False,
            )
        return int(out.shape[1]) - len(prompts[0])

    workloads: dict[str, Callable[[], int]] = {
        "transformers generate, 1 request": transformers,
        "ours, 1 request": lambda: ours(1),
        f"ours, {options.concurrent} requests": lambda: ours(options.concurrent),
    }
    rates: dict[str, list[float]] = {name: [] for name in workloads}
    for repeat in range(options.repeats + 1):
        for name, work in workloads.items():
            began = time.perf_counter()
            made = work()
            if repeat:  # the first warms up
                rates[name].append(made / (time.perf_counter() - began))
    names = list(workloads)
    median = {name: statistics.median(values) for name, values in rates.items()}
    peer = median[names[0]]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 1)},
        "versions": _versions(),
        "settings": {
            "model": resolve(options.model).name,
            "dtype": "float32",
            "threads": options.threads,
            "prompt_tokens": [len(p) for p in prompts],
            "new_tokens": options.tokens,
            "repeats": options.repeats,
        },
        "workloads": [
            {
                "name": name,
                "value": round(median[name], 2),
                "unit": "tokens/s",
                "target": round(factor * peer, 2),
                "peer": names[0],
                "peer_value": round(peer, 2),
                "ratio": round(median[name] / peer, 2),
                "all": [round(v, 2) for v in rates[name]],
            }
            for name, factor in zip(names, (1, 1, 3), strict=True)
        ],
    }


def print_table(result: dict[str, Any]) -> None:
    machine, versions = result["machine"], result["versions"]
    print(f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_1min']}; ", end="")
    print(", ".join(f"{k} {v}" for k, v in versions.items()))
    print(f"{result['settings']['model']}, float32, {result['settings']['threads']} threads")
    for row in result["workloads"]:
        verdict = "" if row["name"] == row["peer"] else ("ok" if row["value"] >= row["target"] else "BELOW TARGET")
        print(f"  {row['name']:<36} {row['value']:8.1f} tok/s  {row['ratio']:5.2f}x  {verdict}")


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].split(":", 1)[1].strip() if names else platform.processor()


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"python": platform.python_version(), **{name: version(name) for name in ("torch", "transformers")}}


if __name__ == "__main__":
    main()
