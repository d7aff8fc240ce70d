import pytest
import torch

from backend.kernels import reference
from backend.kernels.attention.paged_attention import candidates, default_choice, paged_attention
from backend.kernels.launching.launch import FP8, KernelArgumentError
from tests.backend.kernels.paged_case import TANGENT, TOLERANCE, PagedCase, error

MIXED = [(1, 40), (7, 7), (20, 37), (1, 1)]  # a decode, a fresh prompt, a later chunk, a first token
HEADS = [(2, 2, 64), (4, 1, 80), (3, 1, 96), (7, 1, 128), (2, 1, 256)]
HEAD_NAMES = [f"q{q} kv{kv} d{d}" for q, kv, d in HEADS]


def run(function, case, **options):
    return function(
        case.q,
        case.key_cache,
        case.value_cache,
        case.tables,
        case.query_start,
        case.seq_lens,
        scale=case.scale,
        **case.scales,
        **options,
    )


@pytest.mark.parametrize("heads", HEADS, ids=HEAD_NAMES)
def test_a_mixed_batch_of_any_head_shape_is_that_of_float64(heads, dtype, device):
    case = PagedCase(MIXED, *heads, dtype, device)
    assert error(run(paged_attention, case), case.exact()) < TOLERANCE[dtype]


def test_the_twin_is_that_of_float64(dtype, device):
    case = PagedCase(MIXED, 6, 2, 64, dtype, device)
    assert error(run(reference.paged_attention, case), case.exact()) < TOLERANCE[dtype]
    assert error(run(reference.paged_attention, case, window=5), case.exact(5)) < TOLERANCE[dtype]


@pytest.mark.parametrize("block_size", [16, 24, 64, 256])
def test_any_page_size_gives_the_same(block_size, dtype, device):
    case = PagedCase([(9, 70), (3, 33)], 4, 2, 64, dtype, device, block_size=block_size)
    assert error(run(paged_attention, case), case.exact()) < TOLERANCE[dtype]


@pytest.mark.parametrize("window", [1, 16, 33, 1000])
def test_a_sliding_window_hides_what_came_before_it(window, dtype, device):
    case = PagedCase([(1, 90), (40, 70), (5, 5)], 2, 1, 64, dtype, device)
    assert error(run(paged_attention, case, window=window), case.exact(window)) < TOLERANCE[dtype]


def test_blocks_that_left_the_window_are_not_read(device):
    case = PagedCase([(2, 100)], 2, 1, 64, torch.float32, device)
    expected = case.exact(20)
    case.tables[0, :4] = 2**30  # keys 0 to 63 are gone; the oldest in sight is 79
    assert error(run(paged_attention, case, window=20), expected) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("heads", [(4, 2, 64), (6, 2, 128)], ids=["group 2", "group 3"])
def test_an_fp8_cache_is_read_through_its_scales(heads, dtype, device):
    case = PagedCase(MIXED, *heads, dtype, device, cache_dtype=FP8)
    tolerance = max(TOLERANCE[dtype], TOLERANCE[torch.float16])  # the product is taken in float16
    assert error(run(paged_attention, case), case.exact()) < tolerance
    assert error(run(reference.paged_attention, case), case.exact()) < TOLERANCE[dtype]


@pytest.mark.parametrize("padding", [1, 3, 67, 70])
def test_rows_that_belong_to_no_sequence_come_back_as_zeros(padding, device):
    case = PagedCase([(3, 20), (0, 0), (2, 2), (0, 0)], 2, 1, 64, torch.float32, device, padding=padding)
    out = run(paged_attention, case)
    assert error(out, case.exact()) < TOLERANCE[torch.float32]
    assert out[5:].eq(0).all()


def test_a_prompt_longer_than_many_tiles_is_right_to_its_end(device):
    case = PagedCase([(300, 300), (2, 200)], 1, 1, 64, torch.float32, device)
    assert error(run(paged_attention, case), case.exact()) < TOLERANCE[torch.float32]


