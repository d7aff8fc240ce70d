from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence
from backend.engine.gpu.d2h import longest_first, places_of
from tests.backend.tiny import greedy


def decodes(*computed: int) -> list[Scheduled]:
    found = []
    for id, length in enumerate(computed):
        sequence = Sequence(id, [1] * (length + 1), greedy(5), arrival=id)
        sequence.num_computed = length
        found.append(Scheduled(sequence, 1))
    return found


def test_the_longest_goes_first_and_equals_stay_in_order() -> None:
    batch = decodes(3, 9, 3, 12, 9)
    assert [s.sequence.id for s in longest_first(batch)] == [3, 1, 4, 0, 2]
    assert [s.sequence.id for s in batch] == [0, 1, 2, 3, 4]


def test_each_of_the_batch_finds_its_token_wherever_it_ran() -> None:
    batch = decodes(3, 9, 5)
    ordered = longest_first(batch)
    drawn = [f"token of {s.sequence.id}" for s in ordered]
    assert [drawn[place] for place in places_of(ordered, batch)] == ["token of 0", "token of 1", "token of 2"]


def test_who_does_not_sample_has_no_place() -> None:
    batch = decodes(3, 9)
    batch[0].sequence.tokens.extend([1, 1])
    assert places_of(longest_first(batch), batch) == [0]
