"""Limits of all workers in the supervisor's memory, where neither Redis nor PostgreSQL counts them.

What a worker that died held is released at once, since its connection ends with it.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from gateway.errors import LimitsUnavailable
from gateway.limits.batching import BatchedOperation, BatchingLimitStore
from gateway.limits.limit_kinds import BY_NAME
from gateway.limits.limiter import NOTHING, Cost, Counter, LimitExceeded, Reservation
from gateway.limits.memory_store import MemoryLimitStore
from gateway.workers.peer import Peer, PeerGone


class SupervisedLimitStore(BatchingLimitStore):
    """A worker's end. `spent`: what the ledger says was used of budgets; the supervisor takes the first worker's."""

    def __init__(self, supervisor: Peer, spent: Mapping[str, float]) -> None:
        super().__init__()
        self._supervisor = supervisor
        self._spent: Mapping[str, float] | None = spent

    async def apply(self, steps: Sequence[BatchedOperation]) -> Sequence[Exception | None]:
        made = [not step.is_void for step in steps]  # asked once: a call may be cancelled meanwhile
        asked = [_step(step) for step, is_made in zip(steps, made, strict=True) if is_made]
        try:
            answers = iter(await self._supervisor.ask("limits", {"spent": self._spent, "steps": asked}))
        except PeerGone:
            raise LimitsUnavailable("Limits cannot be checked now, so no request is processed") from None
        self._spent = None
        return [
            _outcome(step.reservation, next(answers)) if is_made else None
            for step, is_made in zip(steps, made, strict=True)
        ]


class LimitCounter:
    """The supervisor's end, for all workers. Batches are made one after the other."""

    def __init__(self) -> None:
        self._store: MemoryLimitStore | None = None
        self._held: dict[object, dict[str, Reservation]] = {}

    async def make(self, worker: object, batch: Mapping[str, Any]) -> list[Any]:
        """The outcome of each step of one batch of `worker`."""
        if self._store is None:
            self._store = MemoryLimitStore(spent=batch["spent"] or {})
        held = self._held.setdefault(worker, {})
        return [await self._make(self._store, held, step) for step in batch["steps"]]

    async def release(self, worker: object) -> None:
        """It ended: give back what it held. What it had used by then is not known here; the ledger reads it from the
        record."""
        for reservation in self._held.pop(worker, {}).values():
            if self._store is not None:
                await self._store.settle(reservation, NOTHING)

    async def _make(self, store: MemoryLimitStore, held: dict[str, Reservation], step: Mapping[str, Any]) -> Any:
        if step["kind"] == "settle":
            reservation = held.pop(step["id"], None)
            if reservation is not None:
                await store.settle(reservation, Cost(*step["actual"]))
        elif step["kind"] == "take":
            counters = tuple(_counter(*each) for each in step["counters"])
            reservation = Reservation(step["id"], counters, Cost(*step["cost"]))
            try:
                await store.take(reservation)
            except LimitExceeded as error:
                at = counters.index(error.counter)
                refused = {"at": at, "retry": error.retry_after, "asked": error.asked}
                return {**refused, "used": error.used, "held": error.held}
            if reservation.holds:
                held[reservation.id] = reservation
            return {"used": reservation.used}
        return {}  # a lease lives as long as its worker


def _step(step: BatchedOperation) -> dict[str, Any]:
    reservation, cost, actual = step.reservation, step.reservation.cost, step.actual
    taken = reservation.counters if step.kind == "take" else ()
    return {
        "kind": step.kind,
        "id": reservation.id,
        "counters": [(each.bucket, each.kind.name, each.quota.amount, each.scope) for each in taken],
        "cost": (cost.tokens, cost.money),
        "actual": (actual.tokens, actual.money),
    }


def _counter(bucket: str, kind: str, amount: float, scope: str) -> Counter:
    return Counter(bucket, BY_NAME[kind], BY_NAME[kind].quota(amount), scope)


def _outcome(reservation: Reservation, answer: Mapping[str, Any]) -> Exception | None:
    if "at" in answer:
        counter = reservation.counters[answer["at"]]
        retry = answer["retry"]
        if retry is None and answer["asked"] <= counter.quota.capacity:  # it would fit, at a time that never comes
            retry = inf
        return LimitExceeded(counter, retry, answer["asked"], tuple(answer["used"]), held=answer["held"])
    if "used" in answer:
        reservation.used = tuple(answer["used"])
    return None
