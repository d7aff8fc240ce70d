"""Random checkpoints of the families that depart from Llama, small, as their config.json has them; without
transformers, so that a bare GPU machine has them, too."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from backend.engine.cache.attention import KVCache, PagedAttention, Prefill
from backend.models.config import from_hugging_face
from backend.models.decoders.decoder import Decoder
from tests.backend.tiny import tiny_tokenizer

SHAPE: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
}  # fmt: skip
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "sliding_window": 20}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {
        **GEMMA, "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 5.0, "final_logit_softcapping": 12.0,
    },
    "gemma3": {
        **GEMMA, "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 3, "sliding_window_pattern": 3,
        "rope_theta": 2000.0, "rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "granite": {
        "architectures": ["GraniteForCausalLM"], "embedding_multiplier": 3.0, "logits_scaling": 0.25,
        "residual_multiplier": 0.4, "attention_multiplier": 0.2, "tie_word_embeddings": False,
    },
    "olmo2": {"architectures": ["Olmo2ForCausalLM"], "tie_word_embeddings": False},
    "smollm3": {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0, 1, 0], "head_dim": 32},
}  # fmt: skip
MILD = ("granite", "smollm3")  # nothing bounds their scores: with large weights a rounding decides who is looked at


def tiny_family(name: str, seed: int = 0, **changes: Any) -> Decoder:
    """Weights large enough that attention matters and logits are far apart."""
    torch.manual_seed(seed)
    model = Decoder(from_hugging_face({**SHAPE, **FAMILIES[name], **changes}))
    centre = 0.0 if model.config.variant and model.config.variant.norm_from_one else 1.0
    spread = 0.2 if name in MILD else 0.3
    for parameter in model.parameters():
        parameter.normal_(0, spread) if parameter.dim() > 1 else parameter.normal_(centre, 0.1)
    return model.eval()


def write_family(folder: Path, name: str, model: Decoder) -> Path:
    """`model`, made by `tiny_family`, as a folder."""
    folder.mkdir(parents=True)
    config = {**SHAPE, **FAMILIES[name], "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: t.clone().contiguous() for name, t in model.places().items()}, folder / "model.safetensors")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def plain_logits(model: Decoder, ids: Tensor, *, block_size: int = 4) -> Tensor:
    """Of every token, by the decoder that the CPU runs, through its paged cache. [tokens, vocab_size]."""
    blocks = -(-len(ids) // block_size)
    cache = KVCache(model.config, blocks, block_size, model.embedding.dtype, "cpu")
    rows = torch.arange(len(ids))
    return model(ids, rows, PagedAttention(cache, rows, None, [Prefill(0, len(ids), 0, torch.arange(blocks))]), rows)
