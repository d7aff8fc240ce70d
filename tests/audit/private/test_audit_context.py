"""Reading many records: all that were asked for, and in few questions to the database."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from audit.events.private_value import Private
from audit.privacy.rights import answer
from audit.private.audit_context import NEAR, AuditContext, near
from audit.storage.store import Reader, StoredLeaf
from tests.audit.conftest import Home, accepted, completed

ON_BOTH_STORES = True

ALICE = "alice@example.com"


@given(st.sets(st.integers(0, 3000), max_size=60))
def test_spans_hold_every_record_and_few_others(seqs: set[int]) -> None:
    spans = list(near(seqs))
    assert {seq for first, last in spans for seq in range(first, last + 1)} >= seqs
    assert {each for span in spans for each in span} <= seqs, "each begins and ends at one that is wanted"
    assert all(second[0] - first[1] > NEAR + 1 for first, second in pairwise(spans))
    for first, last in spans:
        inside = sorted(seq for seq in seqs if first <= seq <= last)
        assert all(right - left <= NEAR + 1 for left, right in pairwise(inside))


class CountingReader:
    """The real one, with the number of questions for records and of the records that it gave."""

    def __init__(self, reader: Reader, counted: list[int]) -> None:
        self._reader = reader
        self._counted = counted

    def leaves(self, tenant: str, start: int = 0, end: int | None = None) -> Iterator[StoredLeaf]:
        self._counted[0] += 1
        for leaf in self._reader.leaves(tenant, start, end):
            self._counted[1] += 1
            yield leaf

    def head(self, tenant: str) -> tuple[int, bytes]:
        return self._reader.head(tenant)

    def close(self) -> None:
        self._reader.close()


async def kept_for(context: AuditContext, person: str, calls: int, prefix: str) -> None:
    for number in range(calls):
        request = f"{prefix}{number}"
        await context.record(accepted(request), Private({"input": f"words {number}"}, person))
        await context.record(completed(request), Private({"output": f"answer {number}"}, person))


async def test_what_is_kept_of_a_person_is_read_in_few_questions(home: Home) -> None:
    calls, counted = 60, [0, 0]
    async with home.context() as context:
        await kept_for(context, "bob", 40, "b")
        await kept_for(context, ALICE, calls, "a")
        await kept_for(context, "bob", 40, "c")
        counting = replace(context, open_reader=lambda: CountingReader(home.reader(), counted))
        package = await answer(counting, "acme", ALICE)
    assert len(package["records"]) == 2 * calls
    assert {one["calls"] for one in package["recipients"]} == {calls}
    asked, read = counted
    assert asked < 20, "and not once for each record"
    assert read < 10 * calls * 2, "and not the whole log for each"


async def test_records_between_those_that_are_wanted_are_left_out(home: Home) -> None:
    async with home.context() as context:
        await kept_for(context, "bob", 100, "b")
        wanted = [0, 1, 7, 90, 199]
        assert [seq for seq, _ in context.leaves("acme", wanted)] == wanted
        assert [seq for seq, _ in context.leaves("acme", [199, 0, 500])] == [0, 199]
        assert list(context.leaves("acme", [])) == []


async def test_leaves_end_where_they_are_to(home: Home) -> None:
    async with home.context() as context:
        await kept_for(context, "bob", 10, "b")
        with context.reading() as reader:
            for first, end, found in ((0, 3, [0, 1, 2]), (18, 5000, [18, 19]), (5, 5, []), (7, 6, []), (30, None, [])):
                assert [leaf.seq for leaf in reader.leaves("acme", first, end)] == found
