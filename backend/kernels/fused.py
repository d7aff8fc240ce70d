"""The Triton kernels, as one set that satisfies `interface.Kernels`."""

from backend.kernels.draws import gather_draws
from backend.kernels.fp8_linear import fp8_linear, fp8_product
from backend.kernels.invariant_linear import invariant_linear
from backend.kernels.logprobs import token_logprobs
from backend.kernels.narrow_linear import narrow_linear, narrow_parts
from backend.kernels.paged_attention import paged_attention
from backend.kernels.paged_decode import paged_decode
from backend.kernels.penalties import apply_penalties, count_outputs, mark_prompt
from backend.kernels.quant import quantize_rows
from backend.kernels.rms_norm import add_rms_norm, add_rms_norm_fp8, rms_norm, rms_norm_fp8
from backend.kernels.rotary_kv import rotary_kv
from backend.kernels.sampling import sample
from backend.kernels.silu_mul import silu_mul, silu_mul_fp8
from backend.kernels.skinny_linear import skinny_linear
from backend.kernels.staged_writes import write_segments
from backend.kernels.step_inputs import commit_step, prepare_step
from backend.kernels.token_mask import apply_bitmask
from backend.kernels.truncation import sampling_threshold

__all__ = [
    "add_rms_norm",
    "add_rms_norm_fp8",
    "apply_bitmask",
    "apply_penalties",
    "commit_step",
    "count_outputs",
    "fp8_linear",
    "fp8_product",
    "gather_draws",
    "invariant_linear",
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
