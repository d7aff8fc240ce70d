import pytest
import torch

from backend.kernels import reference
from backend.kernels.attention.rotary_kv import rotary_kv
from backend.kernels.launching.launch import FP8, KernelArgumentError

BLOCK_SIZE = 16
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SHAPES = [(3, 1, 64, 64), (4, 2, 80, 32), (2, 2, 96, 96), (8, 1, 128, 128), (2, 1, 256, 64)]
SHAPE_NAMES = [f"q{q} kv{kv} d{d} r{r}" for q, kv, d, r in SHAPES]


class Case:
    """Random inputs of one layer; the cache is full of NaN, so that what the kernel wrote can be told."""

    def __init__(self, q_heads, kv_heads, head_dim, rotary_dim, dtype, device, tokens=5, cache_dtype=None, norm=False):
        self.qkv = torch.randn(tokens, (q_heads + 2 * kv_heads) * head_dim, device=device).to(dtype)
        self.positions = torch.randint(0, 40, (tokens,), device=device)
        angle = torch.arange(40, device=device)[:, None] / 100 ** (torch.arange(rotary_dim // 2, device=device) / 20)
        self.cos_sin = torch.cat((angle.cos(), angle.sin()), -1)
        self.slots = torch.randperm(4 * BLOCK_SIZE, device=device)[:tokens]
        shape = (4, BLOCK_SIZE, kv_heads, head_dim)
        self.caches = [torch.full(shape, float("nan"), device=device).to(cache_dtype or dtype) for _ in range(2)]
        self.options = {}
        if norm:
            self.options = {name: (1 + torch.rand(head_dim, device=device)).to(dtype) for name in ("q_norm", "k_norm")}
        if cache_dtype == FP8:
            self.options |= {name: 0.1 + torch.rand(kv_heads, device=device) for name in ("k_scale", "v_scale")}

    def run(self, function):
        caches = [cache.clone() for cache in self.caches]
        q = function(self.qkv, self.positions, self.cos_sin, self.slots, *caches, **self.options)
        return q, *caches


def assert_same(mine, other, tolerance):
    assert mine.dtype == other.dtype
    mine, other = mine.float(), other.float()
    assert torch.equal(mine.isnan(), other.isnan())
    assert (mine - other).nan_to_num().norm() <= tolerance * other.nan_to_num().norm()


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "qk-norm"])
def test_kernel_matches_its_twin_and_writes_no_other_slot(shape, norm, dtype, device):
    case = Case(*shape, dtype, device, norm=norm)
    for mine, other in zip(case.run(rotary_kv), case.run(reference.rotary_kv), strict=True):
        assert_same(mine, other, TOLERANCE[dtype])


def test_an_fp8_cache_holds_the_value_over_its_heads_scale(dtype, device):
    case = Case(6, 2, 64, 64, dtype, device, cache_dtype=FP8)
    for mine, other in zip(case.run(rotary_kv), case.run(reference.rotary_kv), strict=True):
        assert_same(mine, other, 0.02 if mine.dtype == FP8 else TOLERANCE[dtype])


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
@pytest.mark.parametrize("cache_dtype", [None, FP8], ids=["plain", "fp8"])
def test_a_projection_in_parts_is_summed(shape, cache_dtype, dtype, device):
    case = Case(*shape, dtype, device, cache_dtype=cache_dtype, norm=True)
    case.qkv = torch.randn(3, *case.qkv.shape, device=device)
    case.options["dtype"] = dtype
    found, twin = case.run(rotary_kv), case.run(reference.rotary_kv)
    case.qkv = case.qkv.sum(0)
    for mine, other, whole in zip(found, twin, case.run(reference.rotary_kv), strict=True):
        assert_same(mine, other, 0.02 if mine.dtype == FP8 else TOLERANCE[dtype])
        assert_same(mine, whole, 0.02 if mine.dtype == FP8 else TOLERANCE[dtype])


@pytest.mark.parametrize("parts", [1, 8])
def test_so_many_parts_as_there_are_lead_to_the_same(parts, device):
    case = Case(4, 2, 80, 32, torch.float32, device)
    whole = case.run(rotary_kv)
    case.qkv = (case.qkv / parts).expand(parts, -1, -1).contiguous()
    for mine, other in zip(case.run(rotary_kv), whole, strict=True):
        assert_same(mine, other, 1e-5)


@pytest.mark.parametrize("options", [{"keys_in_place": True}, {"scales": (torch.ones(5, 1), torch.ones(256, 1))}])
def test_parts_that_are_to_be_written_back_or_scaled_are_refused(options, device):
    case = Case(2, 1, 64, 64, torch.float32, device)
    case.qkv = case.qkv[None].contiguous()
    case.options |= options
    with pytest.raises(KernelArgumentError, match="parts"):
        case.run(rotary_kv)


