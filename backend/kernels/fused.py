"""The Triton kernels, as one set that satisfies `interface.Kernels`."""

from backend.kernels.attention.joined import dense_attention, join_parts
from backend.kernels.attention.paged_attention import paged_attention
from backend.kernels.attention.paged_decode import paged_decode
from backend.kernels.attention.rotary_kv import rotary_kv
from backend.kernels.linear.fp8 import fp8_linear, fp8_product
from backend.kernels.linear.invariant import invariant_linear, invariant_parts
from backend.kernels.linear.narrow import narrow_linear, narrow_parts
from backend.kernels.linear.quant import quantize_rows
from backend.kernels.linear.rms_norm import add_rms_norm, add_rms_norm_fp8, rms_norm, rms_norm_fp8
from backend.kernels.linear.silu_mul import silu_mul, silu_mul_fp8
from backend.kernels.linear.skinny import skinny_linear
from backend.kernels.sampling.activations import largest_activations
from backend.kernels.sampling.draws import gather_draws
from backend.kernels.sampling.logprobs import token_logprobs
from backend.kernels.sampling.marks import gather_marks
from backend.kernels.sampling.penalties import apply_penalties, count_outputs, mark_prompt
from backend.kernels.sampling.sampling import sample
from backend.kernels.sampling.staged_writes import write_segments
from backend.kernels.sampling.step_inputs import commit_step, prepare_step
from backend.kernels.sampling.token_mask import apply_bitmask
from backend.kernels.sampling.truncation import sampling_threshold

__all__ = [
    "add_rms_norm",
    "add_rms_norm_fp8",
    "apply_bitmask",
    "apply_penalties",
    "commit_step",
    "count_outputs",
    "dense_attention",
    "fp8_linear",
    "fp8_product",
    "gather_draws",
    "gather_marks",
    "invariant_linear",
    "invariant_parts",
    "join_parts",
    "largest_activations",
    "mark_prompt",
    "narrow_linear",
    "narrow_parts",
    "paged_attention",
    "paged_decode",
    "prepare_step",
    "quantize_rows",
    "rms_norm",
    "rms_norm_fp8",
    "rotary_kv",
    "sample",
    "sampling_threshold",
    "silu_mul",
    "silu_mul_fp8",
    "skinny_linear",
    "token_logprobs",
    "write_segments",
]
