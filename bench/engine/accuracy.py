"""What FP8 costs in accuracy: logits against the model's own dtype, on real text and on random weights.

    python bench/engine/accuracy.py out.json [--device cuda] [--tokens 1024] [--random llama-8b]

Each form reads the same text, token by token known, and its distribution at every place is compared with that of plain
weights and cache: Kullback-Leibler divergence in nats (mean and 99th percentile) and how often the likeliest token is
the same. The text is this project's own documents; the model SmolLM2-135M. On the CPU the kernels' twins compute, with
the same roundings. Random weights of a large shape say how rounding grows with width, not how answers change: their
distributions are nearly flat.
"""

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402

from backend.engine.cache.attention import KVCache  # noqa: E402
from backend.engine.gpu.paged_layers import PagedLayers, StepShape  # noqa: E402
from backend.kernels.attention.workspace import DecodeWorkspace  # noqa: E402
from backend.kernels.interface import kernels_for  # noqa: E402
from backend.kernels.launching.launch import FP8  # noqa: E402
from backend.models.checkpoints.checkpoint import Checkpoint, resolve  # noqa: E402
from backend.models.config import from_hugging_face  # noqa: E402
from backend.models.decoders.decoder import Decoder  # noqa: E402
from backend.models.decoders.fused_decoder import FusedDecoder  # noqa: E402
from backend.models.decoders.paged_decoder import PagedCache, StepTokens  # noqa: E402
from backend.models.loader import dummy_model, load_model  # noqa: E402
from backend.quantization.fp8 import FP8 as FP8_WEIGHTS  # noqa: E402
from backend.quantization.none import NONE  # noqa: E402

FORMS = {"weights": (True, False), "cache": (False, True), "weights and cache": (True, True)}
CHUNK, BLOCK_SIZE = 256, 16


def logits_of(model: Decoder, ids: torch.Tensor, *, fp8: bool, fp8_cache: bool) -> torch.Tensor:
    """[tokens, vocab] float32 on the CPU; the text goes through the cache in chunks, so that it counts."""
    device, config = ids.device, model.config
    decoder = FusedDecoder(copy.deepcopy(model) if fp8 else model, kernels_for(device), FP8_WEIGHTS if fp8 else NONE)
    blocks = -(-len(ids) // BLOCK_SIZE)
    dtype = FP8 if fp8_cache else model.embedding.dtype
    pages = KVCache(config, blocks, BLOCK_SIZE, dtype, str(device))
    scale = torch.ones(config.num_layers, config.num_kv_heads, device=device) if fp8_cache else None
    cache = PagedCache(pages.keys, pages.values, scale, scale)
    workspace = DecodeWorkspace.allocate(device, 1, config.num_heads, config.num_kv_heads, config.head_dim)
    table = torch.arange(blocks, dtype=torch.int32, device=device).unsqueeze(0)
    found = []
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        positions = torch.arange(start, start + len(part), device=device)
        attention = PagedLayers(
            config,
            decoder.kernels,
            cache,
            workspace,
            StepShape(0, chunks=1, chunk_rows=len(part)),
            table,
            torch.tensor([start + len(part)], dtype=torch.int32, device=device),
            torch.tensor([0, len(part)], dtype=torch.int32, device=device),
        )
        found.append(decoder(StepTokens(part, positions, positions, None), cache, attention).float().cpu())
    return torch.cat(found)


def compared(plain: torch.Tensor, other: torch.Tensor) -> dict[str, float]:
    p, q = plain.log_softmax(-1), other.log_softmax(-1)
    divergence = (p.exp() * (p - q)).sum(-1)
    return {
        "kl_mean": round(float(divergence.mean()), 6),
        "kl_p99": round(float(divergence.quantile(0.99)), 6),
        "greedy_agreement": round(float((plain.argmax(-1) == other.argmax(-1)).float().mean()), 4),
        "perplexity_ratio": 0.0,
    }


def perplexity(logits: torch.Tensor, ids: torch.Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits[:-1], ids[1:].cpu()).exp())


def measure(name: str, model: Decoder, ids: torch.Tensor) -> list[dict[str, Any]]:
    rows = []
    with torch.inference_mode():
        plain = logits_of(model, ids, fp8=False, fp8_cache=False)
        for form, (fp8, fp8_cache) in FORMS.items():
            other = logits_of(model, ids, fp8=fp8, fp8_cache=fp8_cache)
            row = {"model": name, "fp8": form, "tokens": len(ids)} | compared(plain, other)
            row["perplexity_ratio"] = round(perplexity(other, ids) / perplexity(plain, ids), 4)
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--random", default="", help="a shape of workloads.py, too")
    options = parser.parse_args()
    dtype = "bfloat16"
    checkpoint = Checkpoint(resolve("demo"))
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    ids = torch.tensor(checkpoint.text.encode_completion(text)[: options.tokens], device=options.device)
    rows = measure("SmolLM2-135M", load_model(checkpoint, dtype, options.device), ids)
    if options.random:
        from engine_workloads import SHAPES

        model = dummy_model(from_hugging_face(SHAPES[options.random]), dtype, options.device)
        noise = torch.randint(10, model.config.vocab_size - 10, (min(512, options.tokens),), device=options.device)
        rows += measure(f"random {options.random}", model, noise)
    report = {"device": options.device, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    options.out.write_text(json.dumps(report | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
