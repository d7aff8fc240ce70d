"""The runner that works ahead takes the dense kernel for parts of prompts, and says what the plain engine says.

With small steps, and with the twins in the place of kernels, whose float32 leaves no room for doubt; the library that
the kernel is from has no float32, so on a card `test_paged_layers` and the benchmarks of prompts stand for this.
"""

import random
from collections.abc import Iterator

import pytest

from backend.engine.core import scheduler
from backend.engine.gpu import graph_runner, paged_layers
from backend.engine.gpu.graph_runner import GraphRunner
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.gpu.test_graph_runner import SHAPES, ahead, assert_idle
from tests.backend.tiny import generate, greedy, tiny_engine, tiny_model

STEP = 16


class OfALibrary(GraphRunner):
    _has_dense = True  # type: ignore[assignment]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest) -> Decoder:
    return tiny_model(**SHAPES[request.param])


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Rows and tokens of history of each part of a prompt that took the dense kernel."""
    monkeypatch.setattr(scheduler, "PART_STEP", STEP)
    monkeypatch.setattr(paged_layers, "HISTORY_STEP", STEP)
    monkeypatch.setattr(graph_runner, "HISTORY_STEP", STEP)
    monkeypatch.setattr(paged_layers, "HISTORY_PART", 2 * STEP)
    monkeypatch.setattr(paged_layers, "DENSE_FROM", STEP)
    monkeypatch.setattr(paged_layers, "RESUMED_PAIRS", STEP * STEP)
    monkeypatch.setattr(paged_layers, "DENSE_STEP", 8)
    taken: list[tuple[int, int]] = []
    found = paged_layers.resumed_prompts

    def counted(start: int, parts: list[tuple[int, int]]) -> tuple[paged_layers.ResumedPrompt, ...]:
        taken.extend(parts)
        return found(start, parts)

    monkeypatch.setattr(graph_runner, "resumed_prompts", counted)
    yield taken


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random()
    return [[draw.randrange(3, 320) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("budget", [40, 64])
def test_long_prompts_beside_decodes(
    model: Decoder, resumed: list[tuple[int, int]], budget: int, block_size: int
) -> None:
    asked = prompts(200, 5, 150, 30, 161)
    expected = generate(tiny_engine(model), asked, greedy(12))
    engine = ahead(
        model, runs_on=OfALibrary, max_num_batched_tokens=budget, block_size=block_size, num_blocks=1200 // block_size
    )
    assert generate(engine, asked, greedy(12)) == expected
    assert len(resumed) > 5
    assert all(history % STEP == 0 and rows >= STEP for rows, history in resumed)
    assert_idle(engine)


def test_a_prompt_found_in_the_prefix_cache_goes_on_behind_it(model: Decoder, resumed: list[tuple[int, int]]) -> None:
    whole = prompts(190)[0]
    again = whole[:96] + prompts(70)[0]
    engine = ahead(model, runs_on=OfALibrary)
    for asked in (whole, again):
        assert generate(engine, [asked], greedy(8)) == generate(tiny_engine(model), [asked], greedy(8))
    assert (64, 96) in resumed or (70, 96) in resumed


def test_preempted_and_computed_again(model: Decoder, resumed: list[tuple[int, int]]) -> None:
    asked = prompts(100, 120, 90, 110)
    expected = generate(tiny_engine(model), asked, greedy(30))
    engine = ahead(model, runs_on=OfALibrary, num_blocks=24)
    assert generate(engine, asked, greedy(30)) == expected
    assert engine.stats.preemptions > 0
    assert resumed


def test_none_where_a_row_has_to_have_the_same_bits_in_every_step(
    model: Decoder, resumed: list[tuple[int, int]]
) -> None:
    asked = prompts(200)
    assert generate(ahead(model, invariant=True), asked, greedy(4)) == generate(tiny_engine(model), asked, greedy(4))
    assert not resumed


def test_none_where_blocks_do_not_end_at_whole_steps(model: Decoder, resumed: list[tuple[int, int]]) -> None:
    asked = prompts(200)
    engine = ahead(model, runs_on=OfALibrary, block_size=24)
    assert generate(engine, asked, greedy(4)) == generate(tiny_engine(model), asked, greedy(4))
    assert not resumed
