"""The card's host tier: the bytes of its twin, and an engine that works ahead says what one without a tier says."""

import random
from types import SimpleNamespace

import pytest
import torch

from backend.engine.cache import pages as in_pieces
from backend.engine.cache import pinned_pages
from backend.engine.cache.host_pages import HostPages
from backend.engine.cache.pinned_pages import PinnedPages
from backend.engine.core.host_tier import HostClear, HostLoad, HostOperation, HostSettle, HostStore
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.gpu.test_graph_runner import DEVICE, GRAPHS, SHAPES, ahead, assert_idle
from tests.backend.tiny import generate, greedy, tiny_engine, tiny_model

BLOCKS, SLOTS = 12, 12


@pytest.fixture(scope="module", params=["llama", "qwen2 with a window above"])
def model(request: pytest.FixtureRequest) -> Decoder:
    """Of a head size that the kernels have."""
    return tiny_model(**SHAPES[request.param])


def cache(widths: tuple[int, int], device: torch.device) -> SimpleNamespace:
    parts = [torch.randn(3, BLOCKS, 4, 2, width) for width in widths]
    return SimpleNamespace(keys=parts[0].to(device), values=parts[1].to(device))


def operations(draw: random.Random, number: int) -> list[HostOperation]:
    """Any; a load's blocks and slots are its own until it is settled, and some of its blocks leave first."""
    blocks, slots = draw.sample(range(BLOCKS), 7), draw.sample(range(SLOTS), 9)
    come = list(zip(slots[:5], blocks[:5], strict=True))
    leave = draw.sample(blocks[:6], draw.randrange(4))
    load = HostLoad(number, list(zip(leave, slots[5:], strict=False)), come)
    return [HostStore([(blocks[6], slots[8])]), load, HostSettle(number), HostClear(draw.sample(range(SLOTS), 2))]


@pytest.mark.parametrize("widths", [(8, 8), (12, 4)])
@pytest.mark.parametrize("piece", [1, 2000, 16 << 20])
def test_it_keeps_and_brings_what_its_twin_does(
    widths: tuple[int, int], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_pages, "PIECE_BYTES", piece)
    draw = random.Random()
    torch.manual_seed(draw.randrange(1 << 30))
    plain = cache(widths, torch.device("cpu"))
    card = SimpleNamespace(keys=plain.keys.clone().to(DEVICE), values=plain.values.clone().to(DEVICE))
    twin, pinned = HostPages(plain, SLOTS), PinnedPages(card, SLOTS)
    assert pinned.slot_bytes == twin.slot_bytes
    for number in range(20):
        for operation in operations(draw, number):
            twin.do(operation)
            pinned.do(operation)
            if isinstance(operation, HostLoad):
                while (seconds := pinned.arrived(number)) is None:
                    pass
                assert seconds >= 0
        every = list(range(SLOTS))
        assert pinned.residue(every) == twin.residue(every)
        assert torch.equal(pinned._slots, twin._slots)
        assert torch.equal(card.keys.cpu(), plain.keys)
        assert torch.equal(card.values.cpu(), plain.values)
    pinned.forget()
    assert pinned.residue(list(range(SLOTS))) == 0


@pytest.mark.parametrize("slots", [[], [3], [3, 4, 5], [5, 4, 3], [0, 1, 7, 8, 2]])
def test_runs_are_slots_that_follow_one_another(slots: list[int]) -> None:
    runs = list(pinned_pages._runs(slots))
    assert [first + step for _, first, count in runs for step in range(count)] == slots
    assert [at for at, _, _ in runs] == [sum(count for _, _, count in runs[:number]) for number in range(len(runs))]
    assert all(slots[at] != slots[at - 1] + 1 for at, _, _ in runs if at)


def test_a_piece_is_what_other_copies_of_the_cache_take() -> None:
    assert pinned_pages.PIECE_BYTES == in_pieces.PIECE_BYTES


def block_bytes(model: Decoder) -> int:
    """Of 16 tokens of keys and values in float32."""
    shape = model.config
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 4 * 16


@GRAPHS
@pytest.mark.parametrize("host", [60, 6])
def test_an_engine_ahead_with_few_blocks_says_the_same_again_and_again(model: Decoder, graphs: str, host: int) -> None:
    draw = random.Random()
    asked = [[draw.randrange(3, 320) for _ in range(draw.randrange(20, 90))] for _ in range(6)]
    params = greedy(20)
    expected = generate(tiny_engine(model), asked, params)
    engine = ahead(model, graphs=graphs, num_blocks=20, block_size=16, host_cache_bytes=host * block_bytes(model))
    assert engine.blocks.tier is not None
    engine.blocks.tier.pays = lambda copies=1: True  # type: ignore[method-assign]  # whatever is measured here
    for _ in range(2):
        assert generate(engine, asked, params) == expected
        fill = [[draw.randrange(3, 320) for _ in range(200)] for _ in range(2)]
        generate(engine, fill, greedy(1))
    assert engine.stats.host_bytes_stored > 0
    assert engine.stats.host_hits > 0 or host == 6
    assert engine.scrub() == 0
    assert_idle(engine)
