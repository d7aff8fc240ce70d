from dataclasses import replace

import pytest
import torch

from backend.kernels import reference
from backend.kernels.attention.paged_decode import UNCUT_KEYS, candidates, default_choice, paged_decode
from backend.kernels.attention.workspace import (
    MAX_SPLITS,
    PREFIX_STEP,
    DecodeWorkspace,
    SharedPrefix,
    crowded,
    default_splits,
)
from backend.kernels.launching.launch import FP8, KernelArgumentError
from tests.backend.kernels.paged_case import TANGENT, TOLERANCE, PagedCase, error

LENGTHS = [1, 15, 130, 257]
HEADS = [(2, 2, 64), (4, 1, 80), (3, 1, 96), (7, 1, 128), (2, 1, 256)]
HEAD_NAMES = [f"q{q} kv{kv} d{d}" for q, kv, d in HEADS]


def decode_case(lengths, *heads, queries=1, **options):
    return PagedCase([(queries, length) for length in lengths], *heads, **options)


def workspace_of(case, splits, queries=1):
    return DecodeWorkspace.allocate(
        case.q.device, len(case.lengths), case.q_heads, case.kv_heads, case.head_dim, queries=queries, splits=splits
    )


def run(function, case, splits=None, workspace=None, queries=1, **options):
    return function(
        case.q,
        case.key_cache,
        case.value_cache,
        case.tables,
        case.seq_lens,
        workspace or workspace_of(case, splits, queries),
        scale=case.scale,
        splits=splits,
        **case.scales,
        **options,
    )


@pytest.mark.parametrize("heads", HEADS, ids=HEAD_NAMES)
@pytest.mark.parametrize("splits", [1, 4])
def test_any_head_shape_is_that_of_float64(heads, splits, dtype, device):
    case = decode_case(LENGTHS, *heads, dtype=dtype, device=device)
    assert error(run(paged_decode, case, splits), case.exact()) < TOLERANCE[dtype]


def test_the_twin_is_that_of_float64(dtype, device):
    case = decode_case(LENGTHS, 6, 2, 64, dtype=dtype, device=device)
    assert error(run(reference.paged_decode, case), case.exact()) < TOLERANCE[dtype]


@pytest.mark.parametrize("splits", [1, 2, 8, 32])
def test_the_number_of_splits_changes_rounding_alone(splits, dtype, device):
    case = decode_case([600, 3], 4, 2, 64, dtype=dtype, device=device)
    assert error(run(paged_decode, case, splits), case.exact()) < TOLERANCE[dtype]


@pytest.mark.parametrize("queries", [2, 5])
def test_several_newest_tokens_see_each_other_causally(queries, dtype, device):
    case = decode_case([queries, 40, 200], 6, 2, 64, queries=queries, dtype=dtype, device=device)
    for splits in (1, 4):
        assert error(run(paged_decode, case, splits, queries=queries), case.exact()) < TOLERANCE[dtype]
    assert error(run(reference.paged_decode, case), case.exact()) < TOLERANCE[dtype]


@pytest.mark.parametrize("block_size", [16, 24, 128])
def test_any_page_size_gives_the_same(block_size, dtype, device):
    case = decode_case([150, 20], 4, 2, 64, dtype=dtype, device=device, block_size=block_size)
    assert error(run(paged_decode, case, 2), case.exact()) < TOLERANCE[dtype]


@pytest.mark.parametrize("window", [1, 20, 64, 1000])
def test_a_sliding_window_hides_what_came_before_it(window, dtype, device):
    case = decode_case([300, 20], 2, 1, 64, dtype=dtype, device=device)
    for splits in (1, 4):
        assert error(run(paged_decode, case, splits, window=window), case.exact(window)) < TOLERANCE[dtype]


@pytest.mark.parametrize("cap", [0.5, 50.0])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("heads", [(2, 2, 64), (6, 2, 80), (2, 1, 256)], ids=str)
def test_scores_are_softly_capped_before_the_mask(heads, window, cap, dtype, device):
    case = decode_case([300, 20, 1], *heads, dtype=dtype, device=device)
    case.q *= 3
    expected = case.exact(window, cap)
    tolerance = TOLERANCE[dtype] + cap * TANGENT
    for splits in (1, 4):
        assert error(run(paged_decode, case, splits, window=window, cap=cap), expected) < tolerance
    assert error(run(reference.paged_decode, case, window=window, cap=cap), expected) < tolerance
    assert cap > 1 or error(expected, case.exact(window)) > 0.05  # it is really capped


