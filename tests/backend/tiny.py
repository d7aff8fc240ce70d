"""A random Llama small enough for a thousand forwards a second, and the same as a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from backend.engine.core.sampling import SamplingParams
from backend.engine.core.speculation import Drafter
from backend.engine.engine import Engine
from backend.engine_config import EngineConfig, groups_of, size_cache
from backend.models.config import ModelConfig
from backend.models.decoders.decoder import Decoder

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny_config(**changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 8,
        "max_position": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
    }
    return ModelConfig(**{**shape, **changes})


def tiny_model(seed: int = 0, **changes: Any) -> Decoder:
    """Weights large enough that attention matters and logits are far apart."""
    torch.manual_seed(seed)
    model = Decoder(tiny_config(**changes))
    for parameter in model.parameters():
        parameter.normal_(0, 0.3) if parameter.dim() > 1 else parameter.normal_(1, 0.1)
    return model.eval()


def in_whole_blocks(config: EngineConfig, model: ModelConfig) -> EngineConfig:
    """The same with as much memory as `num_blocks` take that hold tokens in all layers."""
    whole = (config.num_blocks or 0) * model.num_layers
    return msgspec.structs.replace(config, num_blocks=whole // groups_of(config, model).depth or None)


def tiny_engine(
    model: Decoder, eos_ids: frozenset[int] = frozenset(), drafter: Drafter | None = None, **changes: Any
) -> Engine:
    settings: dict[str, Any] = {"model": "", "num_blocks": 64, "max_num_seqs": 16, "max_num_batched_tokens": 64}
    config = in_whole_blocks(EngineConfig(**{**settings, **changes}), model.config)
    return Engine(model, config, size_cache(config, model.config, 4), eos_ids, drafter=drafter)


def greedy(max_tokens: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **changes})


def run(engine: Engine) -> dict[int, list[int]]:
    """Step until idle; the tokens of each sequence."""
    tokens: dict[int, list[int]] = {}
    while engine.has_work:
        for item in engine.step():
            assert item.token is not None
            tokens.setdefault(item.id, []).append(item.token)
    return tokens


def generate(engine: Engine, prompts: list[list[int]], params: SamplingParams | None = None) -> list[list[int]]:
    for id, prompt in enumerate(prompts):
        engine.add(id, prompt, params or greedy(12))
    tokens = run(engine)
    return [tokens[id] for id in range(len(prompts))]


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE with a handful of merges: any text goes in and comes out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the rain in the sea and the wind on the hill"] * 4, trainer)
    return tokenizer


def write_folder(folder: Path, model: Decoder, **config: Any) -> Path:
    """`model` as transformers would save it."""
    c = model.config
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "hidden_act": "silu",
                "vocab_size": c.vocab_size,
                "hidden_size": c.hidden_size,
                "intermediate_size": c.intermediate_size,
                "num_hidden_layers": c.num_layers,
                "num_attention_heads": c.num_heads,
                "num_key_value_heads": c.num_kv_heads,
                "head_dim": c.head_dim,
                "max_position_embeddings": c.max_position,
                "rms_norm_eps": c.rms_norm_eps,
                "rope_theta": c.rope_theta,
                "tie_word_embeddings": c.tie_word_embeddings,
                "eos_token_id": 2,
                **config,
            }
        )
    )
    save_file({name: t.clone().contiguous() for name, t in model.places().items()}, folder / "model.safetensors")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>", "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
