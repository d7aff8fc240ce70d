"""Between projects and priorities: who is admitted, who stands still, and that nobody waits for ever."""

from itertools import count

import pytest

from backend.engine.core.fairness import FairShare
from backend.engine.core.sequence import Sequence, Status
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.core.test_scheduler import scheduler, step
from tests.backend.tiny import generate, greedy, tiny_engine

_arrivals = count()


def ask(length: int, project: bytes = b"", priority: int = 0, max_tokens: int = 4) -> Sequence:
    arrival = next(_arrivals)
    prompt = [arrival % 300] * length
    return Sequence(arrival, prompt, greedy(max_tokens), arrival=arrival, priority=priority, project=project)


def test_a_project_that_asks_little_is_not_held_up_by_one_that_asks_much() -> None:
    s = scheduler(seqs=1, budget=16)
    heavy = [ask(8, b"heavy") for _ in range(10)]
    light = [ask(8, b"light") for _ in range(2)]
    for sequence in heavy + light:
        s.add(sequence)
    served = []
    while s.waiting or s.running:
        (sequence,) = step(s)
        served.append(sequence.project)
        s.finish(sequence)
    assert served[:4] in ([b"heavy", b"light"] * 2, [b"heavy", b"light", b"light", b"heavy"])


def test_within_a_project_first_come_is_first_served() -> None:
    s = scheduler(seqs=1, budget=16)
    asked = [ask(4, project) for project in (b"a", b"a", b"b", b"b")]
    for sequence in asked:
        s.add(sequence)
    served = []
    while s.waiting or s.running:
        (sequence,) = step(s)
        served.append(sequence)
        s.finish(sequence)
    assert [q for q in served if q.project == b"a"] == asked[:2]
    assert [q for q in served if q.project == b"b"] == asked[2:]


def test_who_comes_back_has_no_claim_saved_up() -> None:
    shares = FairShare()
    shares.join(b"busy")
    shares.join(b"away")
    shares.leave(b"away")
    shares.charge(b"busy", 1000, 0)
    shares.join(b"away")
    assert shares.served(b"away") == shares.served(b"busy") == 1000


def test_who_leaves_with_a_debt_comes_back_with_it() -> None:
    shares = FairShare()
    shares.join(b"other")
    shares.join(b"greedy")
    shares.charge(b"greedy", 0, 500)
    shares.leave(b"greedy")
    shares.join(b"greedy")
    assert shares.served(b"greedy") == 1000
    assert shares.served(b"other") == 0


def test_counters_of_projects_that_are_gone_do_not_pile_up() -> None:
    shares = FairShare()
    for i in range(1000):
        project = str(i).encode()
        shares.join(project)
        shares.charge(project, 1, 1)
        shares.leave(project)
    shares.join(b"one")
    shares.charge(b"one", 10, 10)
    shares.join(b"two")
    assert len(shares._served) < 1003


@pytest.mark.parametrize("short_of", ["places", "blocks"])
def test_batch_work_stands_still_while_interactive_work_needs_its_place(short_of: str) -> None:
    s = scheduler(seqs=2, budget=32) if short_of == "places" else scheduler(blocks=4, block_size=4, budget=32)
    batch = [ask(6, priority=5), ask(6, priority=5)]
    for sequence in batch:
        s.add(sequence)
    step(s)
    assert all(b.status is Status.RUNNING for b in batch)
    urgent = ask(6, priority=0)
    s.add(urgent)
    assert urgent in step(s)
    assert batch[1].status is Status.WAITING
    s.finish(urgent)
    s.finish(batch[0])
    assert batch[1] in step(s)


def test_nobody_is_preempted_for_one_of_the_same_priority() -> None:
    s = scheduler(seqs=1, budget=32)
    first, second = ask(6), ask(6)
    s.add(first)
    step(s)
    s.add(second)
    step(s)
    assert first.status is Status.RUNNING
    assert s.num_preemptions == 0


def test_nobody_is_preempted_for_one_that_would_not_fit_even_then() -> None:
    s = scheduler(blocks=4, block_size=4, budget=32)
    better, batch = ask(9, priority=0), ask(2, priority=5)
    s.add(better)
    s.add(batch)
    step(s)
    s.add(ask(12, priority=0))
    step(s)
    assert batch.status is Status.RUNNING


def test_a_paused_answer_goes_on_as_if_nothing_had_been(model: Decoder) -> None:
    prompts = [[3, 1, 4, 1, 5] * 3, [2, 7, 1, 8] * 3]
    expected = [generate(tiny_engine(model), [p])[0] for p in prompts]
    engine = tiny_engine(model, max_num_seqs=1, block_size=4)
    engine.add(0, prompts[0], greedy(12), priority=3)
    tokens: dict[int, list[int | None]] = {0: [], 1: []}
    for i in range(200):
        if i == 4:
            engine.add(1, prompts[1], greedy(12))
        for item in engine.step():
            tokens[item.id].append(item.token)
        if not engine.has_work:
            break
    assert [tokens[0], tokens[1]] == expected
    assert engine.stats.preemptions == 1
