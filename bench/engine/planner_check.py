"""The planner's predictions beside what a card does.

    python bench/engine/planner_check.py measure bench/results/planner-h100.json    (on the card)
    python bench/engine/planner_check.py table bench/results/planner-*.json         (anywhere: rewrites docs/planner.md)

Random weights of real shapes; each configuration in a process of its own. Memory is what the driver counts as taken
once the workload has run; throughput is of a second run, with fresh prompts; the first token is the median of three.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from bench.engine.gpu import Bench, machine  # noqa: E402
from bench.engine.workloads import SHAPES, uniform  # noqa: E402

DOCUMENT = ROOT / "docs" / "planner.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->"
LLAMA_3B = {
    **SHAPES["llama-8b"], "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24,
    "intermediate_size": 8192, "tie_word_embeddings": True,
}  # fmt: skip
MODELS = {"llama-8b": SHAPES["llama-8b"], "llama-3b": LLAMA_3B, "qwen3-0.6b": SHAPES["qwen3-0.6b"]}
FP8 = {"quantization": "fp8", "kv_dtype": "fp8"}
CASES: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [  # model, settings, (requests, prompt, answer)
    ("qwen3-0.6b", {"num_blocks": 4000, "max_num_seqs": 64, "max_num_batched_tokens": 4096}, (32, 512, 128)),
    ("qwen3-0.6b", {"num_blocks": 20000, "max_num_seqs": 256}, (128, 256, 256)),
    ("llama-3b", {"num_blocks": 6000, "max_num_seqs": 64}, (32, 512, 128)),
    ("llama-3b", {"num_blocks": 12000, "max_num_seqs": 128, **FP8}, (64, 512, 128)),
    ("llama-8b", {"num_blocks": 4000, "max_num_seqs": 32, "max_num_batched_tokens": 2048}, (16, 1024, 64)),
    ("llama-8b", {"max_num_seqs": 128}, (64, 512, 128)),
    ("llama-8b", {"num_blocks": 10000, "max_num_seqs": 128, "quantization": "fp8"}, (64, 512, 128)),
    ("llama-8b", {"max_num_seqs": 256, **FP8}, (192, 512, 128)),
]


def config_of(settings: dict[str, Any], folder: str) -> Any:
    from backend.engine_config import EngineConfig

    return EngineConfig(
        **{
            "model": folder, "device": "cuda", "dtype": "bfloat16", "load_format": "dummy", "max_model_len": 8192,
            "max_num_batched_tokens": 8192, "max_waiting": 1 << 20, **settings,
        }
    )  # fmt: skip


def measure_one(index: int) -> dict[str, Any]:
    import torch

    from backend.engine.engine import Engine
    from backend.models.checkpoints.checkpoint import Checkpoint

    name, settings, (count, prompt, answer) = CASES[index]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODELS[name]))
        begin = time.perf_counter()
        engine = Engine.from_checkpoint(Checkpoint(Path(folder)), config_of(settings, folder))
        start = time.perf_counter() - begin
    bench, vocab, rng = Bench(engine), engine.vocab_size, random.Random(index)
    bench.generate(uniform(count, prompt, 8)(rng, vocab))
    bench.forget_prefixes()
    seconds = bench.generate(uniform(count, prompt, answer)(rng, vocab))
    firsts = []
    for _ in range(4):
        bench.forget_prefixes()
        firsts.append(bench.generate(uniform(1, prompt, 1)(rng, vocab)))
    free, total = torch.cuda.mem_get_info()
    return {
        "model": name, "settings": settings, "requests": count, "prompt": prompt, "answer": answer,
        "peak_bytes": total - free, "total_bytes": total, "blocks": len(engine.blocks.blocks),
        "start_s": round(start, 2),
        "tokens_per_s": round(count * answer / seconds, 1),
        "first_token_ms": round(statistics.median(firsts[1:]) * 1e3, 3),
        "allocated_bytes": torch.cuda.memory_allocated(), "reserved_bytes": torch.cuda.memory_reserved(),
        "machine": machine(),
    }  # fmt: skip


def measure(out: Path) -> None:
    rows = []
    for index in range(len(CASES)):
        done = subprocess.run(
            [sys.executable, __file__, "one", str(index)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"case {index} failed: {done.stderr[-1500:]}", flush=True)
            continue
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print({k: v for k, v in rows[-1].items() if k != "machine"}, flush=True)
        report = {"machine": rows[0]["machine"], "date": time.strftime("%Y-%m-%d", time.gmtime())}
        bare = [{k: v for k, v in row.items() if k != "machine"} for row in rows]
        out.write_text(json.dumps(report | {"rows": bare}, indent=1) + "\n")


def compared(row: dict[str, Any], card_name: str) -> dict[str, float]:
    """Predicted over measured: peak memory, throughput, first token, blocks. card_name: as the driver tells it."""
    from backend.models.config import from_hugging_face
    from backend.planner.cards import CARDS
    from backend.planner.memory import memory_of
    from backend.planner.roofline import Roofline

    model, config = from_hugging_face(MODELS[row["model"]]), config_of(row["settings"], "")
    card = next(card for card in CARDS.values() if card.name == card_name)
    memory, roof = memory_of(model, config, card), Roofline(model, config, card)
    seconds = roof.workload([(row["prompt"], row["answer"])] * row["requests"])
    return {
        "peak": memory.peak / row["peak_bytes"],
        "peak_bytes": memory.peak,
        "blocks": memory.blocks / row["blocks"],
        "tokens_per_s": row["requests"] * row["answer"] / seconds / row["tokens_per_s"],
        "first_token": roof.first_token(row["prompt"]) * 1e3 / row["first_token_ms"],
    }


def table(results: Path) -> str:
    report = json.loads(results.read_text())
    lines = [
        f"{report['machine']['card']}, torch {report['machine']['torch']}, {report['date']}; predicted / measured.\n",
        "| model | settings | load | peak GiB | ratio | output tok/s | ratio | first token ms | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        ratio = compared(row, report["machine"]["card"])
        settings = ", ".join(f"{k} {v}" for k, v in row["settings"].items())
        lines.append(
            f"| {row['model']} | {settings} | {row['requests']} × {row['prompt']}/{row['answer']} "
            f"| {row['peak_bytes'] / 2**30:.2f} | {ratio['peak']:.3f} | {row['tokens_per_s']:,.0f} "
            f"| {ratio['tokens_per_s']:.2f} | {row['first_token_ms']:.1f} | {ratio['first_token']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    match sys.argv[1:]:
        case ["measure", out]:
            measure(Path(out))
        case ["one", index]:
            print(json.dumps(measure_one(int(index))))
        case ["table", *results] if results:
            text = DOCUMENT.read_text(encoding="utf-8")
            before, rest = text.split(BEGIN)
            DOCUMENT.write_text(
                before + BEGIN + "\n".join(table(Path(r)) for r in results) + END + rest.split(END)[1], encoding="utf-8"
            )
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
