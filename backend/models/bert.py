"""What an encoder of BERT's kind looks like (Devlin et al. 2019; RoBERTa, Liu et al. 2019; XLM-R, Conneau et al. 2020).

Most embedding models in use are such: MiniLM, BGE, E5. Does not import torch; `encoder` computes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.errors import CorruptCheckpoint, UnsupportedModel

CLASSIFIERS = {
    "BertForSequenceClassification": "BertModel",
    "RobertaForSequenceClassification": "RobertaModel",
    "XLMRobertaForSequenceClassification": "XLMRobertaModel",
}
"""Encoders with a classification head, which as cross-encoders score a pair of texts (Nogueira & Cho 2019)."""
COUNTS_FROM_PADDING = {"BertModel": False, "RobertaModel": True, "XLMRobertaModel": True}


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Post-norm, learned positions, GELU, every token attends to every other.

    max_position: tokens of a text. first_position: the row, of so many in the position table, that its first token
    takes. scores: it has a head that scores a pair of texts; has_pooler: BERT's own, whose layers are named otherwise.
    separator: the token behind which the second text of a pair, and so its segment, begins; None without segments.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    max_position: int
    first_position: int
    table_rows: int
    type_vocab_size: int
    eps: float
    scores: bool = False
    has_pooler: bool = False
    separator: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "max_position"):
            if getattr(self, name) <= 0:
                raise CorruptCheckpoint(f"{name} is {getattr(self, name)}; it must be positive")
        if self.hidden_size % self.num_heads:
            raise CorruptCheckpoint(f"{self.hidden_size} wide does not divide into {self.num_heads} heads")

    def within(self, context: int | None) -> "EncoderConfig":
        """The same model for texts of at most `context` tokens, where that is less than its own."""
        return self if context is None else replace(self, max_position=min(context, self.max_position))


def is_encoder(config: Mapping[str, Any]) -> bool:
    return (config.get("architectures") or [None])[0] in COUNTS_FROM_PADDING


def scores_pairs(config: Mapping[str, Any]) -> bool:
    return (config.get("architectures") or [None])[0] in CLASSIFIERS


def squashes(config: Mapping[str, Any]) -> bool:
    """Whether a score is the logistic function of the head's output: unless the checkpoint says otherwise, as
    sentence-transformers has it."""
    told = config.get("sentence_transformers")
    named = told.get("activation_fn") if isinstance(told, dict) else None
    named = named or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    kind = str(named).rpartition(".")[2]
    if kind not in ("Sigmoid", "Identity"):
        raise UnsupportedModel(f"scores by {kind!r}; computed are Sigmoid and Identity")
    return kind == "Sigmoid"


def from_hugging_face(config: Mapping[str, Any], separator: int | None = None) -> EncoderConfig:
    """Read config.json of what `is_encoder` or `scores_pairs`; `separator`: see `EncoderConfig`.

    Raises UnsupportedModel for what is not computed exactly, CorruptCheckpoint for a missing or mistyped key.
    """
    if config.get("hidden_act", "gelu") != "gelu":
        raise UnsupportedModel(f"activation {config['hidden_act']!r}; in an encoder only gelu is computed")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise UnsupportedModel(f"positions {config['position_embedding_type']!r}; only absolute ones are computed")
    if config.get("is_decoder"):
        raise UnsupportedModel("an encoder that is used as a decoder is not computed")
    scores, named = scores_pairs(config), config["architectures"][0]
    if scores and (labels := _labels(config)) != 1:
        raise UnsupportedModel(f"a classifier of {labels} labels; pairs of texts are scored by one of a single label")
    base = CLASSIFIERS.get(named, named)
    try:
        first = int(config["pad_token_id"]) + 1 if COUNTS_FROM_PADDING[base] else 0
        return EncoderConfig(
            vocab_size=int(config["vocab_size"]),
            hidden_size=int(config["hidden_size"]),
            intermediate_size=int(config["intermediate_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=int(config["num_attention_heads"]),
            max_position=int(config["max_position_embeddings"]) - first,
            first_position=first,
            table_rows=int(config["max_position_embeddings"]),
            type_vocab_size=int(config["type_vocab_size"]),
            eps=float(config["layer_norm_eps"]),
            scores=scores,
            has_pooler=scores and base == "BertModel",
            separator=separator,
        )
    except KeyError as missing:
        raise CorruptCheckpoint(f"config.json has no {missing.args[0]}") from None
    except (TypeError, ValueError) as bad:
        raise CorruptCheckpoint(f"config.json: {bad}") from None


def _labels(config: Mapping[str, Any]) -> int:
    """transformers writes labels by number, and has two where a file names none."""
    by_number = config.get("id2label")
    return len(by_number) if isinstance(by_number, Mapping) else int(config.get("num_labels", 2))


def segments(ids: list[int], separator: int | None) -> list[int]:
    """For each token, whether it is behind the first separator."""
    end = ids.index(separator) + 1 if separator is not None and separator in ids else len(ids)
    return [0] * end + [1] * (len(ids) - end)
