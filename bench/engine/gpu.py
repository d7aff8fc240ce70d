"""The engine on one GPU, on the workloads that its peers were measured on.

    python bench/engine/gpu.py --out engine-h100.json [--runs llama-8b:bf16,qwen3-0.6b:bf16] [--only TEXT] [--budget S]
    python bench/engine/gpu.py --out adapters-h200.json --runs llama-8b:bf16:adapters,llama-8b:bf16 --only "batch 64"
    python bench/engine/gpu.py --out engine-h200-tp2.json --tensor-parallel 2 --runs llama-70b:bf16,llama-8b:bf16

    python bench/engine/gpu.py --out host-tier-h200.json --runs llama-8b:bf16:host --only "host tier"

A run that ends with :host measures the host tier alone (`bench.engine.host_tier`). One that ends with :adapters has 8
LoRA adapters of rank 16 loaded, which the requests of a row use in turn or not at all; the same row of the run without
is what they cost.

Shapes of real models with random weights; prompts are random token ids, fresh for each repetition; greedy unless a row
says otherwise; every request runs to its full length. The clock is the host's, from the first prompt handed over as a
Python list until the last token is back as a Python number; the prefix cache is emptied before. An untimed run (none
where a row takes long), then the median. Each model runs in a process of its own, so that its start counts too.

The engine runs in the measuring process. The peers' figures are from another run on another machine with an H100, by
the same rules, with their engine behind a process border: compare with that in mind.
"""

import argparse
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from bench.engine import adapters as lora  # noqa: E402
from bench.engine import host_tier  # noqa: E402
from bench.engine.workloads import (  # noqa: E402
    COLD,
    DIVIDED,
    DTYPES,
    PEERS,
    ROWS,
    SHAPES,
    START,
    STARTS,
    STORED,
    Row,
    Workload,
    uniform,
)

LOOK_S = 1.0
NOTE = (
    "Peers: recorded in another run on another machine, on one H100 80GB, by the same rules, behind a process border "
    "(vLLM 0.26.0, SGLang 0.5.17, torch 2.11). Ours: in the measuring process. fp8 rows here have an FP8 KV cache as "
    "well, kv8 rows bf16 weights and an FP8 KV cache; the peers' cache is in bf16."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", default="llama-8b:bf16,qwen3-0.6b:bf16", help="comma-separated shape:dtype")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds for each run; no row starts after that")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", default="", help="runs, as above, of which to show where the GPU's time goes")
    parser.add_argument("--max-num-seqs", type=int, default=256, help="fewer: fewer graphs are captured")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="cards that each model is divided among")
    parser.add_argument("--no-peer-memory", action="store_true", help="sum through NCCL whatever the size")
    parser.add_argument("--child", help="(internal) measure one run and write it to --out")
    options = parser.parse_args()
    if options.child:
        measure(options.child, options)
        return
    report = Report(options)
    for run in options.runs.split(","):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run.json"
            for result in watched(run, out, options):
                report.take(run, result)
            if options.device == "cuda" and options.tensor_parallel == 1 and not options.only:
                report.start_again(run)
    if not report.workloads:
        sys.exit("nothing was measured")
    for w in report.workloads:
        print(f"{w['name']:60s} {w['value']:10.2f} {w['unit']:13s} target {w['target']} {w['peer']} {w['ratio']}x")


def watched(run: str, out: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What a child that measures one run has written, each time that it has written more."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", run, "--out", str(out)]
    until = time.monotonic() + options.budget + 90
    with subprocess.Popen(command) as child:
        seen, ended = "", False
        while not ended:
            ended = child.poll() is not None
            if time.monotonic() > until:
                print(f"{run}: stopped, out of time", flush=True)
                child.kill()
            text = out.read_text() if out.exists() else ""
            if text not in ("", seen):
                seen = text
                yield json.loads(text)
            if not ended:
                time.sleep(LOOK_S)


class Report:
    """What was measured, written to --out whenever there is more: a call that is cut keeps its rows."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._runs: dict[str, dict[str, Any]] = {}
        self._written: dict[str, Any] = {"note": NOTE}

    @property
    def workloads(self) -> list[dict[str, Any]]:
        return [
            workload
            for run, result in self._runs.items()
            for workload in [*(entry(run, row) for row in result["rows"]), *host_and_waste(run, result["rows"])]
        ]

    def take(self, run: str, result: dict[str, Any]) -> None:
        cards = self._options.tensor_parallel
        self._written |= {"machine": result.pop("machine"), "date": time.strftime("%Y-%m-%d", time.gmtime())}
        self._runs[run if cards == 1 else f"{run} tp{cards}"] = result
        self._write()

    def start_again(self, run: str) -> None:
        """Measure the start of the 8B once more: the first may have compiled kernels."""
        if run == "llama-8b:bf16" and run in self._runs:
            self._runs[run]["rows"][0] |= {"name": START, "value": warm_start(run)}
            self._write()

    def _write(self) -> None:
        written = self._written | {"workloads": self.workloads, "runs": self._runs}
        whole = self._options.out.with_suffix(".part")
        whole.write_text(json.dumps(written, indent=1) + "\n")
        whole.replace(self._options.out)


def warm_start(run: str) -> float:
    """Seconds from a process's start to the end of a first request, with the kernel cache as the last run left it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "start.json"
        command = [sys.executable, __file__, "--child", run, "--out", str(out), "--only", "nothing but the start"]
        subprocess.run(command, timeout=120, check=True)
        return float(json.loads(out.read_text())["rows"][0]["value"])