def test_several_newest_tokens_are_capped_over_an_fp8_cache(dtype, device):
    case = decode_case([33, 200], 6, 2, 64, queries=3, dtype=dtype, device=device, cache_dtype=FP8)
    found = run(paged_decode, case, 4, queries=3, cap=2.0)
    assert error(found, case.exact(cap=2.0)) < max(TOLERANCE[dtype], TOLERANCE[torch.float16])


@pytest.mark.parametrize("splits", [1, 4])
def test_an_fp8_cache_is_read_through_its_scales(splits, dtype, device):
    case = decode_case([1, 33, 400], 6, 2, 64, dtype=dtype, device=device, cache_dtype=FP8)
    assert error(run(paged_decode, case, splits), case.exact()) < max(TOLERANCE[dtype], TOLERANCE[torch.float16])
    assert error(run(reference.paged_decode, case), case.exact()) < TOLERANCE[dtype]


@pytest.mark.parametrize("splits", [1, 4])
def test_a_padding_row_of_length_zero_gets_zeros_and_harms_no_other(splits, device):
    case = decode_case([200, 30], 2, 1, 64, dtype=torch.float32, device=device)
    expected = case.exact()
    padded = replace_rows(case, [0, -1, 1])
    out = run(paged_decode, padded, splits)
    assert error(out[[0, 2]], expected) < TOLERANCE[torch.float32]
    assert out[1].eq(0).all()
    assert torch.equal(run(reference.paged_decode, padded)[1], out[1])


def replace_rows(case, rows):
    """The case with its sequences in another order; -1 is a padding row with a table of nonsense."""
    index = torch.tensor(rows, device=case.q.device)
    other = replace(case, lengths=[case.lengths[row] for row in rows])
    other.key_cache, other.value_cache = case.key_cache, case.value_cache
    other.q = torch.where((index >= 0)[:, None, None], case.q[index], float("nan"))
    other.tables = torch.where((index >= 0)[:, None], case.tables[index], 2**30).int()
    other.seq_lens = torch.where(index >= 0, case.seq_lens[index], 0).int()
    return other


def test_a_workspace_is_ready_again_after_every_launch(device):
    case = decode_case([500, 70], 2, 1, 64, dtype=torch.float32, device=device)
    workspace = workspace_of(case, 8)
    first = run(paged_decode, case, 8, workspace)
    assert workspace.arrived.eq(0).all()
    workspace.partial.fill_(float("nan"))
    assert torch.equal(run(paged_decode, case, 8, workspace), first)


def test_with_fixed_splits_a_row_has_the_same_bits_in_any_batch(dtype, device):
    case = decode_case([700, 90, 260], 4, 2, 64, dtype=dtype, device=device)
    together = run(paged_decode, case, 8)
    for row in range(3):
        assert torch.equal(run(paged_decode, replace_rows(case, [row]), 8)[0], together[row])


def test_the_default_splits_fill_the_card_when_the_batch_does_not():
    device = torch.device("cpu")  # stands for 132 multiprocessors
    assert default_splits(1, 8, device) == MAX_SPLITS
    assert default_splits(16, 8, device) == 8
    assert default_splits(33, 8, device) == 4
    assert default_splits(512, 8, device) == 1


def test_where_the_batch_nearly_fills_the_card_long_sequences_are_cut_and_short_ones_are_not(device):
    cpu = torch.device("cpu")
    assert [default_splits(n, 8, cpu) for n in (34, 64, 88, 89, 132, 133, 256)] == [4, 4, 4, 2, 2, 1, 1]
    for item_size in (1, 2):
        blocks = dict(default_choice(128, item_size, 4, crowded=True).blocks)
        assert blocks["min_tiles"] * blocks["TILE"] == UNCUT_KEYS
        assert dict(default_choice(128, item_size, 4).blocks)["min_tiles"] == 1


@pytest.mark.parametrize("cache_dtype", [None, FP8], ids=["plain", "fp8"])
def test_a_crowded_batch_of_any_lengths_is_that_of_float64(cache_dtype, device):
    lengths = [1, 700, 513, 512, *[5] * 130]
    options = {} if cache_dtype is None else {"cache_dtype": cache_dtype}
    case = decode_case(lengths, 4, 2, 64, dtype=torch.float16, device=device, **options)
    assert crowded(len(lengths), 2, device)
    assert error(run(paged_decode, case), case.exact()) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("block_m", [16, 64])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("item_size", [1, 2, 4])
