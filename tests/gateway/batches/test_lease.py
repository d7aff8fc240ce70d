"""The lease of a tenant's work is renewed whatever the event loop does."""

import asyncio
import time

import pytest

from gateway.batches.work.worker import renewed
from gateway.database.errors import DatabaseUnavailable


class Lease:
    """Answers of `take` in turn, the last one for ever."""

    def __init__(self, *terms):
        self.terms, self.taken = list(terms), 0

    def take(self):
        self.taken += 1
        term = self.terms.pop(0) if len(self.terms) > 1 else self.terms[0]
        if isinstance(term, Exception):
            raise term
        return term


async def test_it_is_renewed_while_the_event_loop_is_busy_and_no_more_after_the_work():
    lease = Lease(DatabaseUnavailable("the database does not answer; start it"), 7)
    async with renewed(lease, 7, 0.03) as lost:
        for _ in range(2000):
            if lease.taken >= 3:
                break
            time.sleep(0.01)  # the loop has no turn
        assert lease.taken >= 3
    taken = lease.taken
    await asyncio.sleep(0.1)
    assert (lease.taken, lost.is_set()) == (taken, False)


@pytest.mark.parametrize("other", [8, None])
async def test_a_lease_that_another_gateway_has_is_noticed(other):
    lease = Lease(7, other)
    async with renewed(lease, 7, 0.03) as lost, asyncio.timeout(20):
        await lost.wait()
    assert lease.taken == 2
