"""What the engine is measured on: shapes of models, workloads, the peers' figures and our targets.

The peers' figures: vLLM 0.26.0 and SGLang 0.5.17 on one H100 80GB HBM3, torch 2.11.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Prompts = list[list[int]]
Workload = tuple[Prompts, list[int], float]  # prompts, answer lengths, temperature

SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "llama-70b": {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 28672,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
        "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088, "max_position_embeddings": 131072,
        "sliding_window": 128, "rope_theta": 150000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "quantization_config": {"quant_method": "mxfp4"},
    },
    "tiny-moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "moe_intermediate_size": 32,
        "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 1024, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    },
    "tiny": {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 1024,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table. value: tokens a second, or ms to the first token where unit says so."""

    name: str
    make: Callable[[random.Random, int], Workload]
    unit: str = "output tok/s"
    repetitions: int = 2
    untimed: int = 1


@dataclass(frozen=True)
class Peers:
    """Recorded figures (see the module's text), and the goal where one was set, of a run and row."""

    vllm: float
    sglang: float
    target: float | None


def uniform(count: int, prompt: int, answer: int) -> Callable[[random.Random, int], Workload]:
    def make(rng: random.Random, vocab: int) -> Workload:
        return [ids(rng, prompt, vocab) for _ in range(count)], [answer] * count, 0.0

    return make


def mixed(count: int) -> Callable[[random.Random, int], Workload]:
    """Prompts and answers of 100 to 1024 tokens, the same lengths in every repetition; temperature 0.6."""

    def make(rng: random.Random, vocab: int) -> Workload:
        lengths = random.Random(0)
        prompts = [ids(rng, lengths.randint(100, 1024), vocab) for _ in range(count)]
        return prompts, [lengths.randint(100, 1024) for _ in range(count)], 0.6

    return make


def shared(count: int, prefix: int, own: int, answer: int) -> Callable[[random.Random, int], Workload]:
    def make(rng: random.Random, vocab: int) -> Workload:
        head = ids(rng, prefix, vocab)
        return [head + ids(rng, own, vocab) for _ in range(count)], [answer] * count, 0.0

    return make


def ids(rng: random.Random, count: int, vocab: int) -> list[int]:
    return [rng.randrange(10, vocab - 10) for _ in range(count)]


ROWS = [
    Row("decode batch 1, 128/256", uniform(1, 128, 256)),
    Row("decode batch 8, 128/256", uniform(8, 128, 256)),
    Row("decode batch 32, 128/256", uniform(32, 128, 256)),
    Row("decode batch 128, 128/256", uniform(128, 128, 256)),
    Row("first token, prompt 128", uniform(1, 128, 1), "ms", 5),
    Row("first token, prompt 1024", uniform(1, 1024, 1), "ms", 5),
    Row("first token, prompt 4096", uniform(1, 4096, 1), "ms", 5),
    Row("prefill 32 x 4096", uniform(32, 4096, 1), "prompt tok/s", 1),
    Row("256 requests 512/256", uniform(256, 512, 256), repetitions=1),
    Row("shared prefix 128 x (2048 + 64), 64 out", shared(128, 2048, 64, 64)),
    Row("256 requests, 100-1024 in and out", mixed(256), repetitions=1, untimed=0),
]

DIVIDED = (
    "decode batch 1, 128/256", "decode batch 32, 128/256", "decode batch 128, 128/256", "first token, prompt 128",
    "first token, prompt 1024", "first token, prompt 4096", "prefill 32 x 4096", "256 requests 512/256",
)  # fmt: skip
"""Rows of a model that is divided among cards."""

PEERS: dict[str, dict[str, Peers]] = {
    "llama-8b:bf16": {
        "decode batch 1, 128/256": Peers(150.7, 154.8, 172),
        "decode batch 8, 128/256": Peers(1139, 1182, None),
        "decode batch 32, 128/256": Peers(4160, 4252, 4800),
        "decode batch 128, 128/256": Peers(11777, 11905, 13100),
        "first token, prompt 128": Peers(12.6, 10.9, 7),
        "first token, prompt 1024": Peers(27.9, 27, 24),
        "first token, prompt 4096": Peers(107, 103, 96),
        "prefill 32 x 4096": Peers(41329, 40780, 42000),
        "256 requests 512/256": Peers(9030, 9057, 9900),
        "shared prefix 128 x (2048 + 64), 64 out": Peers(6561, 5731, 9000),
        "256 requests, 100-1024 in and out": Peers(8248, 8109, 9100),
    },
    "llama-8b:fp8": {
        "decode batch 1, 128/256": Peers(222, 227, 300),
        "decode batch 8, 128/256": Peers(1678, 1727, None),
        "decode batch 32, 128/256": Peers(5966, 6044, 7300),
        "decode batch 128, 128/256": Peers(15238, 15806, 18200),
        "prefill 32 x 4096": Peers(60245, 57532, 63000),
        "256 requests 512/256": Peers(11602, 11476, 13300),
        "256 requests, 100-1024 in and out": Peers(10018, 9620, 12500),
    },
    "qwen3-0.6b:bf16": {
        "decode batch 1, 128/256": Peers(424, 665, 1300),
        "decode batch 8, 128/256": Peers(2302, 4377, 8000),
        "decode batch 32, 128/256": Peers(13072, 14320, None),
        "decode batch 128, 128/256": Peers(26295, 32852, 42000),
        "first token, prompt 128": Peers(13.5, 9.1, None),
        "first token, prompt 1024": Peers(30, 9.6, None),
        "first token, prompt 4096": Peers(27, 16, None),
        "prefill 32 x 4096": Peers(308564, 324388, None),
        "256 requests 512/256": Peers(24096, 24684, 35000),
        "shared prefix 128 x (2048 + 64), 64 out": Peers(12546, 14797, None),
        "256 requests, 100-1024 in and out": Peers(18167, 17194, 27000),
    },
}
PEERS["qwen3-0.6b:kv8"] = {
    name: PEERS["qwen3-0.6b:bf16"][name] for name in ("256 requests 512/256", "256 requests, 100-1024 in and out")
}
DTYPES: dict[str, dict[str, str]] = {
    "bf16": {}, "fp8": {"quantization": "fp8", "kv_dtype": "fp8"}, "w8": {"quantization": "fp8"},
    "kv8": {"kv_dtype": "fp8"}, "int4": {}, "fp8block": {}, "int8": {}, "w4a16": {}, "mxfp4": {},
}  # fmt: skip


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"group_0": group}}


STORED: dict[str, dict[str, Any]] = {  # what config.json says of weights, beside the shape
    "int4": {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}},
    "fp8block": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
    "int8": {
        "quantization_config": compressed(
            {"type": "int", "num_bits": 8, "strategy": "channel"}, {"type": "int", "num_bits": 8, "strategy": "token"}
        )
    },
    "w4a16": {
        "quantization_config": compressed({"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128})
    },
}
STARTS = {
    "llama-8b:bf16": Peers(120, 61, 15),
    "llama-8b:fp8": Peers(106, 58, 15),
    "qwen3-0.6b:bf16": Peers(125, 56, 15),
}

START = "process start to first token"
COLD = START + ", cold kernel cache"
