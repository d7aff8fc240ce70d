"""The reference: transformers' Llama with the weights that our loader read."""

from typing import Any

import torch

from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder


def reference_llama(checkpoint: Checkpoint, decoder: Decoder) -> Any:
    """A `LlamaForCausalLM`, float32, in eval mode."""
    from transformers import LlamaConfig, LlamaForCausalLM

    c = checkpoint.config
    config = LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        max_position_embeddings=c.max_position,
        rms_norm_eps=c.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        tie_word_embeddings=c.tie_word_embeddings,
        bos_token_id=checkpoint.text.bos_id,
        eos_token_id=sorted(checkpoint.text.eos_ids),
        pad_token_id=0,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model.model.rotary_emb.__init__(config)  # its table is not a weight, and was left empty
    weights = {name: tensor.detach() for name, tensor in decoder.places().items()}
    if c.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True)
    model.tie_weights()
    return model.eval()
