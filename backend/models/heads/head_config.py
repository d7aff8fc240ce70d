"""What a head looks like that guesses from a model's hidden states, and whether it fits that model.

Two kinds are read: EAGLE-3 (Li et al. 2025, arXiv 2503.01840), a checkpoint of its own as SafeAILab/EAGLE, SpecForge
and speculators write it, and the layer for multi-token prediction that DeepSeek-V3 ships behind its others (DeepSeek-AI
2024, arXiv 2412.19437, section 2.2). Both have one decoder layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from backend.errors import ConfigError, CorruptCheckpoint, UnsupportedModel
from backend.models.checkpoints.safetensors import read_json
from backend.models.config import ModelConfig, from_hugging_face

EAGLE3, MTP = "eagle3", "mtp"
KINDS = (EAGLE3, MTP)
ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
LAYERS_READ = 3  # of the model, by an EAGLE-3 head


@dataclass(frozen=True)
class HeadConfig(ModelConfig):
    """A head's layer, as `ModelConfig` has it.

    ``kind``: EAGLE3 or MTP. ``reads``: before which layers of the model its hidden states are taken; empty: what the
    model's head reads. ``state_size``: of one of them. ``draft_vocab``: tokens that an EAGLE-3 head may guess; the
    checkpoint's ``d2t`` says which of the model's they are. ``normed_residual``: the layer adds to the normalised
    hidden state instead of the hidden state.
    """

    kind: str = EAGLE3
    reads: tuple[int, ...] = ()
    state_size: int = 0
    draft_vocab: int = 0
    normed_residual: bool = False

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """As of any model; the attention of an EAGLE-3 head reads embedding and hidden state side by side."""
        found = super().matrices
        return found | {"qkv": (found["qkv"][0], 2 * self.hidden_size)} if self.kind == EAGLE3 else found

    @property
    def read_size(self) -> int:
        """Numbers of the model's hidden states that it reads of a token."""
        return self.state_size * max(1, len(self.reads))

    @property
    def joined_numbers(self) -> int:
        """Numbers of the matrix that makes the layer's input of the hidden states."""
        return self.hidden_size * (self.read_size if self.kind == EAGLE3 else 2 * self.hidden_size)


def config_of_head(kind: str, folder: Path, base: ModelConfig) -> HeadConfig:
    """The configuration of an EAGLE-3 head in `folder`, or of the layer that `base` has itself.

    Raises what `eagle3_config` and `mtp_config` do.
    """
    return eagle3_config(folder, base) if kind == EAGLE3 else mtp_config(base)


def eagle3_config(folder: Path, base: ModelConfig) -> HeadConfig:
    """Read the config.json of an EAGLE-3 head for `base`.

    Raises:
        ConfigError: it is no such head, or one of another model.
        UnsupportedModel: it is of a form that is not computed.
        CorruptCheckpoint, ModelNotFound: it cannot be read.
    """
    config = read_json(folder / "config.json")
    names = config.get("architectures") or [None]
    if names[0] not in ARCHITECTURES and "draft_vocab_size" not in config:
        raise ConfigError(
            f"{folder.name} is no EAGLE-3 head: its config.json has neither draft_vocab_size nor one of the "
            f"architectures {', '.join(ARCHITECTURES)}; name the folder of a head in --draft-model"
        )
    if isinstance(config.get("transformer_layer_config"), dict):  # as speculators writes it
        config = {**config, **config["transformer_layer_config"]}
    _require_computed(config)
    try:
        plain = from_hugging_face({**config, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1})
        state_size = int(config.get("target_hidden_size") or plain.hidden_size)
        draft_vocab = int(config.get("draft_vocab_size") or plain.vocab_size)
        reads = layers_read(config, base.num_layers)
    except (TypeError, ValueError) as bad:
        raise CorruptCheckpoint(f"config.json of the head: {bad}") from None
    _require_fit(plain, state_size, draft_vocab, base)
    return _of(
        plain,
        kind=EAGLE3,
        reads=reads,
        state_size=state_size,
        draft_vocab=draft_vocab,
        vocab_size=base.vocab_size,
        max_position=base.max_position,
        normed_residual=bool(config.get("norm_before_residual")),
        windows=(),
        tie_word_embeddings=True,
    )


def mtp_config(base: ModelConfig) -> HeadConfig:
    """The first layer for multi-token prediction of `base`. Raises ConfigError if its checkpoint has none."""
    if not base.predicting_layers:
        raise ConfigError(
            "this model has no layer for multi-token prediction (num_nextn_predict_layers); leave --speculation mtp "
            "out, or name another way to guess"
        )
    experts = base.experts
    if experts is not None:
        experts = replace(experts, dense_layers=frozenset())
    return _of(
        base,
        kind=MTP,
        state_size=base.hidden_size,
        draft_vocab=base.vocab_size,
        num_layers=1,
        experts=experts,
        first_layer=base.num_layers,
        all_layers=0,
        windows=(),
        tie_word_embeddings=True,
    )


def layers_read(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Before which layers of a model of so many the hidden states are taken.

    ``eagle_aux_hidden_state_layer_ids`` counts so itself at the top of config.json (vLLM, speculators); within
    ``eagle_config`` it names the layers whose output it is (SGLang, SpecForge). By default 2, n // 2 and n - 3, as the
    releases were trained. Raises ConfigError for layers that the model does not have, or too few of them.
    """
    own = config.get("eagle_aux_hidden_state_layer_ids")
    within = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if own:
        found = tuple(int(layer) for layer in own)
    elif within:
        found = tuple(int(layer) + 1 for layer in within)
    else:
        found = (2, layers // 2, layers - 3)
    if len(found) != LAYERS_READ or list(found) != sorted(set(found)) or not 0 <= found[0] <= found[-1] < layers:
        raise ConfigError(
            f"the head reads the hidden states before layers {', '.join(map(str, found))}, which are not three of a "
            f"model of {layers} layers; name the head of this model in --draft-model"
        )
    return found


def _require_computed(config: Mapping[str, Any]) -> None:
    """Raises UnsupportedModel."""
    if int(config.get("num_hidden_layers") or 1) != 1:
        raise UnsupportedModel(
            f"an EAGLE-3 head of {config['num_hidden_layers']} layers is not computed; name one of a single layer"
        )
    if config.get("attention_bias") or config.get("bias"):
        raise UnsupportedModel("an EAGLE-3 head with biases is not computed; name one without")
    if not (config.get("eagle_config") or {}).get("use_aux_hidden_state", True):
        raise UnsupportedModel(
            "a head that reads the last hidden state alone (EAGLE-1 and 2) is not computed; name an EAGLE-3 head"
        )


def _require_fit(head: ModelConfig, state_size: int, draft_vocab: int, base: ModelConfig) -> None:
    """Raises ConfigError."""
    for what, own, other in (
        ("hidden states of size", state_size, base.hidden_size),
        ("a vocabulary of", head.vocab_size, base.vocab_size),
    ):
        if own != other:
            raise ConfigError(
                f"the head is of a model with {what} {own}, and this one has {other}; name the head of this model in "
                "--draft-model"
            )
    if not 0 < draft_vocab <= base.vocab_size:
        raise ConfigError(
            f"the head guesses {draft_vocab} tokens, and the model has {base.vocab_size}; name the head of this model "
            "in --draft-model"
        )


def _of(model: ModelConfig, **changes: Any) -> HeadConfig:
    return HeadConfig(**{**{field.name: getattr(model, field.name) for field in fields(ModelConfig)}, **changes})
