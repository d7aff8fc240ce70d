import pytest
import torch
import triton
import triton.language as tl

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.sampling.marks import chacha20, gather_marks
from backend.kernels.sampling.row_state import MARK_WORDS, MarkRows
from backend.kernels.sampling.sampling import sample
from backend.marks.scheme import MarkKey, random_words

LENGTH = 3000


def mark_rows(rows, device, starts) -> MarkRows:
    keys = torch.randint(-(2**31), 2**31 - 1, (rows, 8), dtype=torch.int32, device=device)
    return MarkRows(torch.tensor(starts, dtype=torch.int32, device=device), keys)


def gathered(gather, rows, positions, tokens, wanted):
    device = tokens.device
    marks = torch.full((len(rows), MARK_WORDS), 77, dtype=torch.int32, device=device)
    as_int = dict(dtype=torch.int32, device=device)
    gather(torch.tensor(rows, **as_int), torch.tensor(positions, **as_int), tokens, wanted, marks)
    return marks


def test_kernel_and_twin_mark_the_same_rows(device):
    """Small vocabularies repeat contexts early and late."""
    tokens = torch.stack(
        [
            torch.randint(0, high, (LENGTH,), dtype=torch.int32, device=device)
            for high in (2, 3, 5, 8, 40, 2**18, 2**24, 2**31 - 1)
        ]
    )
    wanted = mark_rows(8, device, [1, 5, 10, 7, 3, 100, 2, 0])
    seen = set()
    for positions in ([6, 10, 60, 900, 2900, 104, 2999, 50], [5, 9, 13, 2000, 7, 103, 6, 2000]):
        rows = [3, 0, 1, 2, 4, 5, 6, 7]
        kernel, twin = (
            gathered(gather, rows, positions, tokens, wanted) for gather in (gather_marks, reference.gather_marks)
        )
        assert torch.equal(kernel[:, 0], twin[:, 0])
        marked = twin[:, 0] == 1
        assert torch.equal(kernel[marked], twin[marked])
        seen.update(twin[:, 0].tolist())
    assert seen == {0, 1}


@pytest.mark.parametrize("gather", [gather_marks, reference.gather_marks], ids=["kernel", "twin"])
def test_padding_short_answers_and_requests_without_a_key_are_not_marked(gather, device):
    tokens = torch.arange(3 * 20, dtype=torch.int32, device=device).reshape(3, 20)
    wanted = mark_rows(3, device, [8, 8, 0])
    assert gathered(gather, [0, 1, 2, -1], [10, 11, 15, 12], tokens, wanted)[:, 0].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("gather", [gather_marks, reference.gather_marks], ids=["kernel", "twin"])
def test_a_context_of_the_prompt_does_not_count_as_repeated(gather, device):
    tokens = torch.tensor([[1, 2, 3, 5, 1, 2, 3, 0, 0, 1, 2, 3]], dtype=torch.int32, device=device)
    wanted = mark_rows(1, device, [4])
    assert gathered(gather, [0], [7], tokens, wanted)[0, 0] == 1
    assert gathered(gather, [0], [12], tokens, wanted)[0, 0] == 0


@triton.jit
def _stream(mark_ptr, out_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    words = chacha20(mark_ptr, lane.to(tl.uint32))
    for w in tl.static_range(16):
        tl.store(out_ptr + lane * 16 + w, words[w].to(tl.int32, bitcast=True))


def test_the_kernel_has_the_key_stream_of_rfc_8439(device):
    """Section 2.3.2, block 1 of key 00..1f and nonce 000000090000004a00000000."""
    packed = b"\1\0\0\0" + bytes(range(32)) + bytes.fromhex("000000090000004a00000000")
    mark = torch.frombuffer(bytearray(packed), dtype=torch.int32).to(device)
    out = torch.empty(16, 16, dtype=torch.int32, device=device)
    _stream[(1,)](mark, out, BLOCK=16)
    assert out[1].cpu().numpy().tobytes().hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4ed2826446079faa0914c2d705d98b02a2b5129cd1de164eb9"
        "cbd083e8a2503c4e"
    )


