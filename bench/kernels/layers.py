"""Cases of what a layer does beside attention: norms, gates, rotary embedding, products of few rows."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels import fused, reference
from backend.kernels.launching.launch import FP8
from bench.kernels.case import BLOCK_SIZE, Case, Shape, label, sets_of


def norm_cases(shape: Shape, tokens: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    width = shape.width
    size = 4 * tokens * width * dtype.itemsize
    n = sets_of(size)
    x, residual = torch.randn(2, n, tokens, width, device=device).to(dtype)
    weight = (1 + torch.randn(width, device=device) / 4).to(dtype)
    yield Case(
        label("add_rms_norm", tokens, width, dtype),
        n,
        size,
        lambda i: fused.add_rms_norm(x[i], residual[i], weight, 1e-5),
        lambda i: reference.add_rms_norm(x[i], residual[i], weight, 1e-5),
        2e-3,
        peer=lambda i: F.rms_norm(x[i] + residual[i], (width,), weight, 1e-5),
        peer_name="torch add, rms_norm",
    )
    yield Case(
        label("add_rms_norm_fp8", tokens, width, dtype),
        n,
        tokens * width * (3 * dtype.itemsize + 1),
        lambda i: fused.add_rms_norm_fp8(x[i], residual[i], weight, 1e-5),
        lambda i: reference.add_rms_norm_fp8(x[i], residual[i], weight, 1e-5),
        1e-2,
    )


def gate_cases(shape: Shape, tokens: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    width = shape.ff_width
    size = 3 * tokens * width * dtype.itemsize
    n = sets_of(size)
    gate_up = torch.randn(n, tokens, 2 * width, device=device).to(dtype)

    def peer(i: int) -> Tensor:
        gate, up = gate_up[i].chunk(2, -1)
        return F.silu(gate) * up

    yield Case(
        label("silu_mul", tokens, width, dtype),
        n,
        size,
        lambda i: (fused.silu_mul(gate_up[i]),),
        lambda i: (reference.silu_mul(gate_up[i]),),
        2e-3,
        peer=peer,
        peer_name="torch silu, mul",
    )
    yield Case(
        label("silu_mul_fp8", tokens, width, dtype),
        n,
        tokens * width * (2 * dtype.itemsize + 1),
        lambda i: fused.silu_mul_fp8(gate_up[i]),
        lambda i: reference.silu_mul_fp8(gate_up[i]),
        1e-2,
    )


def quantise_case(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Case:
    size = rows * width * (dtype.itemsize + 1)
    n = sets_of(size)
    x = torch.randn(n, rows, width, device=device).to(dtype)
    return Case(
        label("quantize_rows", rows, width, dtype),
        n,
        size,
        lambda i: fused.quantize_rows(x[i]),
        lambda i: reference.quantize_rows(x[i]),
        1e-2,
    )


def rotary_case(shape: Shape, tokens: int, dtype: torch.dtype, cache_dtype: torch.dtype, device: torch.device) -> Case:
    q_heads, kv_heads, dim = shape.q_heads, shape.kv_heads, shape.head_dim
    heads = q_heads + 2 * kv_heads
    size = tokens * dim * (heads * dtype.itemsize + q_heads * dtype.itemsize + 2 * kv_heads * cache_dtype.itemsize)
    n = sets_of(size)
    qkv = torch.randn(n, tokens, heads * dim, device=device).to(dtype)
    blocks = -(-tokens // BLOCK_SIZE)
    positions = torch.arange(tokens, device=device)
    slots = torch.arange(blocks * BLOCK_SIZE, device=device).flip(0)[:tokens].contiguous()
    angle = torch.outer(torch.arange(8192, device=device), 5e5 ** (-torch.arange(0, dim, 2, device=device) / dim))
    cos_sin = torch.cat((angle.cos(), angle.sin()), -1)
    options: dict[str, Any] = {}
    if shape.qk_norm:
        options |= {name: torch.rand(dim, device=device).to(dtype) + 0.5 for name in ("q_norm", "k_norm")}
    if cache_dtype == FP8:
        options |= {name: torch.full((kv_heads,), 0.02, device=device) for name in ("k_scale", "v_scale")}

    def run(kernels: Any, i: int, caches: Tensor) -> tuple[Tensor, ...]:
        q = kernels.rotary_kv(qkv[i], positions, cos_sin, slots, caches[0], caches[1], **options)
        return q, caches[0], caches[1]

    mine, other = (
        torch.zeros(n, 2, blocks, BLOCK_SIZE, kv_heads, dim, device=device, dtype=cache_dtype) for _ in range(2)
    )
    return Case(
        label("rotary_kv", shape.name, tokens, dtype, "kv", cache_dtype),
        n,
        size,
        lambda i: run(fused, i, mine[i]),
        lambda i: run(reference, i, other[i]),
        1e-2 if cache_dtype == FP8 else 2e-3,
    )


def row_cases(shape: Shape, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """One row through the products of a layer, in the model's dtype and in FP8."""
    q_width, kv_width = shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for outputs, width, kind in (
        (q_width + 2 * kv_width, shape.width, "norm"),
        (shape.width, q_width, "residual"),
        (shape.ff_width, shape.width, "norm gated"),
        (shape.width, shape.ff_width, "residual"),
    ):
        for fp8 in (False, True):
            yield row_case(outputs, width, kind, fp8, dtype, device)


