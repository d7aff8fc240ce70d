"""Threads for what may wait for the identity provider, so that the rest of the admin API has its own.

The admin API's threads are forty, for all of it. A provider that is slow would hold all of them by a few logins.
"""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from gateway.identity.login import ProviderUnavailable

THREADS = 8
MAX_WAITING = 64

T = TypeVar("T")


class ProviderPool:
    """`run` calls a function in one of its threads. A caller that leaves, or a gateway that stops, does not wait."""

    def __init__(self) -> None:
        self._limiter: CapacityLimiter | None = None

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Raises ProviderUnavailable where too many wait, and what `work` raises."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(THREADS)  # belongs to the event loop that it is made on
        if self._limiter.statistics().tasks_waiting >= MAX_WAITING:
            raise ProviderUnavailable("too many logins wait for the identity provider; try again in a moment")
        return await to_thread.run_sync(work, *arguments, limiter=self._limiter, abandon_on_cancel=True)