def test_default_tiles_suit_every_number_of_splits(item_size, dim, block_m):
    for splits in (1, 2, 4, 8, 16, 32):
        for full in (False, True):
            choice = default_choice(dim, item_size, splits, block_m, crowded=full)
            assert PREFIX_STEP % dict(choice.blocks)["TILE"] == 0  # a shared prefix ends between tiles
            assert choice.warps > 1 or (block_m == 16 and dim <= 128)  # accumulators of more rows would spill


def test_a_default_workspace_holds_every_batch_up_to_its_size(device):
    workspace = DecodeWorkspace.allocate(device, 9, 4, 2, 64)
    for count in (1, 2, 5, 9):
        case = decode_case([40] * count, 4, 2, 64, dtype=torch.float32, device=device)
        assert error(run(paged_decode, case, None, workspace), case.exact()) < TOLERANCE[torch.float32]


def test_a_cache_past_two_gigaelements_is_addressed_in_64_bits(sparse_memory, device):
    case = decode_case([60], 2, 1, 64, dtype=torch.float16, device=device)
    expected = case.exact()
    stride = 2**31 // 3 // 64 * 64
    caches = []
    for cache in (case.key_cache, case.value_cache):
        far = sparse_memory(6 * stride, torch.float16).as_strided(cache.shape, (stride, 64, 64, 1))
        far.copy_(cache)
        caches.append(far)
    case.key_cache, case.value_cache = caches
    assert case.tables.max() >= 3
    assert error(run(paged_decode, case, 2), expected) < TOLERANCE[torch.float16]


def test_candidates_name_the_same_blocks_as_the_default():
    for item_size in (1, 2, 4):
        for dim in (64, 128, 256):
            names = dict(default_choice(dim, item_size, 4).blocks).keys()
            assert all(dict(c.blocks).keys() == names for c in candidates(dim, item_size))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": 3}, "power of two"),
        ({"splits": 64}, "power of two"),
        ({"window": 0}, "sees nothing"),
        ({"cap": 0.0}, "cannot be capped"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message, device):
    case = decode_case([40], 2, 1, 64, dtype=torch.float32, device=device)
    with pytest.raises(KernelArgumentError, match=message):
        run(paged_decode, case, workspace=workspace_of(case, 8), **options)


def test_too_small_a_workspace_is_refused_before_anything_is_written(device):
    case = decode_case([40, 50], 2, 1, 64, dtype=torch.float32, device=device)
    small = DecodeWorkspace.allocate(device, 1, 2, 1, 64, splits=8)
    with pytest.raises(KernelArgumentError, match="workspace"):
        run(paged_decode, case, 8, small)


def test_queries_that_do_not_divide_among_the_sequences_are_refused(device):
    case = decode_case([40, 50], 2, 1, 64, dtype=torch.float32, device=device)
    case.q = case.q[:1].repeat(3, 1, 1)
    with pytest.raises(KernelArgumentError, match="divide"):
        run(paged_decode, case, 1)


def sharing_case(count, prefix, own, dtype, device, block_size=16, cache_dtype=None, heads=(4, 2)) -> PagedCase:
    """Sequences that begin with the same `prefix` keys, in the same blocks."""
    case = PagedCase([(1, prefix + n) for n in own[:count]], *heads, 32, dtype, device, block_size, cache_dtype)
    case.tables[:, : prefix // block_size] = case.tables[0, : prefix // block_size]
    return case


@pytest.mark.parametrize("prefix", [64, 192])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (8, 1)], ids=str)
@pytest.mark.parametrize("splits", [1, 4])
def test_a_shared_prefix_read_once_gives_what_reading_it_for_each_gives(prefix, heads, splits, dtype, device):
    case = sharing_case(5, prefix, [1, 17, 64, 3, 40], dtype, device, heads=heads)
    length = torch.tensor([prefix], dtype=torch.int32, device=device)
    shared = SharedPrefix.allocate(length, 5, heads[0], 32)
    case.seq_lens[3] = 0  # a padding row, whose table says nothing
    case.tables[3] = 2**30
    workspace = DecodeWorkspace.allocate(device, 5, *heads, 32, splits=splits)
    arguments = (case.q, case.key_cache, case.value_cache, case.tables, case.seq_lens, workspace)
    each = paged_decode(*arguments, scale=case.scale, splits=splits)
    once = paged_decode(*arguments, scale=case.scale, splits=splits, shared=shared)
    assert error(once, each) < TOLERANCE[dtype]
    assert once[3].eq(0).all()
    case.value_cache[case.tables[0, 0].long()] += 1.0
    changed = paged_decode(*arguments, scale=case.scale, splits=splits, shared=shared)
    assert error(changed[1], once[1]) > 1e-3  # the prefix is really read