def test_parts_in_another_dtype_are_refused(device):
    case = Case(2, 1, 64, 64, torch.float16, device)
    case.qkv = case.qkv[None].contiguous()
    with pytest.raises(KernelArgumentError, match="float32"):
        case.run(rotary_kv)


def test_a_value_beyond_the_range_of_fp8_saturates(device):
    case = Case(1, 1, 64, 64, torch.float32, device, cache_dtype=FP8)
    case.qkv *= 1e4
    _, keys, values = case.run(rotary_kv)
    for cache in (keys, values):
        written = cache.flatten(0, 1)[case.slots].float()
        assert written.abs().max() == 448
        assert written.isfinite().all()


def test_rotation_is_that_of_complex_numbers_in_float64(device):
    case = Case(2, 1, 64, 64, torch.float32, device)
    q, keys, _ = case.run(rotary_kv)
    turn = torch.complex(*case.cos_sin[case.positions].double().chunk(2, -1))[:, None]
    heads = case.qkv.double().view(len(q), -1, 64)
    turned = torch.complex(heads[..., :32], heads[..., 32:]) * turn
    expected = torch.cat((turned.real, turned.imag), -1)
    assert torch.allclose(q.double(), expected[:, :2], atol=1e-6)
    assert torch.allclose(keys.flatten(0, 1)[case.slots].double(), expected[:, 2:3], atol=1e-6)


def test_the_score_of_two_rotated_tokens_depends_on_their_distance_alone(device):
    case = Case(1, 1, 64, 64, torch.float32, device, tokens=4)
    case.qkv[:] = case.qkv[:1]
    case.positions = torch.tensor([3, 10, 20, 27], device=device)
    q, keys, _ = case.run(rotary_kv)
    k = keys.flatten(0, 1)[case.slots]
    assert torch.allclose((q[1] * k[0]).sum(), (q[3] * k[2]).sum(), rtol=1e-4)


def test_a_padding_token_writes_no_cache_but_gets_a_finite_query(dtype, device):
    case = Case(2, 1, 64, 64, dtype, device)
    case.slots[1:4] = -1
    q, keys, values = case.run(rotary_kv)
    assert q.isfinite().all()
    for cache in (keys, values):
        assert cache.float().isfinite().all(-1).sum() == 2


def test_a_layer_of_a_larger_cache_may_be_written_through_its_strides(device):
    case = Case(2, 2, 64, 64, torch.float32, device)
    both = torch.full((4, 2, BLOCK_SIZE, 2, 64), float("nan"), device=device)
    expected = case.run(reference.rotary_kv)
    rotary_kv(case.qkv, case.positions, case.cos_sin, case.slots, both[:, 0], both[:, 1])
    assert_same(both[:, 0], expected[1], 1e-6)
    assert_same(both[:, 1], expected[2], 1e-6)


def test_a_slot_past_two_gigaelements_is_addressed_in_64_bits(sparse_memory, device):
    case = Case(1, 1, 64, 64, torch.float16, device, tokens=1)
    stride = 2**31 // 3 // 64 * 64  # three of these blocks pass 2**31 elements
    huge = sparse_memory(4 * stride, torch.float16)
    far = huge.as_strided((4, BLOCK_SIZE, 1, 64), (stride + BLOCK_SIZE * 64, 64, 64, 1))
    case.slots[0] = 3 * BLOCK_SIZE + 5
    expected = case.run(reference.rotary_kv)[2][3, 5]
    rotary_kv(case.qkv, case.positions, case.cos_sin, case.slots, torch.zeros_like(far), far)
    assert torch.equal(far[3, 5], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.options.update(q_norm=torch.ones(64)), "go together"),
        (lambda c: c.options.update(k_scale=torch.ones(1), v_scale=torch.ones(1)), "FP8"),
        (lambda c: setattr(c, "slots", c.slots[:-1]), "slots"),
        (lambda c: setattr(c, "cos_sin", torch.ones(40, 66)), "rotary_dim"),
        (lambda c: setattr(c, "cos_sin", c.cos_sin.half()), "float32"),
        (lambda c: setattr(c, "qkv", c.qkv[:, :-1].contiguous()), "does not hold"),
        (lambda c: c.caches.__setitem__(1, c.caches[1].half()), "differ"),
    ],
    ids=[
        "one norm",
        "scales without FP8",
        "a slot short",
        "rotary_dim too large",
        "half cosines",
        "width",
        "two dtypes",
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message, device):
    case = Case(2, 1, 64, 64, torch.float32, device)
    change(case)
    with pytest.raises(KernelArgumentError, match=message):
        case.run(rotary_kv)
