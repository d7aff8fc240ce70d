"""Logits against Hugging Face transformers, on the same weights."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache, PagedAttention, Prefill
from backend.errors import CorruptCheckpoint
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.config import from_hugging_face
from backend.models.decoders.decoder import Decoder
from tests.backend.tiny import tiny_model

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama with tied embeddings": ("Llama", {"tie_word_embeddings": True}),
    "llama 3.1 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}}),
    "one kv head, wide heads": ("Llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def logits(model: Decoder, ids: list[int]) -> Tensor:
    """Of every position, through the paged cache."""
    cache = KVCache(model.config, -(-len(ids) // 4), 4, model.embedding.dtype, "cpu")
    rows = torch.arange(len(ids))
    attention = PagedAttention(cache, rows, None, [Prefill(0, len(ids), 0, torch.arange(-(-len(ids) // 4)))])
    return model(torch.tensor(ids), rows, attention, rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_on_every_family(family: str) -> None:
    import transformers

    name, changes = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **changes})
    torch.manual_seed(1)
    theirs = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0.0, 0.2)
    ours = Decoder(from_hugging_face({**config.to_dict(), "architectures": [f"{name}ForCausalLM"]}))
    ours.load(theirs.state_dict().items())
    ids = [(13 * i + i * i) % 101 for i in range(200)]
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(logits(ours, ids), expected, atol=2e-4, rtol=1e-4)
    assert expected.abs().max() > 1


@pytest.mark.model
def test_smollm_logits_equal_transformers_within_a_thousandth(
    smollm: Checkpoint, smollm_decoder: Decoder, smollm_reference: Any
) -> None:
    ids = smollm.text.encode_completion("In law, a domicile is the place whose rules a person lives under. " * 3)
    with torch.no_grad():
        expected = smollm_reference(torch.tensor([ids])).logits[0]
    actual = logits(smollm_decoder, ids)
    assert (actual - expected).abs().max() < 1e-3
    assert expected.abs().max() > 10
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.mark.model
def test_smollm_in_bfloat16_stays_close(smollm: Checkpoint, smollm_decoder: Decoder) -> None:
    ids = smollm.text.encode_completion("The capital of France is")
    exact = logits(smollm_decoder, ids)[-1].log_softmax(-1)
    rounded = Decoder(smollm.config, torch.bfloat16)
    rounded.load(smollm_decoder.places().items())
    rough = logits(rounded, ids)[-1].float().log_softmax(-1)
    assert (exact.exp() * (exact - rough)).sum() < 0.05  # KL divergence, nats


def weights(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor.clone()) for name, tensor in model.places().items())


def test_loading_puts_every_tensor_in_its_place() -> None:
    source, target = tiny_model(1, qkv_bias=True, qk_norm=True), tiny_model(2, qkv_bias=True, qk_norm=True)
    target.load(weights(source))
    for name, parameter in source.named_parameters():
        assert torch.equal(parameter, target.get_parameter(name)), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), "1 tensors are missing.*layers.1.mlp.up_proj"),
        (lambda w: w.update({"model.layers.2.mlp.up_proj.weight": torch.zeros(1)}), "layers.2.* no place"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(47)}), r"model.norm.weight is \[47\], expected \[48\]"),
        (lambda w: w["model.norm.weight"].fill_(float("nan")), "model.norm.weight holds NaN"),
        (
            lambda w: w["model.layers.0.self_attn.q_proj.weight"][0].fill_(float("inf")),
            "q_proj.weight holds NaN or inf",
        ),
    ],
    ids=["missing", "extra", "misshapen", "NaN", "infinite"],
)
def test_a_wrong_checkpoint_is_refused_naming_the_tensor(change: Any, message: str) -> None:
    tensors = dict(weights(tiny_model(1)))
    change(tensors)
    with pytest.raises(CorruptCheckpoint, match=message):
        tiny_model(2).load(tensors.items())


def test_a_tensor_that_is_there_twice_is_refused() -> None:
    source = tiny_model(1)
    with pytest.raises(CorruptCheckpoint, match="twice"):
        tiny_model(2).load([*weights(source), *weights(source)])


def test_a_repeated_shared_head_is_passed_over() -> None:
    source = tiny_model(1)
    tiny_model(2).load([*weights(source), ("lm_head.weight", source.embedding)])
