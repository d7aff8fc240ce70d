"""Heads compute what was published, written down here once more in float64, and read the layouts of releases."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.engine.cache.attention import KVCache, PagedAttention, Prefill
from backend.errors import ConfigError, CorruptCheckpoint, UnsupportedModel
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.config import ModelConfig
from backend.models.heads.head_config import config_of_head, eagle3_config, layers_read, mtp_config
from backend.models.heads.head_decoder import HeadDecoder
from backend.models.heads.load import dummy_head, load_head
from tests.backend.tiny import tiny_config, tiny_model, write_folder
from tests.backend.tiny_deepseek import stored_tensors, tiny_deepseek, write_deepseek
from tests.backend.tiny_heads import eagle3, head_json, mtp, stored, tiny_head, write_config, write_eagle3

TOKENS = 11
DEEPER = {"num_layers": 7}


@pytest.fixture(scope="module")
def base() -> ModelConfig:
    return tiny_config(**DEEPER)


def computed(head: HeadDecoder, ids: Tensor, features: Tensor) -> Tensor:
    """Logits behind all tokens of one sequence."""
    cache = KVCache(head.config, 2, 16, features.dtype, "cpu")
    slots, blocks = torch.arange(len(ids)), torch.tensor([0])
    head.features = features
    attention = PagedAttention(cache, slots, None, [Prefill(0, len(ids), 0, blocks)])
    logits: Tensor = head(ids, torch.arange(len(ids)), attention, torch.arange(len(ids)))
    return logits


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x: Tensor, theta: float) -> Tensor:
    """Rotary embedding, halves. x: [heads, tokens, dim]."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[1]).double(), theta ** (-torch.arange(half).double() / half))
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def attention_of(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal. [heads, tokens, dim] each."""
    scores = q @ k.transpose(1, 2) * scale
    scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), float("-inf"))
    return scores.softmax(-1) @ v


def published_eagle3(
    w: dict[str, Tensor], ids: Tensor, states: Tensor, *, heads: int, dim: int, vocab: int, normed_residual: bool
) -> tuple[Tensor, Tensor]:
    """The head of cnets.py (SafeAILab/EAGLE) and of vLLM's llama_eagle3.py: logits and what it leaves."""
    eps, layer = 1e-5, "midlayer."
    g = states @ w["fc.weight"].T
    e = rms(w["embed_tokens.weight"][ids], w[layer + "input_layernorm.weight"], eps)
    normed = rms(g, w[layer + "hidden_norm.weight"], eps)
    residual = normed if normed_residual else g
    x = torch.cat((e, normed), -1)
    q, k, v = ((x @ w[f"{layer}self_attn.{n}_proj.weight"].T).view(len(ids), -1, dim).transpose(0, 1) for n in "qkv")
    k, v = (part.repeat_interleave(heads // len(part), 0) for part in (k, v))
    out = attention_of(turned(q, 10_000.0), turned(k, 10_000.0), v, dim**-0.5).transpose(0, 1).reshape(len(ids), -1)
    hidden = residual + out @ w[layer + "self_attn.o_proj.weight"].T
    x = rms(hidden, w[layer + "post_attention_layernorm.weight"], eps)
    gate, up = (x @ w[f"{layer}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
    hidden = hidden + (torch.nn.functional.silu(gate) * up) @ w[layer + "mlp.down_proj.weight"].T
    own = rms(hidden, w["norm.weight"], eps) @ w["lm_head.weight"].T
    logits = torch.full((len(ids), vocab), float("-inf"), dtype=torch.float64)
    logits[:, torch.arange(len(w["d2t"])) + w["d2t"]] = own
    return logits, hidden


@pytest.mark.parametrize("normed", [False, True])
def test_an_eagle3_head_computes_what_was_published(base: ModelConfig, tmp_path: Path, normed: bool) -> None:
    head = tiny_head(eagle3(tmp_path, base, norm_before_residual=normed), dtype=torch.float64)
    torch.manual_seed(1)
    ids, states = torch.randint(0, 320, (TOKENS,)), torch.randn(TOKENS, 3 * base.hidden_size, dtype=torch.float64)
    head.found = {"d2t"}
    logits = computed(head, ids, head.combined(states))
    weights = stored(head)
    expected, left = published_eagle3(weights, ids, states, heads=3, dim=16, vocab=320, normed_residual=normed)
    assert torch.allclose(logits, expected, atol=1e-5)
    assert torch.allclose(head.outputs, left, atol=1e-5)
    other, _ = published_eagle3(weights, ids, states, heads=3, dim=16, vocab=320, normed_residual=not normed)
    assert not torch.allclose(logits, other, atol=1e-3)


def test_a_layer_for_multi_token_prediction_computes_what_was_published() -> None:
    """DeepSeek-AI 2024, equations 21 to 23, with a layer like the model's others, which are tested elsewhere."""
    model = tiny_deepseek("v3", 4)
    head = mtp(model.config)
    torch.manual_seed(2)
    ids, states = torch.randint(0, 320, (TOKENS,)), torch.randn(TOKENS, model.config.hidden_size)
    logits = computed(head, ids, head.combined(states))
    weights = {name: tensor.double() for name, tensor in stored(head).items()}
    prefix, eps = "model.layers.3.", 1e-6
    e = rms(weights[prefix + "embed_tokens.weight"][ids], weights[prefix + "enorm.weight"], eps)
    h = rms(states.double(), weights[prefix + "hnorm.weight"], eps)
    entering = torch.cat((e, h), -1) @ weights[prefix + "eh_proj.weight"].T
    block = head.layers[0]
    cache = KVCache(head.config, 2, 16, torch.float32, "cpu")
    attention = PagedAttention(cache, torch.arange(TOKENS), None, [Prefill(0, TOKENS, 0, torch.tensor([0]))])
    left = block(entering.float(), head.cos[:TOKENS], head.sin[:TOKENS], attention)
    normed = rms(left.double(), weights[prefix + "shared_head.norm.weight"], eps)
    assert torch.allclose(logits.double(), normed @ weights[prefix + "shared_head.head.weight"].T, atol=1e-3)
    assert torch.allclose(head.outputs.double(), normed, atol=1e-4)


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        ({}, {}),
        ({"layer": "layers.0."}, {}),
        ({"layer": "layers.0.", "body": "model."}, {"architectures": ["Eagle3LlamaForCausalLM"]}),
        ({"tables": False}, {"architectures": ["LlamaForCausalLM"]}),
    ],
    ids=str,
)
def test_the_layouts_of_releases_are_read(tmp_path: Path, names: dict[str, Any], changes: dict[str, Any]) -> None:
    model = tiny_model(**DEEPER)
    base = Checkpoint(write_folder(tmp_path / "base", model))
    head = tiny_head(eagle3(tmp_path / "other", model.config))
    folder = write_eagle3(tmp_path / "head", head, model.config, **names, **changes)
    found = load_head(config_of_head("eagle3", folder, base.config), folder, base, "float32")
    if "tables" in names:
        head.embedding.copy_(model.embedding)
    ids, states = torch.arange(5), torch.randn(5, 3 * 48)
    assert torch.equal(computed(found, ids, found.combined(states)), computed(head, ids, head.combined(states)))
    assert found.targets.tolist() == head.targets.tolist()


def test_what_speculators_writes_is_read(base: ModelConfig, tmp_path: Path) -> None:
    told = head_json(base)
    layer = {key: value for key, value in told.items() if key not in ("architectures", "draft_vocab_size")}
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["Eagle3Speculator"], "draft_vocab_size": 150, "transformer_layer_config": layer,
                "norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
            }
        )
    )  # fmt: skip
    config = eagle3_config(folder, base)
    assert (config.normed_residual, config.reads, config.draft_vocab) == (True, (1, 2, 4), 150)


