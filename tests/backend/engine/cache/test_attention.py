"""Attention over the paged cache in plain torch: what a window saves, and that it changes nothing."""

import random
from typing import Any

import pytest
import torch

from backend.engine.cache.attention import Decodes, KVCache, PagedAttention, Prefill
from backend.models.decoders.decoder import Decoder
from tests.backend.tiny import generate, greedy, tiny_config, tiny_engine, tiny_model

SIZE, BLOCKS = 4, 40


def cache(window: int | None) -> KVCache:
    found = KVCache(tiny_config(num_layers=1, windows=(window,)), BLOCKS, SIZE, torch.float64, "cpu")
    found.keys.normal_()
    found.values.normal_()
    return found


def expected(of: KVCache, table: list[int], positions: range, q: torch.Tensor, window: int | None) -> torch.Tensor:
    """Each query by itself over all tokens that it sees."""
    tokens = positions.stop
    keys, values = (part[0][table].flatten(0, 1)[:tokens] for part in (of.keys, of.values))
    out = []
    for row, position in zip(q, positions, strict=True):
        seen = slice(0 if window is None else max(0, position - window + 1), position + 1)
        k, v = (part[seen].repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (keys, values))
        weights = (torch.einsum("hd,thd->ht", row, k) * of.softness.scale).softmax(-1)
        out.append(torch.einsum("ht,thd->hd", weights, v))
    return torch.stack(out)


@pytest.mark.parametrize("window", [None, 1, 3, 4, 5, 8, 17, 100])
def test_decodes_and_chunks_beside_each_other_see_their_window(window: int | None) -> None:
    draw = random.Random()
    torch.manual_seed(draw.randrange(1 << 30))
    of = cache(window)
    free = draw.sample(range(BLOCKS), BLOCKS)
    lengths = [draw.randrange(1, 33) for _ in range(3)]
    tables = [[free.pop() for _ in range(-(-length // SIZE))] for length in lengths]
    context, new = draw.randrange(0, 30), draw.randrange(2, 9)
    own = [free.pop() for _ in range(-(-(context + new) // SIZE))]
    width = max(map(len, tables))
    blocks = torch.tensor([block for table in tables for block in table + table[-1:] * (width - len(table))])
    decodes = Decodes(blocks, torch.tensor(lengths), width * SIZE, torch.float64)
    places = [(table, length - 1) for table, length in zip(tables, lengths, strict=True)]
    places += [(own, context + i) for i in range(new)]
    slots = torch.tensor([table[at // SIZE] * SIZE + at % SIZE for table, at in places])
    attention = PagedAttention(of, slots, decodes, [Prefill(3, 3 + new, context, torch.tensor(own))])
    q, k, v = (torch.randn(3 + new, heads, 8, dtype=torch.float64) for heads in (6, 2, 2))
    found = attention(0, q, k, v)
    for i, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        wanted = expected(of, table, range(length - 1, length), q[i : i + 1], window)
        torch.testing.assert_close(found[i : i + 1], wanted)
    wanted = expected(of, own, range(context, context + new), q[3:], window)
    torch.testing.assert_close(found[3:], wanted)


@pytest.fixture
def model() -> Decoder:
    return tiny_model(num_layers=3, windows=(12, None, 12))


@pytest.mark.parametrize("tables", [True, False], ids=["tables of their own", "one table"])
def test_a_layer_with_a_window_reads_no_more_of_a_long_prompt_than_of_a_short_one(
    model: Decoder, monkeypatch: pytest.MonkeyPatch, tables: bool
) -> None:
    read: dict[int, list[int]] = {0: [], 1: [], 2: []}
    gathered, called = PagedAttention._gathered, PagedAttention.__call__
    attending: list[int] = []

    def noted(self: PagedAttention, layer: int, *of: Any) -> torch.Tensor:
        attending.append(layer)
        return called(self, layer, *of)

    def counted(self: PagedAttention, keys: Any, values: Any, blocks: torch.Tensor) -> Any:
        read[attending[-1]].append(len(blocks))
        return gathered(self, keys, values, blocks)

    monkeypatch.setattr(PagedAttention, "__call__", noted)
    monkeypatch.setattr(PagedAttention, "_gathered", counted)
    engine = tiny_engine(model, block_size=4, num_blocks=200, max_num_batched_tokens=16, window_tables=tables)
    generate(engine, [[5 + i % 300 for i in range(600)]], greedy(5))
    reached = -(-12 // 4) + 1
    assert max(read[0]) == max(read[2]) <= reached + 16 // 4
    assert {read[0][-1], read[0][-4]} <= {reached - 1, reached}, "of the answer as of the prompt"
    assert max(read[1]) == -(-604 // 4)