def test_a_row_has_the_same_bits_alone_in_chunks_and_in_company(dtype, device):
    """Batch invariance: what an auditor's replay rests on."""
    whole = PagedCase([(90, 90), (30, 77)], 3, 1, 64, dtype, device)
    together = run(paged_attention, whole, batch_invariant=True)
    for chunk in (1, 7, 64):
        for begin in range(0, 90, chunk * (13 if chunk == 1 else 1)):
            end = min(begin + chunk, 90)
            alone = paged_attention(
                whole.q[begin:end].contiguous(),
                whole.key_cache,
                whole.value_cache,
                whole.tables[:1],
                torch.tensor([0, end - begin], dtype=torch.int32, device=device),
                torch.tensor([end], dtype=torch.int32, device=device),
                scale=whole.scale,
                batch_invariant=True,
            )
            assert torch.equal(alone, together[begin:end]), f"rows {begin}:{end} differ"


@pytest.mark.parametrize("cap", [0.5, 50.0])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("heads", [(2, 2, 64), (6, 2, 80), (2, 1, 256)], ids=str)
def test_scores_are_softly_capped_before_the_mask(heads, window, cap, dtype, device):
    case = PagedCase(MIXED, *heads, dtype, device)
    case.q *= 3
    expected = case.exact(window, cap)
    tolerance = TOLERANCE[dtype] + cap * TANGENT
    assert error(run(paged_attention, case, window=window, cap=cap), expected) < tolerance
    assert error(run(reference.paged_attention, case, window=window, cap=cap), expected) < tolerance
    assert cap > 1 or error(expected, case.exact(window)) > 0.05  # it is really capped


def test_scores_far_beyond_a_cap_are_the_cap_and_no_infinity(device):
    case = PagedCase(MIXED, 2, 1, 64, torch.float32, device)
    # No score near zero, where a rounding of a million is not small beside the cap: a key has one sign throughout.
    case.q = case.q.abs() * 1e6
    case.key_cache = case.key_cache.abs() * case.key_cache[..., :1].sign()
    assert error(run(paged_attention, case, cap=5.0), case.exact(cap=5.0)) < 1e-4


def test_a_cap_reads_an_fp8_cache_through_its_scales(dtype, device):
    case = PagedCase(MIXED, 6, 2, 128, dtype, device, cache_dtype=FP8)
    expected = case.exact(cap=2.0)
    assert error(run(paged_attention, case, cap=2.0), expected) < max(TOLERANCE[dtype], TOLERANCE[torch.float16])
    assert error(run(reference.paged_attention, case, cap=2.0), expected) < TOLERANCE[dtype]


def test_a_capped_row_has_the_same_bits_alone_and_in_company(dtype, device):
    whole = PagedCase([(90, 90), (30, 77)], 3, 1, 64, dtype, device)
    together = run(paged_attention, whole, batch_invariant=True, cap=3.0)
    for begin, end in ((0, 1), (30, 37), (64, 90)):
        alone = paged_attention(
            whole.q[begin:end].contiguous(),
            whole.key_cache,
            whole.value_cache,
            whole.tables[:1],
            torch.tensor([0, end - begin], dtype=torch.int32, device=device),
            torch.tensor([end], dtype=torch.int32, device=device),
            scale=whole.scale,
            batch_invariant=True,
            cap=3.0,
        )
        assert torch.equal(alone, together[begin:end])


def test_large_scores_neither_overflow_nor_lose_the_largest(device):
    case = PagedCase([(4, 30)], 2, 1, 64, torch.float32, device)
    case.q *= 300
    assert error(run(paged_attention, case), case.exact()) < 1e-3


