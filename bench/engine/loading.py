"""How fast weights come in, and where the time of a start goes.

    python bench/engine/loading.py out.json [--shape llama-8b] [--device cuda] [--folder DIR] [--starts 2] \
        [--only-weights]

Writes a checkpoint of random bfloat16 weights in four shards, as Hugging Face lays them out, then brings an engine up
from it in fresh processes, from a process's start to its first token. The files were just written, so they come from
the page cache: what is measured is the path from there to the card. The first start may compile kernels; the last has a
full kernel cache.
"""

import argparse
import functools
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from bench.engine.workloads import SHAPES  # noqa: E402

SHARDS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, help="where the checkpoint goes, and stays")
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--only-weights", action="store_true", help="without bringing the engine up")
    parser.add_argument("--child", type=float, help="(internal) the time at which this process was started")
    options = parser.parse_args()
    if options.child is not None:
        start(options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = options.folder or Path(scratch)
        begin = time.perf_counter()
        size = write(SHAPES[options.shape], options.folder, options.device)
        print(f"{size / 1e9:.2f} GB written in {time.perf_counter() - begin:.1f} s", flush=True)
        starts = []
        for _ in range(options.starts):
            out = Path(scratch) / "start.json"
            command = [
                sys.executable, __file__, str(out), "--child", str(time.time()), "--folder", str(options.folder),
                "--device", options.device, *(["--only-weights"] if options.only_weights else []),
            ]  # fmt: skip
            subprocess.run(command, check=True)
            starts.append(json.loads(out.read_text()))
            seconds = sum(p["seconds"] for p in starts[-1] if p["part"] == "weights")
            starts[-1].append({"part": "weights, GB/s", "seconds": round(size / 1e9 / seconds, 2)})
            for part in starts[-1]:
                print(f"{part['seconds']:8.2f}  {part['part']}", flush=True)
    options.out.write_text(json.dumps({"shape": options.shape, "bytes": size, "starts": starts}, indent=1) + "\n")


def write(shape: dict[str, Any], folder: Path, device: str) -> int:
    """A checkpoint of that shape; returns the bytes of its weights."""
    import torch

    from backend.models.config import from_hugging_face
    from backend.models.decoders.decoder import Decoder

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    places = Decoder(from_hugging_face(shape), torch.bfloat16, "meta").places()
    names = list(places)
    shards = [names[i::SHARDS] for i in range(SHARDS)]
    total = 0
    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{SHARDS:05}.safetensors"
        header: dict[str, Any] = {}
        at = 0
        for name in shard:
            size = places[name].numel() * 2
            header[name] = {"dtype": "BF16", "shape": list(places[name].shape), "data_offsets": [at, at + size]}
            at += size
            weight_map[name] = file
        packed = json.dumps(header).encode()
        with (folder / file).open("wb") as out:
            out.write(struct.pack("<Q", len(packed)) + packed)
            for name in shard:
                values = torch.empty(places[name].shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02)
                out.write(memoryview(values.cpu().view(torch.uint8).view(-1).numpy().data))
        total += at
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return total


class Parts:
    """Seconds of each part of a start, in the order of their ends; one inside another stands before it, indented."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._depth = 0

    def mark(self, name: str, since: float) -> None:
        self.found.append({"part": "  " * self._depth + name, "seconds": round(time.time() - since, 3)})

    def timed(self, owner: Any, attribute: str, name: str) -> None:
        """Let every call of that function be a part."""
        plain: Callable[..., Any] = getattr(owner, attribute)

        @functools.wraps(plain)
        def timing(*args: Any, **kwargs: Any) -> Any:
            begin = time.time()
            self._depth += 1
            try:
                return plain(*args, **kwargs)
            finally:
                self._depth -= 1
                self.mark(name, begin)

        setattr(owner, attribute, timing)


def start(options: argparse.Namespace) -> None:
    parts = Parts()
    import torch

    from backend.engine import engine as engine_module
    from backend.engine.core.sampling import SamplingParams
    from backend.engine.engine import Engine
    from backend.engine_config import EngineConfig
    from backend.models import loader
    from backend.models.checkpoints.checkpoint import Checkpoint

    parts.mark("python and imports", options.child)
    on_gpu = options.device.startswith("cuda")
    begin = time.time()
    if on_gpu:
        torch.zeros(1, device=options.device)
        parts.mark("CUDA", begin)
        from backend.engine.gpu import graph_runner
        from backend.engine.gpu import start as gpu

        parts.mark("CUDA, and imports of Triton", begin)
        parts.timed(gpu, "_activations", "the largest step, measured")
        parts.timed(gpu, "FusedDecoder", "fused weights")
        parts.timed(gpu, "_runner", "a runner and its cache")
        runner = graph_runner.GraphRunner
        parts.timed(runner, "_pieces_for", "a graph in pieces")
        parts.timed(runner, "_captured", "graphs of one kind")
        parts.timed(runner, "capture", "all graphs")
        parts.timed(runner, "profile_run", "the largest step")
    parts.timed(loader, "fill", "reading")
    parts.timed(loader, "Decoder", "room for weights")
    parts.timed(loader, "require_finite", "looking for NaN")
    parts.timed(engine_module, "_load", "weights")
    checkpoint = Checkpoint(options.folder)
    checkpoint.__dict__["text"] = SimpleNamespace(eos_ids=frozenset())  # it has no tokenizer, and needs none
    if options.only_weights:
        engine_module._load(checkpoint, EngineConfig(model="", device=options.device, dtype="bfloat16"), None)
    else:
        config = EngineConfig(
            model=str(options.folder),
            device=options.device,
            dtype="bfloat16",
            max_model_len=8192,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
        )
        engine = Engine.from_checkpoint(checkpoint, config)
        begin = time.time()
        engine.add(0, [1] * 8, SamplingParams(max_tokens=1, temperature=0, ignore_eos=True))
        while engine.has_work:
            engine.step()
        parts.mark("first token", begin)
        parts.mark("process start to here", options.child)
        for _ in range(2) if on_gpu else ():
            begin = time.time()
            released = engine.sleep()
            parts.mark(f"sleep, {released / 2**30:.1f} GiB given back", begin)
            parts.mark(f"(of the card {torch.cuda.mem_get_info()[0] / 2**30:.1f} GiB are free)", time.time())
            begin = time.time()
            engine.wake()
            parts.mark("wake", begin)
            begin = time.time()
            engine.add(0, [1] * 8, SamplingParams(max_tokens=1, temperature=0, ignore_eos=True))
            while engine.has_work:
                engine.step()
            parts.mark("first token after it", begin)
        options.out.write_text(json.dumps(parts.found))
        return
    parts.mark("process start to here", options.child)
    options.out.write_text(json.dumps(parts.found))


if __name__ == "__main__":
    main()