def random_marks(rows, device):
    marks = torch.randint(-(2**31), 2**31 - 1, (rows, MARK_WORDS), dtype=torch.int32, device=device)
    marks[:, 0] = torch.arange(rows, device=device) % 2
    return marks


def drawn(function, logits, marks, temperature=0.8, threshold=None, seed=5):
    rows, device = len(logits), logits.device
    heat = torch.full((rows,), temperature, device=device)
    seeds = torch.arange(rows, device=device) + seed
    positions = torch.full((rows,), 9, dtype=torch.int32, device=device)
    return function(logits, heat, seeds, positions, threshold, marks)


@pytest.mark.parametrize("vocab", [3, 257, 4095, 4097, 9001])
def test_kernel_and_twin_draw_the_same_marked_tokens(vocab, dtype, device):
    logits = (2 * torch.randn(8, vocab, device=device)).to(dtype)
    marks = random_marks(8, device)
    assert torch.equal(drawn(sample, logits, marks), drawn(reference.sample, logits, marks))
    threshold = logits.float().topk(3).values[:, -1].contiguous()
    cut = drawn(sample, logits, marks, 5.0, threshold)
    assert torch.equal(cut, drawn(reference.sample, logits, marks, 5.0, threshold))
    assert (logits.float().gather(1, cut[:, None])[:, 0] >= threshold).all()


def test_a_marked_row_depends_on_its_key_alone_and_others_on_their_seed(device):
    logits = torch.randn(1, 9000, device=device).expand(8, -1).contiguous()
    marks = random_marks(8, device)
    one, other = drawn(sample, logits, marks, seed=5), drawn(sample, logits, marks, seed=500)
    assert torch.equal(one[1::2], other[1::2])
    assert (one[::2] != other[::2]).any()
    assert torch.equal(one[::2], drawn(sample, logits, None, seed=5)[::2])
    changed = marks.clone()
    changed[:, 5] ^= 1
    assert (drawn(sample, logits, changed) != one)[1::2].any()


def test_a_marked_draw_wins_the_race_that_the_scheme_defines(device):
    logits = torch.randn(1, 5000, device=device)
    marks = random_marks(2, device)[1:]
    packed = marks[0, 1:].cpu().numpy().tobytes()
    context = [int.from_bytes(packed[32 + 4 * i : 36 + 4 * i], "little") for i in range(3)]
    u = (torch.from_numpy(random_words(MarkKey(packed[:32]), context, 5000).astype("float64")) + 0.5) / 2**32
    race = (logits[0].double().cpu() / 0.8).softmax(-1) / -torch.log1p(-u)
    assert drawn(sample, logits, marks).tolist() == [int(race.argmax())]


def test_greedy_rows_and_rows_that_are_not_numbers_are_as_without_a_mark(device):
    logits = torch.randn(4, 5000, device=device)
    marks = random_marks(4, device)
    marks[:, 0] = 1
    assert torch.equal(drawn(sample, logits, marks, 0.0), logits.argmax(-1))
    logits[0, 4999], logits[1, 3], logits[2] = float("nan"), float("inf"), float("-inf")
    for function in (sample, reference.sample):
        tokens = drawn(function, logits, marks).tolist()
        assert tokens[:3] == [-1, -1, -1] and tokens[3] >= 0


def test_arguments_that_do_not_fit_are_refused(device):
    with pytest.raises(KernelArgumentError):
        drawn(sample, torch.zeros(2, 8, device=device), torch.zeros(2, 3, dtype=torch.int32, device=device))
    tokens, wanted = torch.zeros(2, 9, dtype=torch.int32, device=device), mark_rows(2, device, [1, 1])
    rows = torch.zeros(2, dtype=torch.int32, device=device)
    marks = torch.zeros(2, MARK_WORDS, dtype=torch.int32, device=device)
    for changed in ((rows.long(), rows, marks), (rows, rows[:1], marks), (rows, rows, marks[:, :3])):
        with pytest.raises(KernelArgumentError):
            gather_marks(changed[0], changed[1], tokens, wanted, changed[2])
