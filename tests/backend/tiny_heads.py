"""Small heads that guess from hidden states, random or as good as a test wants them, and as checkpoints."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from backend.engine.cache.attention import KVCache, PagedAttention, Prefill
from backend.models.config import ModelConfig
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.exposure import Exposure
from backend.models.heads.head_config import EAGLE3, HeadConfig, eagle3_config, mtp_config
from backend.models.heads.head_decoder import HeadDecoder

HEAD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_act": "silu", "num_hidden_layers": 1, "intermediate_size": 80,
    "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "draft_vocab_size": 150,
}  # fmt: skip


def head_json(base: ModelConfig, **changes: Any) -> dict[str, Any]:
    """config.json of an EAGLE-3 head of `base`; None as a value leaves a key out."""
    found = {**HEAD, "hidden_size": base.hidden_size, "vocab_size": base.vocab_size, **changes}
    return {key: value for key, value in found.items() if value is not None}


def write_config(folder: Path, base: ModelConfig, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(head_json(base, **changes)))
    return folder


def tiny_head(config: HeadConfig, seed: int = 7, dtype: torch.dtype = torch.float32) -> HeadDecoder:
    """Random weights; an EAGLE-3 head guesses every second token."""
    torch.manual_seed(seed)
    head = HeadDecoder(config, dtype)
    for name, parameter in head.named_parameters():
        if name.endswith("correction"):
            parameter.normal_(0, 0.3)
        elif parameter.is_floating_point():
            parameter.normal_(0, 0.25) if parameter.dim() > 1 else parameter.normal_(1.0, 0.1)
    if config.draft_vocab < config.vocab_size:
        head.targets.copy_(torch.arange(config.draft_vocab) * (config.vocab_size // config.draft_vocab))
    return head.eval()


def eagle3(folder: Path, base: ModelConfig, **changes: Any) -> HeadConfig:
    return eagle3_config(write_config(folder, base, **changes), base)


def stored(head: HeadDecoder, *, layer: str = "midlayer.", body: str = "", tables: bool = True) -> dict[str, Tensor]:
    """By the names of a release."""
    head.found = set(head.tables) | ({"d2t"} if head.config.kind == EAGLE3 else set())
    found = {name: tensor.clone().contiguous() for name, tensor in head.places().items()}
    if head.config.kind != EAGLE3:
        return found if tables else {name: t for name, t in found.items() if name not in head.tables}
    if not tables:
        del found["model.embed_tokens.weight"]
    found["d2t"] -= torch.arange(len(found["d2t"]))
    found["t2d"] = torch.isin(torch.arange(head.config.vocab_size), head.targets).to(torch.uint8)
    return {
        name.replace("model.layers.0.", layer).replace("model.", body) if "." in name else name: tensor
        for name, tensor in found.items()
    }


def write_eagle3(folder: Path, head: HeadDecoder, base: ModelConfig, **changes: Any) -> Path:
    """`head` as SafeAILab/EAGLE and SGLang have it, but in safetensors; changes: of config.json and of `stored`."""
    names = {key: changes.pop(key) for key in ("layer", "body", "tables") if key in changes}
    write_config(folder, base, **{"draft_vocab_size": head.config.draft_vocab, **changes})
    save_file(stored(head, **names), folder / "model.safetensors")
    return folder


def mtp(base: ModelConfig, seed: int = 7) -> HeadDecoder:
    return tiny_head(mtp_config(base), seed)


def trained(head: HeadDecoder, base: Decoder, texts: list[list[int]], steps: int = 60) -> HeadDecoder:
    """`head` after it has learned to guess the tokens of `texts` from the hidden states that `base` has there; not to
    go on from what it left itself."""
    examples = [(torch.tensor(text), states_of(base, head.config.reads, text)) for text in texts]
    parameters = [p for p in head.parameters() if p.is_floating_point()]
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    number = {int(target): i for i, target in enumerate(head.targets)}
    for _ in range(steps):
        losses = []
        for ids, states in examples:
            head.features = head.combined(states[:-2])
            rows = torch.tensor([i for i, t in enumerate(ids[2:].tolist()) if t in number], dtype=torch.int64)
            logits = head.begin(ids[1:-1], torch.arange(len(ids) - 2), one_prompt(head, len(ids) - 2), rows).logits
            losses.append(torch.nn.functional.cross_entropy(logits, ids[2:][rows]))
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack(losses).mean())
        optimizer.step()
    for parameter in parameters:
        parameter.requires_grad_(False)
    head.features = head.outputs = torch.zeros(0, head.config.hidden_size)
    return head


def states_of(base: Decoder, reads: tuple[int, ...], text: list[int]) -> Tensor:
    """Hidden states of all tokens: [tokens, width]."""
    base.exposure = Exposure(reads, len(text), base.config.hidden_size, base.embedding.dtype, torch.device("cpu"))
    base(torch.tensor(text), torch.arange(len(text)), one_prompt(base, len(text)), torch.tensor([0]))
    states, base.exposure = base.exposure.states, None
    return states


def one_prompt(model: Decoder, tokens: int) -> PagedAttention:
    """Attention for a step that has one sequence, from its beginning."""
    blocks = -(-tokens // 16)
    cache = KVCache(model.config, blocks, 16, model.embedding.dtype, "cpu")
    return PagedAttention(cache, torch.arange(tokens), None, [Prefill(0, tokens, 0, torch.arange(blocks))])
