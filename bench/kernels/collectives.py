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

ROWS, WIDTHS = (1, 4, 16, 64, 128, 256, 1024, 8192), (4096, 8192)
IN_A_GRAPH, REPLAYS = 50, 5


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
        "date": time.strftime("%Y-%m-%d", time.gmtime()), "all_reduce_us": [], "sum_and_norm_us": [], "logits_us": [],
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
    for width in (2048, *WIDTHS):
        sums_and_norms(group, library, width, report, out)
    for rows in (1, 32, 128, 256):
        x = torch.randn(rows, 128256 // cards + 8, device=group.device, dtype=torch.bfloat16)
        row = {"rows": rows, "gather": round(per_call(lambda x=x: group.logits(x, 128256)), 2)}
        report["logits_us"].append(row)
        tell(rank, row, report, out)


def sums_and_norms(group: Any, library: Any, width: int, report: dict[str, Any], out: Path) -> None:
    """What stands between two products of a layer: NCCL and a norm, peer memory and a norm, both in one kernel."""
    import torch

    from backend.kernels import fused

    group.reserve(width, torch.bfloat16)
    weight = torch.rand(width, device=group.device, dtype=torch.bfloat16) + 0.5
    for rows in (1, 2, 8, 32, 64, 128, 256):
        own = torch.randn(rows, width, device=group.device, dtype=torch.bfloat16)
        residual = library.broadcast(torch.randn(rows, width, device=group.device, dtype=torch.bfloat16))
        expected, total = fused.add_rms_norm(library.all_gather(own).float().sum(0)[None], residual, weight, 1e-5)

        def by_nccl(own: Any = own, residual: Any = residual) -> Any:
            return fused.add_rms_norm(library.all_reduce(own), residual, weight, 1e-5)[0]

        def by_small(own: Any = own, residual: Any = residual) -> Any:
            return fused.add_rms_norm(group.all_reduce(own), residual, weight, 1e-5)[0]

        def in_one(own: Any = own, residual: Any = residual) -> Any:
            return group.add_rms_norm(fused, own, residual, weight, 1e-5)[0]

        row: dict[str, Any] = {"rows": rows, "width": width, "in_one": group.takes_parts(rows, width)}
        for turn in range(5):
            found, kept = group.add_rms_norm(fused, own, residual, weight, 1e-5)
            for mine, right in ((found, expected), (kept, total)):
                error = float((mine.float() - right.float()).abs().max())
                assert error < 0.1, (rows, width, turn, error)
        parts = torch.randn(3, rows, width, device=group.device)
        both = library.all_gather(parts).sum((0, 1))
        kept = group.add_rms_norm(fused, parts, residual, weight, 1e-5)[1]
        assert float((kept.float() - (residual.float() + both)).abs().max()) < 0.2, (rows, width, "parts")
        row |= {"one kernel": round(per_call(in_one), 2), "peer memory, norm": round(per_call(by_small), 2)}
        row["nccl, norm"] = round(per_call(by_nccl), 2)  # last: it sums in place again and again
        report["sum_and_norm_us"].append(row)
        tell(group.shard.rank, row, report, out)


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