def row_case(outputs: int, width: int, kind: str, fp8: bool, dtype: torch.dtype, device: torch.device) -> Case:
    both = outputs * (2 if "gated" in kind else 1)
    size = both * width * (1 if fp8 else dtype.itemsize)
    n = sets_of(size, 32)
    x = torch.randn(1, width, device=device).to(dtype)
    weights = (torch.randn(n, both, width, device=device) / width**0.5).to(FP8 if fp8 else dtype)
    options: dict[str, Any] = {"gated": "gated" in kind}
    if fp8:
        options["scale"] = torch.rand(both, 1, device=device) + 0.5
    if "norm" in kind:
        options["norm"] = (torch.rand(width, device=device) + 0.5).to(dtype)
    if "residual" in kind:
        options["residual"] = torch.randn(1, outputs, device=device).to(dtype)
    peer = None if fp8 else lambda i: F.linear(x, weights[i])
    return Case(
        label("skinny_linear", f"{outputs}x{width}", kind, dtype, "fp8 weight" if fp8 else ""),
        n,
        size,
        lambda i: (fused.skinny_linear(x, weights[i], **options),),
        lambda i: (reference.skinny_linear(x, weights[i], **options),),
        1e-2,
        peer=peer,
        peer_name="torch linear alone",
    )


def narrow_cases(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """A few rows through the products of a layer, in the model's dtype and in FP8."""
    q_width, kv_width = shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for outputs, width, kind in (
        (q_width + 2 * kv_width, shape.width, "whole"),
        (shape.width, q_width, "parts"),
        (shape.ff_width, shape.width, "gated"),
        (shape.width, shape.ff_width, "parts"),
    ):
        for weight_dtype in (dtype, FP8):
            yield narrow_case(rows, outputs, width, kind, dtype, weight_dtype, device)


def narrow_case(
    rows: int, outputs: int, width: int, kind: str, dtype: torch.dtype, weight_dtype: torch.dtype, device: torch.device
) -> Case:
    gated = kind == "gated"
    size = outputs * (2 if gated else 1) * width * weight_dtype.itemsize
    n = sets_of(size)
    weights = (torch.randn(n, outputs * (2 if gated else 1), width, device=device) / width**0.5).to(weight_dtype)
    x = torch.randn(rows, width, device=device).to(weight_dtype)
    scales = None
    if weight_dtype == FP8:
        scales = 0.5 + torch.rand(rows, 1, device=device), 0.5 + torch.rand(weights.shape[1], 1, device=device)

    def run(kernels: Any, i: int) -> tuple[Tensor, ...]:
        if kind == "parts":
            return (kernels.narrow_parts(x, weights[i], scales=scales),)
        return (kernels.narrow_linear(x, weights[i], scales=scales, gated=gated),)

    def peer(i: int) -> Tensor:
        y = F.linear(x, weights[i])
        return fused.silu_mul(y) if gated else y

    return Case(
        label("narrow_linear", rows, f"{width}->{outputs}", kind, weight_dtype),
        n,
        size,
        lambda i: run(fused, i),
        lambda i: run(reference, i),
        1e-2,
        flops=2 * rows * outputs * (2 if gated else 1) * width,
        peer=peer if weight_dtype == dtype else None,
        peer_name="torch linear",
        seen=(lambda outputs: (outputs[0].sum(0),)) if kind == "parts" else (lambda outputs: outputs),
    )