def test_a_shared_prefix_in_an_fp8_cache(device):
    dtype = torch.float16
    case = sharing_case(4, 128, [5, 30, 1, 90], dtype, device, cache_dtype=torch.float8_e4m3fn)
    shared = SharedPrefix.allocate(torch.tensor([128], dtype=torch.int32, device=device), 4, 4, 32)
    workspace = DecodeWorkspace.allocate(device, 4, 4, 2, 32)
    arguments = (case.q, case.key_cache, case.value_cache, case.tables, case.seq_lens, workspace)
    each = paged_decode(*arguments, scale=case.scale, **case.scales)
    once = paged_decode(*arguments, scale=case.scale, shared=shared, **case.scales)
    assert error(once, each) < TOLERANCE[dtype]


def test_a_shared_prefix_goes_with_no_window_no_cap_and_no_drafts(device):
    case = sharing_case(2, 64, [4, 4], torch.float32, device)
    shared = SharedPrefix.allocate(torch.tensor([64], dtype=torch.int32, device=device), 2, 4, 32)
    workspace = DecodeWorkspace.allocate(device, 2, 4, 2, 32, queries=2)
    for limit in ({"window": 8}, {"cap": 5.0}):
        with pytest.raises(KernelArgumentError, match="no window and no cap"):
            paged_decode(
                case.q,
                case.key_cache,
                case.value_cache,
                case.tables,
                case.seq_lens,
                workspace,
                scale=1.0,
                shared=shared,
                **limit,
            )
    with pytest.raises(KernelArgumentError):
        paged_decode(
            case.q,
            case.key_cache,
            case.value_cache,
            case.tables[:1],
            case.seq_lens[:1],
            workspace,
            scale=1.0,
            shared=shared,
        )


def sinks_of(case):
    """Some above every score, some below, some that change nothing."""
    return torch.linspace(-4, 6, case.q_heads, device=case.q.device)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("heads", [(2, 2, 64), (8, 1, 80)], ids=str)
def test_a_sink_takes_its_part_of_the_softmax_once_whatever_the_number_of_splits(heads, window, dtype, device):
    case = decode_case([300, 20, 1], *heads, dtype=dtype, device=device)
    sinks = sinks_of(case)
    expected = case.exact(window, sinks=sinks)
    for splits in (1, 4, 32):
        assert error(run(paged_decode, case, splits, window=window, sinks=sinks), expected) < TOLERANCE[dtype]
    assert error(run(reference.paged_decode, case, window=window, sinks=sinks), expected) < TOLERANCE[dtype]
    assert error(expected, case.exact(window)) > 0.05


def test_sinks_go_with_an_fp8_cache_and_several_newest_tokens(dtype, device):
    case = decode_case([33, 200], 6, 2, 64, queries=3, dtype=dtype, device=device, cache_dtype=FP8)
    sinks = sinks_of(case)
    found = run(paged_decode, case, 4, queries=3, sinks=sinks)
    assert error(found, case.exact(sinks=sinks)) < max(TOLERANCE[dtype], TOLERANCE[torch.float16])


def test_a_padding_row_gets_zeros_with_sinks_too(device):
    case = decode_case([200, 30], 2, 1, 64, dtype=torch.float32, device=device)
    case.seq_lens[1] = 0
    sinks = sinks_of(case)
    for function in (paged_decode, reference.paged_decode):
        found = run(function, case, 4 if function is paged_decode else None, sinks=sinks)
        assert found[1].eq(0).all() and found[0].isfinite().all()


@pytest.mark.parametrize("wrong", ["too many", "halves", "apart"])
def test_sinks_that_are_not_one_for_each_head_are_refused(wrong, device):
    case = decode_case([20], 2, 1, 64, dtype=torch.float32, device=device)
    zeros = torch.zeros(4, device=device)
    sinks = {"too many": zeros[:3], "halves": zeros[:2].half(), "apart": zeros[::2]}
    with pytest.raises(KernelArgumentError, match="sinks are contiguous float32"):
        run(paged_decode, case, 1, sinks=sinks[wrong])