def host_and_waste(run: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the row of batch 256 says of the host and of the cache."""
    row = next((r for r in rows if r["name"] == "256 requests 512/256"), None)
    if row is None:
        return []
    none = {"peer": None, "peer_value": None, "ratio": None}
    return [
        {"name": f"{run} host's share of a step, batch 256", "value": row["host_share"], "unit": "", "target": 0.6}
        | none,
        {"name": f"{run} KV slots allocated and unused", "value": row["kv_waste"], "unit": "", "target": 0.04} | none,
    ]


def entry(run: str, row: dict[str, Any]) -> dict[str, Any]:
    """The better of the two peers, for ratio above 1 where we are better."""
    peers = STARTS.get(run) if row["name"] in (START, COLD) else PEERS.get(run, {}).get(row["name"])
    lower = row["unit"] in ("ms", "s")
    found: dict[str, Any] = {"name": f"{run} {row['name']}", "value": row["value"], "unit": row["unit"]}
    if peers is None:
        return found | {"target": None, "peer": None, "peer_value": None, "ratio": None}
    best = (min if lower else max)(peers.vllm, peers.sglang)
    peer = "vLLM 0.26.0" if best == peers.vllm else "SGLang 0.5.17"
    ratio = best / row["value"] if lower else row["value"] / best
    target = None if row["name"] == COLD else peers.target
    return found | {"target": target, "peer": peer, "peer_value": best, "ratio": round(ratio, 3)}


@dataclass
class Bench:
    """An engine and what was seen of it while it ran."""

    engine: Any
    adapters: tuple[str, ...] = ("",)  # that requests take in turn
    waited: float = 0.0
    steps: int = 0
    waste: list[float] = field(default_factory=list)

    def generate(self, work: Workload) -> float:
        """Seconds until every token of every request is here."""
        from backend.engine.core.sampling import SamplingParams

        prompts, lengths, temperature = work
        tokens: dict[int, list[int]] = {id: [] for id in range(len(prompts))}
        start = time.perf_counter()
        for id, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            self.engine.add(
                id,
                prompt,
                SamplingParams(max_tokens=length, temperature=temperature, seed=id, ignore_eos=True),
                adapter=self.adapters[id % len(self.adapters)],
            )
        while self.engine.has_work:
            for item in self.engine.step():
                tokens[item.id].append(item.token)
            self.steps += 1
            if self.steps % 16 == 0:
                self._look_at_waste()
        taken = time.perf_counter() - start
        if [len(tokens[id]) for id in range(len(prompts))] != lengths or any(None in t for t in tokens.values()):
            raise SystemExit("a request did not get the tokens it asked for")
        return taken

    def forget_prefixes(self) -> None:
        self.engine.blocks.forget_prefixes()

    def _look_at_waste(self) -> None:
        running, size = self.engine.scheduler.running, self.engine.config.block_size
        held = {block for s in running for block in s.block_table}
        shared = sum(len(s.block_table) for s in running) - len(held)
        if held:
            used = sum(s.num_computed for s in running) - shared * size
            self.waste.append(1 - used / (len(held) * size))


def measure(run: str, options: argparse.Namespace) -> None:
    started = time.perf_counter()
    import torch

    from backend.engine.engine import Engine
    from backend.engine.gpu.d2h import PendingTokens
    from backend.engine_config import EngineConfig
    from backend.models.checkpoints.checkpoint import Checkpoint
    from backend.process.parent import die_with_parent
    from backend.process.ranks import Ranks

    die_with_parent()
    shape, dtype, *more = run.split(":")
    adapted, tiered = more == ["adapters"], more == ["host"]
    result: dict[str, Any] = {"rows": []}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPES[shape] | STORED.get(dtype, {})))
        settings = {"max_model_len": 8192, **DTYPES[dtype], **(host_tier.SETTINGS if tiered else {})}
        config = EngineConfig(
            model=folder,
            device=options.device,
            dtype="bfloat16" if options.device == "cuda" else "float32",
            load_format="dummy",
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=8192,
            max_waiting=1 << 20,
            tensor_parallel_size=options.tensor_parallel,
            peer_memory=not options.no_peer_memory,
            **settings,
            **({**lora.SETTINGS, "adapters": folder} if adapted else {}),
        )
        ranks = Ranks(config, on_lost=print) if config.tensor_parallel_size > 1 else None
        team = ranks.join() if ranks else None
        engine = Engine.from_checkpoint(Checkpoint(Path(folder)), config, progress(run, started), team)
        if ranks:
            ranks.await_ready()
        names = lora.write(Path(folder), Checkpoint(Path(folder)).config) if adapted else []
        for name in names:
            engine.load_adapter(name, name)
    bench = Bench(engine)
    vocab = engine.vocab_size
    bench.generate(uniform(1, 8, 1)(random.Random(0), vocab))
    start = time.perf_counter() - started
    print(f"{run}: process start to first token {start:.1f} s, {len(engine.blocks.blocks)} blocks", flush=True)
    result["machine"] = machine()
    result |= {"blocks": len(engine.blocks.blocks), "block_size": config.block_size}
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        result["memory_gib"] = round((total - free) / 2**30, 2)
    result["rows"].append({"name": COLD, "value": round(start, 1), "unit": "s"})
    while engine.prepare():  # as a service does in its first quiet seconds
        pass

    arriving = PendingTokens.tokens

    def timed(self: Any) -> Any:
        begin = time.perf_counter()
        out = arriving(self)
        bench.waited += time.perf_counter() - begin
        return out

    PendingTokens.tokens = timed  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()
    seed = 1000
    if tiered:
        result["rows"] += host_tier.measured(engine, host_tier.LENGTH)
    for row in [] if tiered else rows_of(options.only, adapted=adapted):
        bench.adapters = tuple(names) if row.name == lora.ADAPTED else ("",)
        if dtype == "kv8" and row.name not in PEERS[run]:  # what a cache's size is worth
            continue
        if options.tensor_parallel > 1 and row.name not in DIVIDED:
            continue
        if options.only not in row.name or time.perf_counter() - started > options.budget:
            continue
        walls, busy = [], []
        for repetition in range(-row.untimed, row.repetitions):
            seed += 1
            work = row.make(random.Random(seed), vocab)
            bench.forget_prefixes()
            bench.waited, bench.waste = 0.0, []
            wall = bench.generate(work)
            if repetition >= 0:
                walls.append(wall)
                busy.append(1 - bench.waited / wall)
        wall = statistics.median(walls)
        prompts, lengths, _ = work
        amount = {"ms": 0, "prompt tok/s": sum(map(len, prompts)), "output tok/s": sum(lengths)}[row.unit]
        value = round(wall * 1e3, 2) if row.unit == "ms" else round(amount / wall, 1)
        found = {
            "name": row.name, "value": value, "unit": row.unit, "walls_s": [round(w, 4) for w in walls],
            "host_share": round(statistics.median(busy), 3),
            "kv_waste": round(statistics.mean(bench.waste), 4) if bench.waste else None,
        }  # fmt: skip
        result["rows"].append(found)
        print(f"{run} {found}", flush=True)
        write_whole(options.out, result)
    write_whole(options.out, result)
    if run in options.profile.split(","):
        profile(bench, vocab, run)
    if ranks:
        ranks.close()
        sys.stdout.flush()
        os._exit(0)  # NCCL does not leave a group while there are graphs with its operations


def rows_of(only: str, *, adapted: bool) -> list[Row]:
    """Those of a run. What adapters are measured on is no row of other runs, unless it is asked for by its name."""
    work = uniform(64, 128, 256)
    if adapted:
        return [Row(lora.ADAPTED, work), Row(lora.IDLE, work)]
    return [*ROWS, Row(lora.ROW, work)] if only and only in lora.ROW else list(ROWS)


def write_whole(out: Path, result: dict[str, Any]) -> None:
    """So that who looks meanwhile does not find a half of it."""
    part = out.with_suffix(".part")
    part.write_text(json.dumps(result))
    part.replace(out)


def progress(run: str, started: float) -> Callable[[str, int, int], None]:
    """Prints how far a start is, at the end of each stage."""

    def reported(stage: str, done: int, total: int) -> None:
        if done == total:
            print(f"{run}: {stage} done after {time.perf_counter() - started:.1f} s", flush=True)

    return reported


def profile(bench: Bench, vocab: int, run: str) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    for count, prompt, answer in ((1, 128, 1), (1, 1024, 1), (2, 4096, 1), (8, 128, 24), (32, 128, 24), (256, 512, 4)):
        work = uniform(count, prompt, answer)
        bench.generate(work(random.Random(count + 1), vocab))
        with profiled(activities=[ProfilerActivity.CUDA]) as seen:
            bench.generate(work(random.Random(count), vocab))
        total = sum(event.device_time_total for event in seen.key_averages()) / 1e3
        print(f"== {run}, {count} x {prompt}/{answer}: {total:.2f} ms of kernels")
        for event in sorted(seen.key_averages(), key=lambda e: -e.device_time_total)[:16]:
            total, each = event.device_time_total / 1e3, event.device_time
            print(f"{total:9.2f} ms {event.count:6d} x {each:8.1f} us {event.key[:90]}")


def machine() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    if torch.cuda.is_available():
        import triton

        found |= {"card": torch.cuda.get_device_name(0), "cuda": torch.version.cuda, "triton": triton.__version__}
    return found


if __name__ == "__main__":
    main()
