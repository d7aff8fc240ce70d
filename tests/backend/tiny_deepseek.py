"""Random DeepSeeks, small, as V2-Lite, V2 and V3 are released; without transformers, so that a bare GPU machine has
them, too."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from backend.models.config import from_hugging_face
from backend.models.decoders.decoder import Decoder
from tests.backend.tiny import tiny_tokenizer

YARN: dict[str, Any] = {
    "type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 64,
}  # fmt: skip
SHAPE: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 5000.0,
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 24, "moe_intermediate_size": 32,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "eos_token_id": 2,
}  # fmt: skip
V2 = {**SHAPE, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "norm_topk_prob": False}
MODELS: dict[str, dict[str, Any]] = {
    "v2-lite": {
        **V2, "q_lora_rank": None, "topk_method": "greedy", "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
        "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "v2": {
        **V2, "q_lora_rank": 48, "topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0, "n_group": 4,
        "topk_group": 2, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    },
    "v3": {
        **SHAPE, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "q_lora_rank": 48,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "n_group": 4, "topk_group": 2, "n_shared_experts": 1, "num_nextn_predict_layers": 1,
        "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
}  # fmt: skip


def tiny_deepseek(name: str, seed: int = 0, **changes: Any) -> Decoder:
    """Weights large enough that attention, the choice of experts and its correction matter."""
    torch.manual_seed(seed)
    model = Decoder(from_hugging_face({**MODELS[name], **changes}))
    for key, parameter in model.named_parameters():
        if key.endswith("correction"):
            parameter.normal_(0, 0.3)
        else:
            parameter.normal_(0, 0.25) if parameter.dim() > 1 else parameter.normal_(1.0, 0.1)
    return model.eval()


def stored_tensors(model: Decoder) -> dict[str, Tensor]:
    """By the release's names. V3's have a layer for the token after next, which is not read."""
    found = {name: tensor.clone().contiguous() for name, tensor in model.places().items()}
    if model.config.predicting_layers:
        found[f"model.layers.{model.config.num_layers}.eh_proj.weight"] = torch.zeros(4, 8)
    return found


def write_deepseek(folder: Path, name: str, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**MODELS[name], **config}))
    save_file(tensors, folder / "model.safetensors")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