def test_a_cache_past_two_gigaelements_is_addressed_in_64_bits(sparse_memory, device):
    case = PagedCase([(3, 40)], 2, 1, 64, torch.float16, device)
    expected = case.exact()
    stride = 2**30  # the largest of three distinct blocks is at least the third
    caches = []
    for cache in (case.key_cache, case.value_cache):
        far = sparse_memory(5 * stride, torch.float16).as_strided(cache.shape, (stride, 64, 64, 1))
        far.copy_(cache)
        caches.append(far)
    case.key_cache, case.value_cache = caches
    assert case.tables.max() >= 2
    assert error(run(paged_attention, case), expected) < TOLERANCE[torch.float16]


def test_default_tiles_have_room_for_a_group_and_are_among_the_candidates_in_kind():
    for rows in (0, 1, 16, 64, 128):
        for group in (1, 3, 7, 8, 16):
            blocks = dict(default_choice(rows, group, 128, 2).blocks)
            assert blocks["BLOCK_M"] >= group
            assert blocks.keys() == dict(candidates(128, group)[0].blocks).keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: setattr(c, "q", c.q[:, :, :32].contiguous()), "head_dim"),
        (lambda c: setattr(c, "q", c.q.transpose(0, 1)), "contiguous"),
        (lambda c: setattr(c, "q", c.q[:, :3].contiguous()), "evenly"),
        (lambda c: setattr(c, "q", c.q.half()), "float16"),
        (lambda c: setattr(c, "tables", c.tables.long()), "int32"),
        (lambda c: setattr(c, "seq_lens", c.seq_lens[:1]), "length"),
        (lambda c: setattr(c, "query_start", c.query_start[:-1]), "query_start"),
        (lambda c: setattr(c, "key_cache", c.key_cache[:, :8]), "caches differ|16 tokens"),
        (lambda c: c.scales.update(k_scale=torch.ones(2)), "FP8"),
    ],
    ids=[
        "head_dim",
        "strides",
        "heads",
        "dtype",
        "int64 tables",
        "lengths",
        "starts",
        "block size",
        "scale without FP8",
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message, device):
    case = PagedCase([(2, 20), (1, 5)], 4, 2, 64, torch.float32, device)
    change(case)
    with pytest.raises(KernelArgumentError, match=message):
        run(paged_attention, case)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_cap_that_means_nothing_is_refused(cap, device):
    with pytest.raises(KernelArgumentError, match="cannot be capped"):
        run(paged_attention, PagedCase([(1, 5)], 1, 1, 64, torch.float32, device), cap=cap)


def test_an_empty_window_is_refused(device):
    with pytest.raises(KernelArgumentError, match="sees nothing"):
        run(paged_attention, PagedCase([(1, 5)], 1, 1, 64, torch.float32, device), window=0)


def sinks_of(case):
    """Some above every score, some below, some that change nothing."""
    return torch.linspace(-4, 6, case.q_heads, device=case.q.device)


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("heads", [(2, 2, 64), (8, 1, 80)], ids=str)
def test_a_sink_takes_its_part_of_the_softmax(heads, window, dtype, device):
    case = PagedCase(MIXED, *heads, dtype, device, padding=3)
    sinks = sinks_of(case)
    expected = case.exact(window, sinks=sinks)
    for function in (paged_attention, reference.paged_attention):
        found = run(function, case, window=window, sinks=sinks)
        assert error(found, expected) < TOLERANCE[dtype]
        assert found[-3:].eq(0).all()  # padding
    assert error(expected, case.exact(window)) > 0.05


def test_with_sinks_a_rows_bits_depend_on_its_own_sequence_in_invariant_mode(dtype, device):
    case = PagedCase(MIXED, 4, 2, 64, dtype, device)
    sinks = sinks_of(case)
    together = run(paged_attention, case, sinks=sinks, batch_invariant=True)
    begin, end = 8, 28
    alone = paged_attention(
        case.q[begin:end].contiguous(),
        case.key_cache,
        case.value_cache,
        case.tables[2:3],
        torch.tensor([0, end - begin], dtype=torch.int32, device=device),
        case.seq_lens[2:3],
        scale=case.scale,
        sinks=sinks,
        batch_invariant=True,
    )
    assert torch.equal(together[begin:end], alone)
