from dataclasses import fields

import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.sampling import step_inputs
from backend.kernels.sampling.row_state import RowState, StepInputs

ROWS, MAX_LEN, BLOCK_SIZE = 6, 600, 16
MODULES = pytest.mark.parametrize("module", [step_inputs, reference], ids=["kernel", "twin"])


def int32(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


def random_state(device):
    state = RowState.allocate(ROWS, MAX_LEN, BLOCK_SIZE, device)
    state.tokens.random_(0, 50000)
    state.block_tables.copy_(torch.randperm(state.block_tables.numel()).view_as(state.block_tables))
    return state


def poisoned_inputs(tokens, sequences, device):
    inputs = StepInputs.allocate(tokens, sequences, -(-MAX_LEN // BLOCK_SIZE), device)
    for field in fields(inputs):
        getattr(inputs, field.name).fill_(-77)
    return inputs


@MODULES
def test_a_step_runs_the_next_tokens_of_its_rows(module, device):
    state = random_state(device)
    rows, queries, computed = [4, 0, 3], [1, 300, 17], [530, 0, 40]
    state.computed[rows] = int32(computed, device)
    inputs = poisoned_inputs(330, 3, device)
    module.prepare_step(int32(rows, device), int32([0, 1, 301, 318], device), state, BLOCK_SIZE, inputs)
    at = 0
    for s, (row, count, done) in enumerate(zip(rows, queries, computed, strict=True)):
        for position in range(done, done + count):
            assert inputs.token_ids[at] == state.tokens[row, position]
            assert inputs.positions[at] == position
            block = state.block_tables[row, position // BLOCK_SIZE]
            assert inputs.slots[at] == block * BLOCK_SIZE + position % BLOCK_SIZE
            at += 1
        assert inputs.seq_lens[s] == done + count
        assert inputs.last[s] == at - 1
        used = -(-(done + count) // BLOCK_SIZE)
        assert torch.equal(inputs.block_tables[s, :used], state.block_tables[row, :used])
        assert inputs.block_tables[s, used:].eq(-77).all()
    assert inputs.token_ids[at:].eq(0).all()
    assert inputs.positions[at:].eq(0).all()
    assert inputs.slots[at:].eq(-1).all()


@MODULES
def test_padding_rows_and_tokens_write_nowhere_and_have_no_length(module, device):
    state = random_state(device)
    state.computed[2] = 9
    inputs = poisoned_inputs(4, 4, device)
    module.prepare_step(int32([2, -1, -1, -1], device), int32([0, 1, 2, 2, 2], device), state, BLOCK_SIZE, inputs)
    assert inputs.slots.tolist()[1:] == [-1, -1, -1]
    assert inputs.positions.tolist() == [9, 0, 0, 0]
    assert inputs.token_ids.tolist()[1:] == [0, 0, 0]
    assert inputs.seq_lens.tolist() == [10, 0, 0, 0]
    assert 0 <= inputs.last.min() <= inputs.last.max() < 4


@MODULES
def test_only_a_row_that_ran_all_its_tokens_takes_the_sampled_one(module, device):
    state = random_state(device)
    state.known.copy_(int32([10, 30, 5, 600, 0, 8], device))
    state.computed.copy_(int32([9, 0, 5, 599, 0, 0], device))
    before = state.tokens.clone()
    rows, starts = int32([0, 1, -1, 3, 5], device), int32([0, 1, 21, 21, 22, 30], device)
    module.commit_step(rows, starts, torch.tensor([111, 222, 333, 444, 555], device=device), state)
    assert state.computed.tolist() == [10, 20, 5, 600, 0, 8]
    assert state.known.tolist() == [11, 30, 5, 600, 0, 9]  # row 1 is mid-prompt, row 3 is full
    before[0, 10], before[5, 8] = 111, 555
    assert torch.equal(state.tokens, before)


def test_kernel_and_twin_agree_over_many_random_steps(device):
    kernel_state = random_state(device)
    kernel_state.known.copy_(torch.randint(1, 100, (ROWS,), dtype=torch.int32))
    twin_state = RowState(*(getattr(kernel_state, field.name).clone() for field in fields(kernel_state)))
    for _ in range(12):
        order = torch.randperm(ROWS)[:4].tolist()
        order[2] = -1
        room = (kernel_state.known - kernel_state.computed).tolist()
        queries = [0 if row < 0 else int(torch.randint(0, room[row] + 1, ())) for row in order]
        rows, starts = int32(order, device), int32([0, *torch.tensor(queries).cumsum(0).tolist()], device)
        sampled = torch.randint(0, 50000, (4,), device=device)
        made = []
        for module, state in ((step_inputs, kernel_state), (reference, twin_state)):
            inputs = poisoned_inputs(sum(queries) + 3, 4, device)
            module.prepare_step(rows, starts, state, BLOCK_SIZE, inputs)
            module.commit_step(rows, starts, sampled, state)
            made.append((inputs, state))
        for mine, other in zip(*made, strict=True):
            for field in fields(mine):
                assert torch.equal(getattr(mine, field.name), getattr(other, field.name)), field.name


def test_buffers_of_another_size_are_refused(device):
    state, inputs = random_state(device), poisoned_inputs(4, 3, device)
    with pytest.raises(KernelArgumentError, match="sequences"):
        step_inputs.prepare_step(int32([0], device), int32([0, 1], device), state, BLOCK_SIZE, inputs)
    with pytest.raises(KernelArgumentError, match="query_start"):
        step_inputs.prepare_step(int32([0, 1, 2], device), int32([0, 1], device), state, BLOCK_SIZE, inputs)
    with pytest.raises(KernelArgumentError, match="int32"):
        step_inputs.commit_step(torch.tensor([0]), int32([0, 1], device), torch.tensor([1]), state)
