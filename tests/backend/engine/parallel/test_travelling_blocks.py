"""Blocks of a prompt between engines on different numbers of ranks: the tokens are those of one engine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.engine.apart.frame import BlockFrame, Further
from backend.engine.core.sampling import SamplingParams
from backend.engine.engine import Engine
from backend.engine.parallel.leading_pages import Division
from backend.engine_config import EngineConfig
from tests.backend.engine.apart.moving import exported, finished, tokens_of
from tests.backend.parallel.hosted import HostedEngine
from tests.backend.tiny import generate, greedy, tiny_model, write_folder

LONG = [3 + (7 * i) % 300 for i in range(90)]
SEEDED = SamplingParams(max_tokens=10, temperature=0.9, top_p=0.95, seed=5, ignore_eos=True)
Ranks = tuple[int, int]  # of a stage, and stages
Engines = Callable[[int, Ranks], HostedEngine]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Of a model with so many KV heads, on such ranks; each is started once."""
    started: dict[tuple[int, Ranks], HostedEngine] = {}
    folders: dict[int, Path] = {}

    def engine(kv_heads: int, ranks: Ranks) -> HostedEngine:
        if kv_heads not in folders:
            shape = {
                "num_heads": 8, "num_kv_heads": kv_heads, "head_dim": 16, "hidden_size": 64, "num_layers": 3,
                "intermediate_size": 128, "tie_word_embeddings": False,
            }  # fmt: skip
            model = tiny_model(7, **shape)
            folders[kv_heads] = write_folder(tmp_path_factory.mktemp("model") / "model", model)
        if (kv_heads, ranks) not in started:
            config = EngineConfig(
                model=str(folders[kv_heads]),
                device="cpu",
                num_blocks=40,
                max_num_seqs=8,
                max_num_batched_tokens=32,
                threads=1,
                max_model_len=512,
                batch_invariant=True,
                tensor_parallel_size=ranks[0],
                pipeline_parallel_size=ranks[1],
            )
            started[kv_heads, ranks] = HostedEngine(config)
        return started[kv_heads, ranks]

    yield engine
    for each in started.values():
        each.close()


def layout(engine: Engine) -> Any:
    return engine.layout


def answered(
    engine: Engine, prompt: list[int], frames: list[BlockFrame], params: SamplingParams
) -> tuple[list[str], bool, list[int | None], int, int]:
    """Why frames were refused, whether all came, the tokens, blocks in use behind it, and what a scrub finds."""
    engine.add(0, prompt, params, fetches=True)
    engine.make_room()
    refused = [why for frame in frames if (why := engine.imports.write(0, frame))]
    whole = engine.imports.end(0, whole=not refused)
    steps = engine.stats.steps
    tokens = tokens_of(finished(engine))
    assert engine.stats.steps - steps <= params.max_tokens + (0 if whole else 4), "the prompt was computed again"
    return refused, whole, tokens, engine.blocks.num_used, engine.scrub()


@pytest.mark.parametrize(
    ("kv_heads", "source", "to"),
    [
        (4, (2, 1), (1, 1)), (4, (1, 1), (2, 1)), (4, (2, 2), (1, 1)), (4, (2, 1), (2, 2)), (1, (2, 1), (1, 1)),
        (1, (1, 1), (2, 1)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("params", [greedy(10), SEEDED], ids=["greedy", "seeded"])
def test_tokens_are_those_of_one_rank(
    engines: Engines, kv_heads: int, source: Ranks, to: Ranks, params: SamplingParams
) -> None:
    prompt = [len(str(params)) % 300, *LONG]
    assert engines(kv_heads, source).ask(layout) == engines(kv_heads, to).ask(layout)
    frames, further = engines(kv_heads, source).ask(exported, prompt)
    assert further is Further.NOTHING
    refused, whole, tokens, used, residue = engines(kv_heads, to).ask(answered, prompt, frames, params)
    assert (refused, whole, used, residue) == ([], True, 0, 0)
    assert tokens == engines(kv_heads, (1, 1)).ask(generate, [prompt], params)[0]
    assert engines(kv_heads, source).ask(Engine.scrub) == 0


def test_the_bytes_are_the_same_from_any_ranks(engines: Engines) -> None:
    prompt = [299, *LONG]
    found = [engines(4, ranks).ask(exported, prompt)[0] for ranks in ((1, 1), (2, 1), (2, 2))]
    assert found[0] == found[1] == found[2]
    assert len({frame.keys for frame in found[0]}) == len(found[0])


def test_a_part_that_is_missing_is_computed_by_all_ranks(engines: Engines) -> None:
    prompt = [298, *LONG]
    frames, _ = engines(4, (1, 1)).ask(exported, prompt)
    _, whole, tokens, used, residue = engines(4, (2, 1)).ask(answered, prompt, frames[:-1], greedy(10))
    assert (whole, used, residue) == (False, 0, 0)
    assert tokens == engines(4, (1, 1)).ask(generate, [prompt], greedy(10))[0]


def _windows(engine: Engine) -> Any:
    return engine.windows.make("one"), engine.windows.make("one")


def test_several_ranks_have_no_window(engines: Engines) -> None:
    assert engines(4, (2, 1)).ask(_windows) == (None, None)


@pytest.mark.parametrize(("ranks", "copies", "stages"), [(1, 1, 1), (2, 1, 1), (4, 2, 1), (4, 4, 2), (8, 2, 3)])
def test_what_is_divided_is_joined_again(ranks: int, copies: int, stages: int) -> None:
    division = Division(ranks, copies, stages, layers=7, block_size=4)
    whole = bytes(i % 251 for i in range(3 * 4 * 8 * 6))  # blocks, tokens, heads, bytes
    parts = division.divided(whole, 3)
    assert len(parts) == ranks // copies
    assert division.joined(parts, 3) == whole
    heads = 8 * copies // ranks
    assert parts[-1][: heads * 6] == whole[(8 - heads) * 6 : 8 * 6]  # the last heads of the first token
    places = [division.place(layer) for layer in range(7)]
    assert len(set(places)) == 7
    assert {first for first, _ in places} == {stage * ranks for stage in range(stages)}
    for layer in (-1, 7):
        with pytest.raises(ValueError, match="from 0 to 6"):
            division.place(layer)
