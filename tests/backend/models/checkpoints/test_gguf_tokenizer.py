"""SentencePiece vocabularies as GGUF keeps them, against the tokenizer that they were written from."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, trainers

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.models.checkpoints import gguf_tokenizer
from backend.models.checkpoints.gguf_tokenizer import BYTE, CONTROL, NORMAL, SPACE_MARK, UNKNOWN
from backend.models.checkpoints.tokenizer import Detokenizer, token_bytes

CORPUS = ["the rain in the sea and the wind on the hill", "Straße über den Fluß", "a  b   c\n\tx"] * 8
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def original() -> Tokenizer:
    """As Llama 2's: byte fallback, and a visible space before the text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), normalizers.Replace(" ", SPACE_MARK)])
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", "<s>", "</s>", *BYTES], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


ORIGINAL = original()


def metadata(**changes: Any) -> dict[str, Any]:
    """The earlier a token was merged, the higher its score, which is how the converters write it."""
    vocabulary = ORIGINAL.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL} | dict.fromkeys(BYTES, BYTE)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": [kinds.get(token, NORMAL) for token in tokens],
        **changes,
    }


READ, _ = gguf_tokenizer.read(metadata())


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.text(max_size=40), st.lists(st.sampled_from([*"the rain\n ", "über", "🙂"])).map("".join)))
def test_any_text_is_cut_as_by_the_original_and_comes_back(text: str) -> None:
    ids = READ.encode(text, add_special_tokens=False).ids
    assert ids == ORIGINAL.encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(token_bytes(READ))
    assert "".join(detokenizer.feed(i) for i in ids) == (f" {text}" if text else "")


def test_a_file_may_want_no_space_before_the_text() -> None:
    tokenizer, _ = gguf_tokenizer.read(metadata(**{"tokenizer.ggml.add_space_prefix": False}))
    detokenizer = Detokenizer(token_bytes(tokenizer))
    assert "".join(detokenizer.feed(i) for i in tokenizer.encode("the rain").ids) == "the rain"


def test_control_tokens_are_tokens_and_no_text() -> None:
    ids = READ.encode("<s>the</s>", add_special_tokens=False).ids
    assert (ids[0], ids[-1]) == (READ.token_to_id("<s>"), READ.token_to_id("</s>"))
    assert token_bytes(READ)[ids[0]] == b""


@pytest.mark.parametrize("key", ["tokens", "scores"])
def test_what_is_missing_is_named(key: str) -> None:
    meta = metadata()
    del meta[f"tokenizer.ggml.{key}"]
    with pytest.raises(CorruptCheckpoint, match=rf"tokenizer\.ggml\.{key}"):
        gguf_tokenizer.read(meta)


@pytest.mark.parametrize(("key", "message"), [("scores", "3 scores"), ("token_type", "3 token types")])
def test_lists_of_different_lengths_are_corrupt(key: str, message: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=message):
        gguf_tokenizer.read(metadata(**{f"tokenizer.ggml.{key}": [1, 1, 1]}))


@pytest.mark.parametrize("kind", [None, "bert", "t5", "rwkv"])
def test_another_kind_of_tokenizer_is_refused_naming_those_that_are_read(kind: str | None) -> None:
    with pytest.raises(UnsupportedModel, match=r"'gpt2'.*'llama'"):
        gguf_tokenizer.read({"tokenizer.ggml.model": kind})