def test_the_layers_are_those_named_or_the_usual_three() -> None:
    assert layers_read({}, 32) == (2, 16, 29)
    assert layers_read({"eagle_aux_hidden_state_layer_ids": [1, 5, 30]}, 32) == (1, 5, 30)
    assert layers_read({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}}, 32) == (2, 16, 29)
    for wrong in ([1, 5], [1, 5, 32], [-1, 5, 6], [5, 1, 6], [1, 1, 2]):
        with pytest.raises(ConfigError, match="not three of a model of 32 layers; name the head of this model"):
            layers_read({"eagle_aux_hidden_state_layer_ids": wrong}, 32)
    with pytest.raises(ConfigError, match="of a model of 4 layers"):
        layers_read({}, 4)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"hidden_size": 64}, ConfigError, "hidden states of size 64, and this one has 48; name the head of this"),
        ({"target_hidden_size": 96}, ConfigError, "hidden states of size 96, and this one has 48"),
        ({"vocab_size": 321}, ConfigError, "a vocabulary of 321, and this one has 320; name the head of this model"),
        ({"draft_vocab_size": 400}, ConfigError, "guesses 400 tokens, and the model has 320; name the head"),
        ({"num_hidden_layers": 2}, UnsupportedModel, "of 2 layers is not computed; name one of a single layer"),
        ({"attention_bias": True}, UnsupportedModel, "with biases is not computed; name one without"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, UnsupportedModel, "EAGLE-1 and 2.*; name an EAGLE-3 head"),
        (
            {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": None},
            ConfigError, "head is no EAGLE-3 head.*; name the folder of a head in --draft-model",
        ),
        ({"draft_vocab_size": "many"}, CorruptCheckpoint, "config.json of the head"),
    ],
    ids=str,
)  # fmt: skip
def test_a_head_of_another_model_or_form_is_refused(
    base: ModelConfig, tmp_path: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        eagle3_config(write_config(tmp_path / "head", base, **changes), base)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("fc.weight"), "1 tensors are missing, the first is fc.weight"),
        (lambda w: w.update({"midlayer.extra": torch.ones(2)}), "extra has no place in this architecture"),
        (lambda w: w.update({"fc.weight": torch.ones(48, 96)}), r"fc.weight is \[48, 96\], expected \[48, 144\]"),
        (lambda w: w.update({"d2t": w["d2t"] + 400}), "d2t names token .* of a model that has tokens 0 to 319"),
        (lambda w: w.update({"d2t": w["d2t"] - 1}), "d2t names token -1 of a model"),
        (lambda w: w["d2t"].__setitem__(1, -1), "d2t names a token twice; download the head again"),
        (lambda w: w["norm.weight"].fill_(float("nan")), "norm.weight holds NaN or infinity"),
    ],
)
def test_a_head_whose_weights_do_not_fit_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    model = tiny_model(**DEEPER)
    base = Checkpoint(write_folder(tmp_path / "base", model))
    folder = write_eagle3(tmp_path / "head", tiny_head(eagle3(tmp_path / "o", model.config)), model.config)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CorruptCheckpoint, match=said):
        load_head(eagle3_config(folder, model.config), folder, base, "float32")


@pytest.mark.parametrize("tables", [True, False])
def test_the_layer_behind_a_deepseeks_others_is_read(tmp_path: Path, tables: bool) -> None:
    model = tiny_deepseek("v3", 4)
    head = mtp(model.config)
    of_model = {name: t for name, t in stored_tensors(model).items() if not name.endswith("eh_proj.weight")}
    folder = write_deepseek(tmp_path / "v3", "v3", of_model | stored(head, tables=tables))
    base = Checkpoint(folder)
    found = load_head(config_of_head("mtp", folder, base.config), folder, base, "float32")
    if not tables:
        head.embedding.copy_(model.embedding)
        head.head.copy_(model.head)
    ids, states = torch.arange(5), torch.randn(5, 64)
    assert torch.equal(computed(found, ids, found.combined(states)), computed(head, ids, head.combined(states)))


def test_a_model_without_such_a_layer_is_refused(base: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"no layer for multi-token prediction.*; leave --speculation mtp out"):
        mtp_config(base)


def test_random_weights_guess_the_first_tokens(base: ModelConfig, tmp_path: Path) -> None:
    head = dummy_head(eagle3(tmp_path, base), "float32")
    logits = computed(head, torch.arange(4), torch.randn(4, 48))
    assert logits.shape == (4, 320)
    assert bool(logits[:, :150].isfinite().all())
    assert bool((logits[:, 150:] == float("-inf")).all())
