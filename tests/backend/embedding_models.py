"""Tiny random embedding models as folders, in the layouts of their releases, and what transformers makes of a text."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from tests.backend.tiny import tiny_tokenizer

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
FLAGS = {"lasttoken": "pooling_mode_lasttoken", "mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
TEXTS = ["the rain in the sea", "wind", "Grüße on the hill and the wind on the sea " * 4, "a b c", "the hill"]

DECODER: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
ENCODER: dict[str, Any] = {
    "vocab_size": 90, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip


def randomised(model: Any) -> Any:
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0.0, 0.2)
    return model.eval()


def say_how(
    folder: Path, pooling: str = "lasttoken", *, normalised: bool = True, max_tokens: int | None = None
) -> None:
    """The files of sentence-transformers."""
    steps = [TRANSFORMER, POOLING, *([NORMALIZE] if normalised else [])]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {flag: mode == pooling for mode, flag in FLAGS.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 48, **flags}))
    if max_tokens is not None:
        limits = {"max_seq_length": max_tokens, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(limits))


def write_decoder(folder: Path, pooling: str = "lasttoken", *, whole: bool = False, **how: Any) -> Any:
    """A Qwen3; whole: saved with its head's name, as a model that writes text. Returns transformers' model of it."""
    import transformers

    config = transformers.Qwen3Config(**DECODER)
    model = randomised((transformers.Qwen3ForCausalLM if whole else transformers.Qwen3Model)(config))
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", end)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    say_how(folder, pooling, **how)
    return model.model if whole else model


def write_encoder(folder: Path, pooling: str = "mean", *, kind: str = "Bert", **how: Any) -> Any:
    import transformers

    more = {"type_vocab_size": 1, "pad_token_id": 1} if kind == "XLMRoberta" else {}
    config = getattr(transformers, f"{kind}Config")(**{**ENCODER, **more})
    model = randomised(getattr(transformers, f"{kind}Model")(config))
    model.save_pretrained(folder)
    wordpieces().save(str(folder / "tokenizer.json"))
    say_how(folder, pooling, **how)
    return model


def write_scorer(folder: Path, kind: str = "Bert", *, labels: int = 1, **more: Any) -> Any:
    """A cross-encoder, whose head makes one number of a pair of texts. Returns transformers' model."""
    import transformers

    own = {"type_vocab_size": 1, "pad_token_id": 1} if kind != "Bert" else {}
    config = getattr(transformers, f"{kind}Config")(**{**ENCODER, **own, "num_labels": labels})
    model = randomised(getattr(transformers, f"{kind}ForSequenceClassification")(config))
    model.save_pretrained(folder)
    tokenizer = wordpieces()
    second = "$B:1 [SEP]:1" if kind == "Bert" else "[SEP] $B [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=f"[CLS] $A [SEP] {second}", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    if more:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
    return model


def scored(model: Any, folder: Path, one: str, other: str) -> float:
    """What transformers computes of a pair, before the logistic function."""
    pair = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(one, other)
    with torch.no_grad():
        logits = model(torch.tensor([pair.ids]), token_type_ids=torch.tensor([pair.type_ids])).logits
    return float(logits[0, 0])


def wordpieces() -> Tokenizer:
    """Letter by letter, with BERT's frame around a text."""
    letters = [chr(i) for i in range(ord("a"), ord("z") + 1)]
    vocabulary = ["[PAD]", "<pad>", "[CLS]", "[SEP]", "[UNK]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def reference(model: Any, ids: list[int], pooling: str, *, normalised: bool = True) -> Tensor:
    """What transformers' hidden states give, pooled by hand."""
    with torch.no_grad():
        states = model(torch.tensor([ids])).last_hidden_state[0]
    vector: Tensor = {"lasttoken": states[-1], "mean": states.mean(0), "cls": states[0]}[pooling]
    return vector / vector.norm() if normalised else vector
