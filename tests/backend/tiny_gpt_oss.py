"""A random gpt-oss, small, as it is released: experts in MXFP4."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.backend.tiny import tiny_tokenizer

CONFIG: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "vocab_size": 320, "hidden_size": 64, "intermediate_size": 32,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 256, "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 8,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "attention_bias": True, "hidden_act": "silu",
    "swiglu_limit": 1.5, "rope_theta": 5000.0, "eos_token_id": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 64,
    },
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"],
    },
}  # fmt: skip


def random_tensors(seed: int = 0, config: dict[str, Any] = CONFIG) -> dict[str, Tensor]:
    """By the release's names; weights large enough that attention, sinks and clamps matter."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    q, kv = (config[n] * config["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))

    def normal(*shape: int, spread: float = 0.2, centre: float = 0.0) -> Tensor:
        return centre + spread * torch.randn(*shape, generator=generator)

    def packed(name: str, outputs: int, width: int) -> dict[str, Tensor]:
        blocks = torch.randint(0, 256, (experts, outputs, width // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(122, 126, (experts, outputs, width // 32), dtype=torch.uint8, generator=generator)
        bias = {f"{name}_bias": normal(experts, outputs)}
        return {f"{name}_blocks": blocks, f"{name}_scales": scales, **bias}

    found = {
        "model.embed_tokens.weight": normal(config["vocab_size"], hidden, spread=1.0),
        "model.norm.weight": normal(hidden, spread=0.1, centre=1.0),
        "lm_head.weight": normal(config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        own = {
            "input_layernorm.weight": normal(hidden, spread=0.1, centre=1.0),
            "post_attention_layernorm.weight": normal(hidden, spread=0.1, centre=1.0),
            "self_attn.q_proj.weight": normal(q, hidden), "self_attn.q_proj.bias": normal(q),
            "self_attn.k_proj.weight": normal(kv, hidden), "self_attn.k_proj.bias": normal(kv),
            "self_attn.v_proj.weight": normal(kv, hidden), "self_attn.v_proj.bias": normal(kv),
            "self_attn.o_proj.weight": normal(hidden, q), "self_attn.o_proj.bias": normal(hidden),
            "self_attn.sinks": normal(config["num_attention_heads"], spread=2.0),
            "mlp.router.weight": normal(experts, hidden), "mlp.router.bias": normal(experts),
            **packed("mlp.experts.gate_up_proj", 2 * inner, hidden), **packed("mlp.experts.down_proj", hidden, inner),
        }  # fmt: skip
        found |= {f"{prefix}{name}": tensor for name, tensor in own.items()}
    return found


def write_gpt_oss(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(tensors, folder / "model.safetensors")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
