"""Cases of weight formats of eight bits (FP8 in blocks, INT8) and of mixtures of experts, also in MXFP4.

Each is a function with its arguments, so that another process can make it again (`formats_tune.py` compiles so), and
launches no kernel before it runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from backend.kernels import fused, reference
from backend.kernels.launching.launch import FP8
from backend.kernels.linear import fp8_block, fp8_block_reference, int8, int8_reference
from backend.kernels.moe import blocks, mxfp4, mxfp4_reference, products, routing
from backend.kernels.moe import reference as moe_reference
from backend.kernels.moe.reference import block_size
from backend.kernels.moe.rule import Routing
from bench.kernels.case import LLAMA_8B, Case, Shape, label, sets_of

PARTS_ROWS = 128  # for which the output and down projections leave parts
ROWS = (1, 8, 32, 64, 128, 512, 8192)
TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
Spec = partial[Case]


@dataclass(frozen=True)
class Mixture:
    """A layer's experts. group: in how many groups V3 routes them, of which half are taken; 1 for none."""

    name: str
    width: int
    inner: int
    experts: int
    per_token: int
    groups: int = 1

    @property
    def routing(self) -> Routing:
        return Routing(
            self.per_token, sigmoid=self.groups > 1, groups=self.groups, groups_taken=max(1, self.groups // 2)
        )


QWEN3_30B = Mixture("qwen3-30b-a3b", 2048, 768, 128, 8)
QWEN3_30B_HALF = Mixture("qwen3-30b-a3b of two ranks", 2048, 384, 128, 8)
MIXTRAL = Mixture("mixtral-8x7b", 4096, 14336, 8, 2)
DEEPSEEK_V3 = Mixture("deepseek-v3", 7168, 2048, 256, 8, groups=8)
GPT_OSS = Mixture("gpt-oss-20b", 2880, 2880, 32, 4)


def specs() -> Iterator[Spec]:
    for rows in ROWS:
        for outputs, width, kind in matrices(LLAMA_8B, rows):
            yield partial(block_case, rows, outputs, width, kind)
            yield partial(int8_case, rows, outputs, width, kind)
    for tokens in (1, 128, 8192):
        yield partial(quantise_groups_case, LLAMA_8B, tokens)
        yield partial(norm_groups_case, LLAMA_8B, tokens)
        yield partial(quantise_int8_case, LLAMA_8B, tokens)
    for tokens in TOKENS:
        yield partial(routing_case, QWEN3_30B, tokens)
        yield partial(routing_case, DEEPSEEK_V3, tokens)
        yield partial(blocks_case, QWEN3_30B, tokens)
        for mixture in (QWEN3_30B, MIXTRAL):
            for dtype in (torch.bfloat16, FP8):
                for second in (False, True):
                    yield partial(experts_case, mixture, tokens, dtype, second)
        for second in (False, True):
            yield partial(experts_case, QWEN3_30B, tokens, FP8, second, 128)
        yield partial(combine_case, QWEN3_30B, tokens)
        for second in (False, True):
            yield partial(mxfp4_case, GPT_OSS, tokens, second)


def halves() -> Iterator[Spec]:
    """Products of one of two ranks: shapes of their own, which tuning the whole ones leaves to defaults."""
    for tokens in (128, 512, 8192):
        for dtype in (torch.bfloat16, FP8):
            for second in (False, True):
                yield partial(experts_case, QWEN3_30B_HALF, tokens, dtype, second)


def cases(device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """Of the model's dtype that these formats go with; none of another."""
    for spec in specs() if dtype == torch.bfloat16 else ():
        yield spec(device)


def matrices(shape: Shape, rows: int) -> list[tuple[int, int, str]]:
    """(outputs, width, form) of a layer's products."""
    q_width, kv_width = shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    ends = "parts" if rows <= PARTS_ROWS else "whole"
    gate = (shape.ff_width, shape.width, "gated") if rows <= PARTS_ROWS else (2 * shape.ff_width, shape.width, "whole")
    return [
        (q_width + 2 * kv_width, shape.width, "whole"), (shape.width, q_width, ends), gate,
        (shape.width, shape.ff_width, ends),
    ]  # fmt: skip


def summed(kind: str) -> Any:
    return (lambda outputs: (outputs[0].sum(0),)) if kind == "parts" else (lambda outputs: outputs)


def block_case(rows: int, outputs: int, width: int, kind: str, device: torch.device) -> Case:
    gated, both = kind == "gated", outputs * (2 if kind == "gated" else 1)
    size = both * width
    n = sets_of(size)
    weights = torch.randn(n, both, width, device=device, dtype=torch.bfloat16).to(FP8)
    scale = (torch.rand(both // 128, width // 128, device=device) + 0.5) / width**0.5
    x, x_scale = fp8_block_reference.quantize_groups(torch.randn(rows, width, device=device, dtype=torch.bfloat16))

    def run(module: Any, i: int) -> tuple[Tensor, ...]:
        if kind == "parts":
            return (module.fp8_block_parts(x, x_scale, weights[i], scale, 128),)
        return (module.fp8_block_linear(x, x_scale, weights[i], scale, 128, gated=gated),)

    def peer(i: int) -> Tensor:
        """By row and column, as the engine multiplies FP8 by channel: no library here multiplies by block."""
        return fused.fp8_product(x, weights[i], one)

    one = torch.ones((), device=device)
    padded, groups = max(8, 1 << (rows - 1).bit_length()), width // 128
    return Case(
        label("fp8_block_linear", rows, f"{width}->{outputs}", kind),
        n,
        size + rows * (width + 2 * outputs),
        lambda i: run(fp8_block, i),
        lambda i: run(fp8_block_reference, i),
        1e-2,
        flops=2 * rows * both * width,
        peer=peer if rows > 16 else None,
        peer_name="library, by row",
        seen=summed(kind),
        candidates=tuple(fp8_block.candidates(padded, outputs, groups, gated=gated, parts=kind == "parts")),
    )


def int8_case(rows: int, outputs: int, width: int, kind: str, device: torch.device) -> Case:
    gated, both = kind == "gated", outputs * (2 if kind == "gated" else 1)
    size = both * width
    n = sets_of(size)
    weights = torch.randint(-127, 128, (n, both, width), device=device, dtype=torch.int8)
    scale = (torch.rand(both, 1, device=device) + 0.5) / 75 / width**0.5
    x, x_scale = int8_reference.quantize_int8(torch.randn(rows, width, device=device, dtype=torch.bfloat16))

    def run(module: Any, i: int) -> tuple[Tensor, ...]:
        if kind == "parts":
            return (module.int8_parts(x, x_scale, weights[i], scale),)
        return (module.int8_linear(x, x_scale, weights[i], scale, gated=gated),)

    padded = max(8, 1 << (rows - 1).bit_length())
    return Case(
        label("int8_linear", rows, f"{width}->{outputs}", kind),
        n,
        size + rows * (width + 2 * outputs),
        lambda i: run(int8, i),
        lambda i: run(int8_reference, i),
        1e-2,
        flops=2 * rows * both * width,
        peer=(lambda i: torch._int_mm(x, weights[i].t())) if rows > 16 else None,
        peer_name="torch _int_mm alone",
        seen=summed(kind),
        candidates=tuple(int8.candidates(padded, outputs, width, gated=gated, parts=kind == "parts")),
    )


def quantise_groups_case(shape: Shape, tokens: int, device: torch.device) -> Case:
    gate_up = torch.randn(tokens, 2 * shape.ff_width, device=device, dtype=torch.bfloat16)
    return Case(
        label("silu_mul_groups", tokens, shape.ff_width),
        1,
        tokens * shape.ff_width * 5,
        lambda i: fp8_block.silu_mul_groups(gate_up),
        lambda i: fp8_block_reference.silu_mul_groups(gate_up),
        1e-2,
    )


def quantise_int8_case(shape: Shape, tokens: int, device: torch.device) -> Case:
    x = torch.randn(tokens, shape.ff_width, device=device, dtype=torch.bfloat16)
    return Case(
        label("quantize_int8", tokens, shape.ff_width),
        1,
        tokens * shape.ff_width * 3,
        lambda i: int8.quantize_int8(x),
        lambda i: int8_reference.quantize_int8(x),
        1e-2,
    )


def norm_groups_case(shape: Shape, tokens: int, device: torch.device) -> Case:
    x, residual = torch.randn(2, tokens, shape.width, device=device, dtype=torch.bfloat16)
    weight = torch.rand(shape.width, device=device, dtype=torch.bfloat16) + 0.5
    return Case(
        label("add_rms_norm_groups", tokens, shape.width),
        1,
        tokens * shape.width * 7,
        lambda i: fp8_block.add_rms_norm_groups(x, residual, weight, 1e-5),
        lambda i: fp8_block_reference.add_rms_norm_groups(x, residual, weight, 1e-5),
        1e-2,
    )


def routing_case(mixture: Mixture, tokens: int, device: torch.device) -> Case:
    logits = torch.randn(tokens, mixture.experts, device=device)  # float32, so that few tie
    bias = torch.rand(mixture.experts, device=device) if mixture.groups > 1 else None
    return Case(
        label("route", mixture.name, tokens),
        1,
        tokens * (mixture.experts + 2 * mixture.per_token) * 4,
        lambda i: routing.route(logits, mixture.routing, bias),
        lambda i: moe_reference.route(logits, mixture.routing, bias),
        1e-3,
    )


def chosen_of(mixture: Mixture, tokens: int, device: torch.device) -> Tensor:
    scores = torch.rand(tokens, mixture.experts, device=device)
    return scores.topk(mixture.per_token).indices.to(torch.int32).contiguous()


def blocks_case(mixture: Mixture, tokens: int, device: torch.device) -> Case:
    chosen = chosen_of(mixture, tokens, device)
    size = block_size(chosen.numel(), mixture.experts)

    def run(module: Any) -> tuple[Tensor, ...]:
        found = module.blocks_by_expert(chosen, mixture.experts, size)
        return found.slots, found.experts

    return Case(
        label("blocks_by_expert", mixture.name, tokens),
        1,
        chosen.numel() * 8,
        lambda i: run(blocks),
        lambda i: run(moe_reference),
        0.0,
    )


def experts_case(mixture: Mixture, tokens: int, dtype: torch.dtype, second: bool, *rest: Any) -> Case:
    """second: the products of what the first ones made, each times its factor. rest: the span of a block's scale, where
    FP8 is in blocks, and the device."""
    *spans, device = rest
    span = spans[0] if spans else 0
    experts, per_token, pairs = mixture.experts, mixture.per_token, tokens * mixture.per_token
    outputs, width = (mixture.width, mixture.inner) if second else (mixture.inner, mixture.width)
    both, rows = outputs if second else 2 * outputs, pairs if second else tokens
    chosen = chosen_of(mixture, tokens, device)
    laid_out = moe_reference.blocks_by_expert(chosen, experts, block_size(pairs, experts))
    weight = (torch.randn(experts, both, width, device=device, dtype=torch.bfloat16) / width**0.5).to(dtype)
    x, scales = torch.randn(rows, width, device=device, dtype=torch.bfloat16), None
    if dtype == FP8:
        x, x_scale = fp8_block_reference.quantize_groups(x) if span else reference.quantize_rows(x)
        shape = (experts * both // span, width // 128) if span else (experts, both, 1)
        scales = x_scale, torch.rand(shape, device=device) + 0.5
    options: dict[str, Any] = {"per_token": per_token, "gated": not second, "scales": scales, "span": span}
    if second:
        options["factors"] = torch.rand(tokens, per_token, device=device)
        options["out_dtype"] = torch.float32 if tokens <= 128 else torch.bfloat16
    met = experts * (1 - (1 - per_token / experts) ** tokens)  # experts that somebody takes, on average
    return Case(
        label("grouped_linear", mixture.name, tokens, "down" if second else "gate_up", dtype, "blocks" * (span > 0)),
        1,
        met * both * width * dtype.itemsize + rows * width * x.itemsize + pairs * outputs * 2,
        lambda i: (products.grouped_linear(x, weight, laid_out, **options),),
        lambda i: (moe_reference.grouped_linear(x, weight, laid_out, **options),),
        1e-2,
        flops=2 * pairs * both * width,
        candidates=tuple(
            products.candidates(laid_out.size, outputs, width, dtype.itemsize, gated=not second, in_blocks=span > 0)
        ),
    )


def mxfp4_case(mixture: Mixture, tokens: int, second: bool, device: torch.device) -> Case:
    """As `experts_case`, of weights in MXFP4, whose gate and up stand by turns and are clamped."""
    experts, per_token, pairs = mixture.experts, mixture.per_token, tokens * mixture.per_token
    outputs, width = (mixture.width, mixture.inner) if second else (mixture.inner, mixture.width)
    both, columns = outputs if second else 2 * outputs, mxfp4_reference.padded(width)
    chosen = chosen_of(mixture, tokens, device)
    laid_out = moe_reference.blocks_by_expert(chosen, experts, mxfp4.block_size(pairs, experts))
    words = torch.randint(-(2**31), 2**31 - 1, (experts, both, columns // 8), dtype=torch.int32, device=device)
    groups = torch.full((experts, columns // 128, both), 118 * 0x01010101, dtype=torch.int32, device=device)
    bias = torch.randn(experts, both, device=device, dtype=torch.bfloat16)
    x = torch.randn(pairs if second else tokens, width, device=device, dtype=torch.bfloat16)
    options: dict[str, Any] = {"per_token": per_token, "gate": None if second else (7.0, 1.702)}
    if second:
        options["factors"] = torch.rand(tokens, per_token, device=device)
        options["out_dtype"] = torch.float32 if tokens <= 128 else torch.bfloat16
    met = experts * (1 - (1 - per_token / experts) ** tokens)
    return Case(
        label("grouped_mxfp4", mixture.name, tokens, "down" if second else "gate_up"),
        1,
        met * both * width * (1 / 2 + 1 / 32) + x.numel() * 2 + pairs * outputs * 2,
        lambda i: (mxfp4.grouped_mxfp4(x, words, groups, bias, laid_out, **options),),
        lambda i: (mxfp4_reference.grouped_mxfp4(x, words, groups, bias, laid_out, **options),),
        1e-2,
        flops=2 * pairs * both * width,
        candidates=tuple(mxfp4.candidates(laid_out.size, gated=not second)),
    )


def combine_case(mixture: Mixture, tokens: int, device: torch.device) -> Case:
    dtype = torch.float32 if tokens <= 128 else torch.bfloat16
    parts = torch.randn(mixture.per_token, tokens, mixture.width, device=device, dtype=dtype)
    residual = torch.randn(tokens, mixture.width, device=device, dtype=torch.bfloat16)
    return Case(
        label("combine", mixture.name, tokens),
        1,
        parts.numel() * dtype.itemsize + 4 * residual.numel(),
        lambda i: (products.combine(parts, residual),),
        lambda i: (moe_reference.combine(parts, residual),),
        2e-3,
    )
