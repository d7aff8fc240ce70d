"""What a ready engine makes its callers wait for: kernels compiled and long steps, over every kind of request.

    python bench/engine/service_stalls.py --out bench/results/service-stalls-h200.json \
        [--runs llama-8b:bf16,qwen3-0.6b:bf16]

Random weights of real shapes, the engine as `backend serve` starts it, warmed up as there. Then requests of every kind,
in the order of WORK, each kind once: whatever is compiled or captured for the first time shows as a step that is longer
than the same step in the second round. Prints each kernel that was compiled behind the warm-up, and of each kind the
longest step of both rounds.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from bench.engine.gpu import machine  # noqa: E402
from bench.engine.workloads import SHAPES  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", default="llama-8b:bf16,llama-8b:fp8,qwen3-0.6b:bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        options.out.write_text(json.dumps(measure(options.child, options.device)))
        return
    report: dict[str, Any] = {"runs": {}}
    for run in options.runs.split(","):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run.json"
            subprocess.run(
                [sys.executable, __file__, "--child", run, "--out", str(out), "--device", options.device], check=True
            )
            report["runs"][run] = json.loads(out.read_text())
        report |= {"machine": machine(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def measure(run: str, device: str) -> dict[str, Any]:
    import torch
    from triton import knobs

    from backend.engine.engine import Engine
    from backend.engine.warm_up import warm_up
    from backend.engine_config import EngineConfig
    from backend.models.checkpoints.checkpoint import Checkpoint

    shape, dtype = run.split(":")
    compiled: list[str] = []

    def note(*_: Any, fn: Any = None, **more: Any) -> None:
        compiled.append(str(getattr(fn, "name", fn)))

    knobs.runtime.jit_post_compile_hook = note
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPES[shape]))
        cuda = device == "cuda"
        config = EngineConfig(
            model=folder,
            device=device,
            dtype="bfloat16" if cuda else "float32",
            load_format="dummy",
            quantization="fp8" if dtype == "fp8" else None,
            max_model_len=16384 if cuda else 2048,
            max_num_seqs=256 if cuda else 32,
            max_num_batched_tokens=8192 if cuda else 512,
            num_blocks=None if cuda else 512,
        )
        stages: dict[str, float] = {}

        def on_stage(stage: Any, done: int, total: int) -> None:
            stages[str(stage)] = round(time.perf_counter() - begin, 2)

        engine = Engine.from_checkpoint(Checkpoint(Path(folder)), config, on_stage=on_stage)
        built = time.perf_counter() - begin
        free = torch.cuda.mem_get_info()[0] if cuda else 0
        warm_up(engine)
        ready = time.perf_counter() - begin
        result: dict[str, Any] = {
            "stages_s": stages, "built_s": round(built, 2), "ready_s": round(ready, 2),
            "compiled_before_ready": len(compiled), "free_bytes": free, "kinds": {},
        }  # fmt: skip
        result |= idle(engine)
        before = time.perf_counter()
        result["residue_bytes"] = engine.scrub()
        result["scrub_s"] = round(time.perf_counter() - before, 3)
        compiled.clear()
        for number in (1, 2):
            for name, requests in work(engine.vocab_size, engine.max_model_len, config.max_num_seqs, number):
                longest = longest_step(engine, requests)
                kind = result["kinds"].setdefault(name, {})
                kind[f"round_{number}_ms"] = round(longest * 1e3, 1)
                if compiled:
                    kind["compiled"] = kind.get("compiled", []) + sorted(set(compiled))
                    compiled.clear()
        result["scrub_under_load"] = scrub_under_load(engine)
    print(run, {name: value for name, value in result.items() if name != "kinds"}, flush=True)
    for name, kind in result["kinds"].items():
        print(f"  {name:34s} {kind}", flush=True)
    return result


def longest_step(engine: Any, requests: list[tuple[list[int], Any]]) -> float:
    """Seconds; the steps of a run take the time between two results to arrive, as a stream sees it."""
    for id, (prompt, params) in enumerate(requests):
        engine.add(id, prompt, params)
    longest = 0.0
    last = time.perf_counter()
    while engine.has_work:
        engine.step()
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


def idle(engine: Any) -> dict[str, Any]:
    """What an engine does that has nothing to do: the whole, and the longest piece, which a request may wait for."""
    pieces = []
    begin = last = time.perf_counter()
    while engine.prepare():
        now = time.perf_counter()
        pieces.append(now - last)
        last = now
    longest = round(max(pieces, default=0.0) * 1e3, 1)
    return {"idle_captures": len(pieces), "idle_s": round(last - begin, 2), "longest_idle_ms": longest}


def scrub_under_load(engine: Any) -> dict[str, Any]:
    """A scrub between the steps of 64 running sequences."""
    from backend.engine.core.sampling import SamplingParams

    for id in range(64):
        engine.add(id, [id % 50] * 100, SamplingParams(max_tokens=60, temperature=0, ignore_eos=True))
    for _ in range(20):
        engine.step()
    begin = time.perf_counter()
    residue = engine.scrub()
    taken = time.perf_counter() - begin
    tokens = 0
    while engine.has_work:
        tokens += len(engine.step())
    return {"residue_bytes": residue, "seconds": round(taken, 3), "tokens_after": tokens}


def work(vocab: int, context: int, most: int, seed: int) -> Iterator[tuple[str, list[tuple[list[int], Any]]]]:
    from backend.engine.core.sampling import SamplingParams

    rng = random.Random(seed)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(min(length, context - 40))]

    def of(tokens: int, **more: Any) -> Any:
        return SamplingParams(max_tokens=tokens, ignore_eos=True, seed=seed, **{"temperature": 0.0, **more})

    for count in (1, 3, 8, 17, 33, 77, 150, most):
        yield f"decode {count}", [(prompt(40), of(12)) for _ in range(min(count, most))]
    for length in (5, 100, 300, 777, 1024, 2500, 5000, 9001):
        yield f"prompt {length}", [(prompt(length), of(2))]
    yield "mixed", [(prompt(rng.randrange(1, 900)), of(rng.randrange(2, 40))) for _ in range(min(64, most))]
    shared = prompt(2048 if context > 4096 else 700)
    for count in (16, 40, 128):
        yield f"shared prefix {count}", [(shared + prompt(30), of(10)) for _ in range(min(count, most))]
    for name, more in DRAWS.items():
        yield name, [(prompt(30), of(8, **more)) for _ in range(5)]
        yield f"{name}, 40", [(prompt(30), of(8, **more)) for _ in range(min(40, most))]
    yield "all kinds", [(prompt(50), of(8, **more)) for more in DRAWS.values()]


DRAWS: dict[str, dict[str, Any]] = {
    "sampled": {"temperature": 0.9},
    "top-k": {"temperature": 0.9, "top_k": 20},
    "top-p": {"temperature": 0.9, "top_p": 0.9},
    "min-p": {"temperature": 0.9, "min_p": 0.05},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.2},
    "bias": {"logit_bias": ((3, 5.0), (4, -5.0))},
    "allowed": {"allowed_token_ids": (5, 6, 7, 8)},
    "bad words": {"bad_words": ((9,), (10, 11))},
    "min tokens": {"min_tokens": 4, "stop_token_ids": (3,)},
    "log probabilities": {"logprobs": 5},
    "prompt's log probabilities": {"prompt_logprobs": 3},
}


if __name__ == "__main__":
    main()
