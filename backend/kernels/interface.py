"""The operations the engine runs on its device, and who provides them there.

Each kernel's module says what it computes and the shapes it takes; `reference` holds the same in torch.
"""

from typing import Protocol

import torch
from torch import Tensor

from backend.kernels import reference
from backend.kernels.attention.workspace import DecodeWorkspace, SharedPrefix
from backend.kernels.sampling.row_state import Draws, MarkRows, RowState, SamplingRows, StepInputs


class Kernels(Protocol):
    def quantize_rows(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, scales: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def rms_norm_fp8(self, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...

    def add_rms_norm_fp8(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, scales: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def fp8_linear(self, x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor: ...

    def fp8_product(self, x: Tensor, weight: Tensor, one: Tensor) -> Tensor: ...

    def skinny_linear(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        norm: Tensor | None = None,
        eps: float = 1e-6,
        residual: Tensor | None = None,
        gated: bool = False,
    ) -> Tensor: ...

    def invariant_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...

    def invariant_parts(self, x: Tensor, weight: Tensor, parts: int) -> Tensor: ...

    def narrow_linear(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        scales: tuple[Tensor, Tensor] | None = None,
        bias: Tensor | None = None,
        gated: bool = False,
    ) -> Tensor: ...

    def narrow_parts(self, x: Tensor, weight: Tensor, *, scales: tuple[Tensor, Tensor] | None = None) -> Tensor: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    def silu_mul_fp8(self, gate_up: Tensor) -> tuple[Tensor, Tensor]: ...

    def rotary_kv(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        slots: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        *,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 1e-6,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        keys_in_place: bool = False,
        scales: tuple[Tensor, Tensor] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def paged_attention(
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_tables: Tensor,
        query_start: Tensor,
        seq_lens: Tensor,
        *,
        scale: float,
        window: int | None = None,
        cap: float | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        batch_invariant: bool = False,
        sinks: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...

    def dense_attention(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]: ...

    def join_parts(self, first: Tensor, first_sum: Tensor, second: Tensor, second_sum: Tensor, out: Tensor) -> None: ...

    def paged_decode(
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        workspace: DecodeWorkspace,
        *,
        scale: float,
        window: int | None = None,
        cap: float | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        splits: int | None = None,
        shared: SharedPrefix | None = None,
        sinks: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...

    def sample(
        self,
        logits: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        positions: Tensor,
        threshold: Tensor | None = None,
        marks: Tensor | None = None,
    ) -> Tensor: ...

    def sampling_threshold(
        self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
    ) -> Tensor: ...

    def apply_penalties(
        self,
        logits: Tensor,
        rows: Tensor,
        prompt_bits: Tensor,
        output_counts: Tensor,
        repetition: Tensor,
        frequency: Tensor,
        presence: Tensor,
    ) -> None: ...

    def count_outputs(self, output_counts: Tensor, rows: Tensor, tokens: Tensor) -> None: ...

    def mark_prompt(self, prompt_bits: Tensor, row: int, tokens: Tensor, vocab: int) -> None: ...

    def apply_bitmask(self, logits: Tensor, bits: Tensor, rows: Tensor) -> None: ...

    def token_logprobs(self, logits: Tensor, tokens: Tensor) -> Tensor: ...

    def largest_activations(self, states: Tensor, most: int, out: Tensor | None = None) -> Tensor: ...

    def prepare_step(
        self, rows: Tensor, query_start: Tensor, state: RowState, block_size: int, inputs: StepInputs
    ) -> None: ...

    def gather_draws(self, rows: Tensor, known: Tensor, wanted: SamplingRows, draws: Draws) -> None: ...

    def gather_marks(
        self, rows: Tensor, positions: Tensor, tokens: Tensor, wanted: MarkRows, marks: Tensor
    ) -> None: ...

    def write_segments(self, memory: Tensor, packed: Tensor, segments: int) -> None: ...

    def commit_step(self, rows: Tensor, query_start: Tensor, sampled: Tensor, state: RowState) -> None: ...


def kernels_for(device: torch.device) -> Kernels:
    """The Triton kernels on CUDA, their torch twins elsewhere (where Triton need not be installed)."""
    if device.type == "cuda":
        from backend.kernels import fused

        return fused
    return reference
