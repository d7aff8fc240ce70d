"""What sums over cards cost, by size: NCCL and peer memory, in CUDA graphs as a decode step has them.

    python bench/kernels/collectives.py --cards 2 --out collectives-h200.json

Each size is checked against the exact sum first, on every rank. µs: the median of several replays of a graph of 50
operations that follow one another.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

ROWS, WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 8192), (4096, 8192)
IN_A_GRAPH, REPLAYS = 50, 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        arguments = options.cards, Path(folder) / "rendezvous", options.out
        others = [context.Process(target=measure, args=(rank, *arguments)) for rank in range(options.cards)]
        for process in others:
            process.start()
        for process in others:
            process.join()
        sys.exit(max(abs(process.exitcode or 0) for process in others))


def measure(rank: int, cards: int, rendezvous: Path, out: Path) -> None:
    import torch

    from backend.parallel.group import DistributedGroup
    from backend.parallel.joining import join
    from backend.parallel.shard import Shard

    group = join(Shard(rank, cards), rendezvous, "cuda")
    assert isinstance(group, DistributedGroup)
    library = DistributedGroup(group.shard, group.device)
    report: dict[str, Any] = {
        "cards": cards, "card": torch.cuda.get_device_name(), "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())), "peer_memory": group.small is not None,
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "all_reduce_us": [], "logits_us": [],
    }  # fmt: skip
    for width in WIDTHS:
        for rows in ROWS:
            x = torch.randn(rows, width, device=group.device, dtype=torch.bfloat16)
            exact = library.all_gather(x).double().sum(0)
            row: dict[str, Any] = {"rows": rows, "width": width, "bytes": x.numel() * 2}
            ways: dict[str, Callable[[], torch.Tensor]] = {"nccl": lambda x=x: library.all_reduce(x.clone())}
            if group.small is not None and group.small.takes(x):
                ways["peer_memory"] = lambda x=x: group.small.all_reduce(x)
            for name, way in ways.items():
                error = float((way().double() - exact).abs().max() / exact.abs().max())
                assert error < 0.01, (name, rows, width, error)
                row[name] = round(per_call(way), 2)
            row["copy"] = round(per_call(x.clone), 2)  # contained in nccl's
            report["all_reduce_us"].append(row)
            tell(rank, row, report, out)
    for rows in (1, 32, 128, 256):
        x = torch.randn(rows, 128256 // cards + 8, device=group.device, dtype=torch.bfloat16)
        row = {"rows": rows, "gather": round(per_call(lambda x=x: group.logits(x, 128256)), 2)}
        report["logits_us"].append(row)
        tell(rank, row, report, out)


def tell(rank: int, row: dict[str, Any], report: dict[str, Any], out: Path) -> None:
    if rank == 0:
        print(row, flush=True)
        out.write_text(json.dumps(report, indent=1) + "\n")


def per_call(operation: Callable[[], Any]) -> float:
    """µs."""
    import torch

    for _ in range(3):
        operation()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(IN_A_GRAPH):
            operation()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / IN_A_GRAPH)
    return statistics.median(times)


if __name__ == "__main__":
    main()
