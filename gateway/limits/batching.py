"""Batching for shared limit stores: steps that arrive while one batch runs form the next batch.

So a gateway needs one connection, however many calls run, and load makes batches larger instead of more. Within a
batch, steps are made in the order of arrival.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.errors import LimitsUnavailable
from gateway.limits.limiter import NOTHING, Cost, Reservation

log = logging.getLogger(__name__)

AT_ONCE = 512

Kind = Literal["take", "settle", "renew"]


@dataclass(slots=True, eq=False)
class BatchedOperation:
    """One step of one call, waiting for its batch."""

    kind: Kind
    reservation: Reservation
    actual: Cost
    waiter: "asyncio.Future[None]"

    @property
    def is_void(self) -> bool:
        """Whether the call ended before its reservation was made: then nothing is taken."""
        return self.kind == "take" and self.waiter.cancelled()


class BatchingLimitStore(ABC):
    """A `gateway.limits.limiter.LimitStore` that makes steps in batches. Close it when done."""

    def __init__(self) -> None:
        self._waiting: list[BatchedOperation] = []
        self._running: asyncio.Task[None] | None = None

    @abstractmethod
    async def apply(self, steps: Sequence[BatchedOperation]) -> Sequence[Exception | None]:
        """Make one batch; returns the outcome of each step, in order. Never called in parallel. An exception that it
        raises is the outcome of all steps."""

    async def take(self, reservation: Reservation) -> None:
        await self._do("take", reservation)

    async def settle(self, reservation: Reservation, actual: Cost) -> None:
        await self._do("settle", reservation, actual)

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        await asyncio.gather(*(self._do("renew", reservation) for reservation in reservations))

    async def close(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _do(self, kind: Kind, reservation: Reservation, actual: Cost = NOTHING) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(BatchedOperation(kind, reservation, actual, waiter))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="limits")
        await waiter

    async def _run(self) -> None:
        """Runs in its own task: a call that is cancelled must not cancel the batch of the others."""
        while self._waiting:
            steps, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            outcomes: Sequence[Exception | None]
            try:
                outcomes = await self.apply(steps)
            except LimitsUnavailable as error:
                outcomes = [error] * len(steps)
            except Exception as error:  # a defect: no call is admitted without being counted
                log.exception("the store of limits failed: %s; check the database of the limits", type(error).__name__)
                outcomes = [unavailable(error)] * len(steps)
            for step, outcome in zip(steps, outcomes, strict=True):
                if step.waiter.done():
                    continue
                if outcome is None:
                    step.waiter.set_result(None)
                else:
                    step.waiter.set_exception(outcome)


def unavailable(error: Exception) -> LimitsUnavailable:
    """The error for clients. Logs the type of `error`."""
    log.error("limits cannot be counted: %s; check the database of the limits", type(error).__name__)
    return LimitsUnavailable("Limits cannot be checked now, so no request is processed", retry_after_s=2)
