"""Tokenizers out of GGUF metadata: byte-level BPE with its merges, and SentencePiece with its scores.

Source: ggml/docs/gguf.md and llama.cpp's vocabulary code, for what the numbers mean.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from backend.errors import CorruptCheckpoint, UnsupportedModel

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type
SPACE_MARK = "\u2581"  # SentencePiece's visible space

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_ENGLISH_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {  # tokenizer.ggml.pre -> how text is cut before BPE; the models' own published patterns
    "llama-bpe": rf"{_ENGLISH_ENDINGS}|{_WORDS}|\p{{N}}{{1,3}}|{_TAIL}",
    "qwen2": rf"{_ENGLISH_ENDINGS}|{_WORDS}|\p{{N}}|{_TAIL}",
}


def is_sentencepiece(meta: Mapping[str, Any]) -> bool:
    return meta.get("tokenizer.ggml.model") == "llama"


def read(meta: Mapping[str, Any]) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, without a BOS, and the spelling of each id.

    Raises UnsupportedModel for a kind or pre-split that we do not reproduce exactly, CorruptCheckpoint.
    """
    kind = meta.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(f"GGUF tokenizer {kind!r}; byte-level BPE ('gpt2') and SentencePiece ('llama') are read")
    try:
        tokens: list[str] = meta["tokenizer.ggml.tokens"]
        types: list[int] = meta.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
        if len(types) != len(tokens):
            raise CorruptCheckpoint(f"{len(types)} token types for {len(tokens)} tokens")
        tokenizer = _sentencepiece(meta, tokens, types) if is_sentencepiece(meta) else _byte_level(meta, tokens)
    except KeyError as missing:
        raise CorruptCheckpoint(f"GGUF metadata has no {missing.args[0]}") from None
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    defined = [t for t, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in defined])
    return tokenizer, tokens


def prepend_bos(tokenizer: Tokenizer, token: str, token_id: int) -> None:
    tokenizer.post_processor = TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", token, "$B"], special_tokens=[(token, token_id)]
    )


def _bpe(tokens: list[str], merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
    try:
        return Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, **options))
    except Exception as broken:  # the Rust side raises a bare Exception
        raise CorruptCheckpoint(f"tokenizer: {broken}") from None


def _byte_level(meta: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    pairs = [pair.partition(" ") for pair in meta["tokenizer.ggml.merges"]]
    merges = [(left, right) for left, _, right in pairs]
    tokenizer = _bpe(tokens, merges, ignore_merges=meta.get("tokenizer.ggml.pre") == "llama-bpe")
    tokenizer.pre_tokenizer = _pre_tokenizer(meta.get("tokenizer.ggml.pre", "default"))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(name: str) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name in SPLITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLITS[name]), "isolated"), byte_level])
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if name == "gpt-2":
        return gpt2
    known = ", ".join(sorted({*SPLITS, "smollm", "gpt-2"}))
    raise UnsupportedModel(f"GGUF pre-tokenizer {name!r} is not one of {known}")


def _sentencepiece(meta: Mapping[str, Any], tokens: list[str], types: list[int]) -> Tokenizer:
    """SentencePiece's BPE (Kudo & Richardson 2018) merges the neighbours whose union scores highest; as ranked merges,
    every way to halve a token, by its score. What has no token becomes bytes."""
    scores: list[float] = meta["tokenizer.ggml.scores"]
    if len(scores) != len(tokens):
        raise CorruptCheckpoint(f"{len(scores)} scores for {len(tokens)} tokens")
    known = {token: i for i, token in enumerate(tokens) if types[i] in (NORMAL, USER_DEFINED)}
    ranked = sorted((i for i in known.values() if types[i] == NORMAL), key=lambda i: -scores[i])
    merges: list[tuple[str, str]] = []
    for i in ranked:
        token = tokens[i]
        halves = ((token[:at], token[at:]) for at in range(1, len(token)))
        merges += sorted(
            (h for h in halves if h[0] in known and h[1] in known), key=lambda h: (known[h[0]], known[h[1]])
        )
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    tokenizer = _bpe(tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in types)
    visible = normalizers.Replace(" ", SPACE_MARK)
    prefixed = meta.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), visible]) if prefixed else visible
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer
