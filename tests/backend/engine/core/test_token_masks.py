"""Masks of a step: every guided sequence gets its own, however they are computed, and a failing one harms no other."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher

from backend.engine.core.grammar import GrammarMatcher
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.token_masks import Allowed, MaskedGrammars
from backend.engine.engine import Engine
from backend.engine_config import EngineConfig
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.tokenizer import TextModel
from backend.models.decoders.decoder import Decoder
from tests.backend.tiny import write_folder

DIGITS, WORD = LLMatcher.grammar_from_regex("[0-9]{3}"), LLMatcher.grammar_from_regex("(sea|rain)")


@pytest.fixture(scope="module")
def text(folder: Path) -> TextModel:
    return Checkpoint(folder).text


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def grammars(request: pytest.FixtureRequest, text: TextModel) -> Iterator[MaskedGrammars]:
    yield MaskedGrammars(text, 320, threads=request.param)


def tokens(allowed: Allowed) -> dict[int, set[int]]:
    assert allowed.bits.shape == (len(allowed.ids), 10)
    assert allowed.bits.is_contiguous()
    rows = np.unpackbits(allowed.bits.numpy().view(np.uint8), axis=1, bitorder="little")
    return {id: set(np.flatnonzero(row).tolist()) for id, row in zip(allowed.ids, rows, strict=True)}


def started(grammars: MaskedGrammars, grammar: str, after: int | None = None) -> GrammarMatcher:
    matcher = grammars.matcher(grammar, after)
    matcher.wait(10)
    return matcher


def test_each_sequence_gets_the_tokens_of_its_own_place(grammars: MaskedGrammars, text: TextModel) -> None:
    digits = {i for i, raw in enumerate(text.token_bytes) if raw and raw.isdigit()}
    at_start, behind_two, at_end = (started(grammars, DIGITS) for _ in range(3))
    one = min(digits)
    for matcher, count in ((behind_two, 2), (at_end, 3)):
        assert all(matcher.accept(one) for _ in range(count))
    word = started(grammars, WORD)
    allowed, failed = grammars.allowed([(7, at_start), (3, word), (5, behind_two), (9, at_end)])
    found = tokens(allowed)
    assert failed == []
    assert found[7] == found[5] == digits
    assert found[9] == set(text.eos_ids)
    assert {text.token_bytes[i][:1] for i in found[3]} == {b"s", b"r"}


def test_where_a_grammar_does_not_hold_yet_everything_is_allowed(grammars: MaskedGrammars) -> None:
    thinking = started(grammars, DIGITS, after=40)
    assert grammars.allowed([(1, thinking)])[0].ids == []
    assert thinking.accept(200)
    assert grammars.allowed([(1, thinking)])[0].ids == []
    assert thinking.accept(40)
    assert grammars.allowed([(1, thinking)])[0].ids == [1]


def test_a_grammar_that_fails_leaves_the_others_theirs(grammars: MaskedGrammars) -> None:
    broken, lost = started(grammars, "{"), started(grammars, DIGITS)
    assert not lost.accept(0)  # an end token where none may come
    well = started(grammars, DIGITS)
    alone = tokens(grammars.allowed([(3, well)])[0])
    allowed, failed = grammars.allowed([(1, broken), (2, lost), (3, well)])
    assert sorted(failed) == [1, 2]
    assert tokens(allowed) == alone


def test_rows_behind_the_tokenizers_last_token_are_never_allowed(grammars: MaskedGrammars, text: TextModel) -> None:
    anything = started(grammars, LLMatcher.grammar_from_regex("(.|\n)*"))
    (found,) = tokens(grammars.allowed([(1, anything)])[0]).values()
    assert len(found) > 200
    assert max(found) < text.vocab_size


def test_an_end_is_withheld_only_where_something_else_may_come(grammars: MaskedGrammars, text: TextModel) -> None:
    some_digits = LLMatcher.grammar_from_regex("[0-9]*")
    open_end, spared, over = (started(grammars, g) for g in (some_digits, some_digits, DIGITS))
    digit = text.tokenizer.token_to_id("7")
    assert all(over.accept(digit) for _ in range(3))
    allowed, _ = grammars.allowed([(1, open_end), (2, over), (3, spared)])
    ends = text.eos_ids
    assert ends <= tokens(allowed)[1]
    allowed.withhold({1: ends, 2: ends})
    found = tokens(allowed)
    assert digit in found[1] and not ends & found[1]
    assert found[2] == ends
    assert ends <= found[3]


def test_random_weights_take_a_grammar_where_a_tokenizer_lies_beside_their_shape(
    model: Decoder, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "shape", model)
    (folder / "model.safetensors").unlink()
    settings = EngineConfig(model=str(folder), load_format="dummy", num_blocks=32)
    engine = Engine.from_checkpoint(Checkpoint(folder), settings)
    engine.add(0, [5, 6], SamplingParams(max_tokens=9, grammar=DIGITS, min_tokens=2))
    said = []
    while engine.has_work:
        said += [item.token for item in engine.step()]
    assert Checkpoint(folder).text.decode([t for t in said if t is not None]).isdigit()
    (folder / "tokenizer.json").unlink()
    assert Engine.from_checkpoint(Checkpoint(folder), settings)._grammars is None
