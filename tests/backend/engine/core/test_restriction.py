"""What a request forbids is not drawn, alone, beside a grammar, and where nothing is left."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.engine.core.progress import Finish
from backend.engine.core.restriction import Restriction
from backend.engine.core.sampling import SamplingParams
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.toy_grammar import ToyGrammars
from tests.backend.tiny import generate, greedy, tiny_engine

WORDS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), max_size=5).map(tuple)


def allowed(restriction: Restriction, output: list[int]) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(restriction.allowed(output).view(np.uint8), bitorder="little")).tolist())


@given(WORDS, st.lists(st.integers(0, 40), max_size=6, unique=True).map(tuple), st.lists(st.integers(0, 5), max_size=8))
def test_what_may_follow_is_what_the_definitions_say(
    bad: tuple[tuple[int, ...], ...], only: tuple[int, ...], output: list[int]
) -> None:
    params = SamplingParams(max_tokens=1, allowed_token_ids=only, bad_words=bad)
    expected = {
        token for token in (only or range(41)) if not any((*output, token)[-len(word) :] == word for word in bad)
    }
    assert allowed(Restriction(params, 41), output) == expected
    assert allowed(Restriction(params, 41), output) == expected  # asking changes nothing


def test_words_are_never_written_and_nothing_else_is_forbidden(model: Decoder) -> None:
    (free,) = generate(tiny_engine(model), [[1, 2, 3]], greedy(20))
    words = ((free[0],), (free[5], free[6]))
    (said,) = generate(tiny_engine(model), [[1, 2, 3]], greedy(20, bad_words=words))
    assert free[0] not in said
    assert (free[5], free[6]) not in pairwise(said)
    unheard = tuple((t, t) for t in range(320) if (t, t) not in pairwise(free))
    assert generate(tiny_engine(model), [[1, 2, 3]], greedy(20, bad_words=unheard)) == [free]


def test_only_what_is_allowed_is_drawn(model: Decoder) -> None:
    params = SamplingParams(max_tokens=60, temperature=2.0, seed=3, allowed_token_ids=(7, 300, 12), ignore_eos=True)
    (said,) = generate(tiny_engine(model), [[1, 2, 3]], params)
    assert set(said) == {7, 300, 12}


@pytest.mark.parametrize(
    ("params", "finish", "tokens"),
    [
        ({"allowed_token_ids": (4, 5), "grammar": "3"}, Finish.NOTHING_LEFT, [4, 5, 4, None]),  # its end is not allowed
        ({"allowed_token_ids": (4, 5, 3), "grammar": "3"}, Finish.STOP, [4, 5, 4, 3]),
        ({"allowed_token_ids": (9,), "bad_words": ((9, 9),)}, Finish.NOTHING_LEFT, [9, None]),
        ({"allowed_token_ids": (3, 9), "min_tokens": 2}, Finish.STOP, [9, 9, 3]),
        ({"allowed_token_ids": (3,), "min_tokens": 2}, Finish.STOP, [3]),  # nothing else could come
    ],
)
def test_where_nothing_is_left_the_sequence_ends_and_says_so(
    model: Decoder, params: dict[str, Any], finish: Finish, tokens: list[int | None]
) -> None:
    engine = tiny_engine(model, frozenset({3}))
    grammars: Any = ToyGrammars()
    engine._grammars = grammars
    engine.add(0, [1, 2], greedy(8, ignore_eos=False, logit_bias=((4, 50.0), (5, 40.0), (3, 60.0)), **params))
    engine.add(1, [1, 2], greedy(8))
    said: dict[int, list[Any]] = {0: [], 1: []}
    while engine.has_work:
        for item in engine.step():
            said[item.id].append(item)
    assert [item.token for item in said[0]] == tokens
    assert said[0][-1].finish is finish
    assert [i.token for i in said[1]] == generate(tiny_engine(model), [[1, 2]], greedy(8))[0]
    assert engine.blocks.num_used == 0
