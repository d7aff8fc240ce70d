"""What an engine can do at one time: a host tier, guesses, commitments, and prompts that come from another engine. The
tokens are those of an engine that does none of it, and each commitment is to the state of its own token."""

import random
from typing import Any

import pytest

from backend.engine.core.sampling import SamplingParams
from backend.engine.drafting.ngram_drafter import NgramDrafter
from backend.engine.engine import Engine
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.apart.moving import fetched
from tests.backend.engine.test_activations import assert_committed
from tests.backend.tiny import run, tiny_engine, tiny_model

BLOCK, HOST_BLOCKS = 4, 64
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "host": {"host": True},
    "guesses": {"guesses": True},
    "host and guesses": {"host": True, "guesses": True},
    "host, guesses, few blocks": {"host": True, "guesses": True, "num_blocks": 28},
    "deterministic": {"host": True, "batch_invariant": True, "num_blocks": 28},
}


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model(3, hidden_size=192, head_dim=16, num_heads=4)


def prompts(seed: int) -> list[list[int]]:
    """Some begin alike; one repeats itself, so that there is something to guess."""
    draw = random.Random(seed)
    common = [draw.randrange(3, 320) for _ in range(13)]
    own = [[draw.randrange(3, 320) for _ in range(draw.randrange(1, 20))] for _ in range(4)]
    return [common + own[0], common + own[1], own[2], own[3], [7, 8, 9, 7, 8, 9, 7, 8, 9]]


def asked(seed: int) -> list[SamplingParams]:
    draw = random.Random(seed)
    return [
        SamplingParams(
            max_tokens=40,
            ignore_eos=True,
            commits=True,
            seed=draw.randrange(1 << 30),
            temperature=draw.choice((0.0, 0.8)),
        )
        for _ in range(5)
    ]


def engine_of(model: Decoder, *, host: bool = False, guesses: bool = False, **changes: Any) -> Engine:
    block_bytes = BLOCK * model.config.kv_bytes_per_token(4)
    made = tiny_engine(
        model,
        block_size=BLOCK,
        host_cache_bytes=HOST_BLOCKS * block_bytes * host,
        drafter=NgramDrafter() if guesses else None,
        **{"num_blocks": 128, **changes},
    )
    if made.blocks.tier is not None:
        made.blocks.tier.pays = lambda copies=1: True  # type: ignore[method-assign]  # whatever is measured here
    return made


def answers(engine: Engine, texts: list[list[int]], params: list[SamplingParams], seed: int) -> dict[int, list[Any]]:
    """All at once, preempted now and then."""
    draw, found = random.Random(seed), dict[int, list[Any]]()
    for id, (prompt, one) in enumerate(zip(texts, params, strict=True)):
        engine.add(id, prompt, one)
    while engine.has_work:
        for item in engine.step():
            found.setdefault(item.id, []).append((item.token, item.activations))
        if engine.scheduler.running and draw.random() < 0.15:
            engine.scheduler.preempt(draw.choice(engine.scheduler.running))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", WAYS)
def test_tokens_and_commitments_are_those_of_an_engine_that_does_one_thing(model: Decoder, way: str, seed: int) -> None:
    texts, params = prompts(seed), asked(seed)
    expected = [run_alone(model, prompt, one) for prompt, one in zip(texts, params, strict=True)]
    engine = engine_of(model, **WAYS[way])
    for again in range(2):  # the second time from the prefix cache, on the device and on the host
        found = answers(engine, texts, params, seed + again)
        assert [[token for token, _ in found[id]] for id in range(5)] == expected
        assert_committed(model, found, texts)
    assert engine.scrub() == 0 and engine.blocks.num_used == 0


def run_alone(model: Decoder, prompt: list[int], params: SamplingParams) -> list[int]:
    engine = tiny_engine(model)
    engine.add(0, prompt, params)
    return run(engine)[0]


@pytest.mark.parametrize("seed", range(4))
def test_blocks_from_another_engine_overwrite_none_that_the_host_is_to_keep(model: Decoder, seed: int) -> None:
    """Room for them is made by evicting blocks, whose copies are made before the first frame is written."""
    draw = random.Random(seed)
    texts = [[draw.randrange(3, 320) for _ in range(29)] for _ in range(5)]
    one = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.0)
    expected = [run_alone(model, prompt, one) for prompt in texts]
    source, engine = engine_of(model), engine_of(model, host=True, num_blocks=24)
    for turn in (*range(5), *range(5)):
        if turn % 2:
            fetched(source, engine, texts[turn], one, turn)
        else:
            engine.add(turn, texts[turn], one)
        assert run(engine)[turn] == expected[turn]
    assert engine.stats.host_hits > 0, "evicted blocks were found on the host"
    assert engine.scrub() == 0
