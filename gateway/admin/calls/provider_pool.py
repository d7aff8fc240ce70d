"""Threads for calls that may wait for the identity provider, separate from those of the rest of the admin API.

The admin API has forty threads. Without this pool, a few logins with a slow provider would use all of them.
"""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from gateway.identity.login import ProviderUnavailable

THREADS = 8
MAX_WAITING = 64

T = TypeVar("T")


class ProviderPool:
    """Thread pool. A cancelled call, or a gateway that stops, does not wait for its thread."""

    def __init__(self) -> None:
        self._limiter: CapacityLimiter | None = None

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Return the result of `work(*arguments)` in a thread. Raises ProviderUnavailable if too many calls wait, and
        the errors of `work`."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(THREADS)  # belongs to the event loop that creates it
        if self._limiter.statistics().tasks_waiting >= MAX_WAITING:
            raise ProviderUnavailable("too many logins wait for the identity provider; try again in a moment")
        return await to_thread.run_sync(work, *arguments, limiter=self._limiter, abandon_on_cancel=True)
