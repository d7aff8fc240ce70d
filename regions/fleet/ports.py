"""Ports of the reconciler: the store that it reads and writes, and the lifecycle of engines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from regions.fleet.demand import Demand
from regions.fleet.deployment import Deployment, Replica, ReplicaState
from regions.fleet.fleet import Backend, Role

Key = tuple[str, str]
"""Tenant and name of a deployment."""


class LifecycleClient(Protocol):
    """An engine's lifecycle: release, sleep, wake. No method raises."""

    async def release(self, backend: Backend) -> Mapping[str, str]:
        """End what runs and wipe the cache, before it is stopped; returns what is recorded with its end."""
        ...

    async def sleep(self, backend: Backend) -> Mapping[str, str] | None:
        """Release its GPU's memory and keep the process; returns what is recorded, None if it did not sleep."""
        ...

    async def wake(self, backend: Backend) -> bool:
        """Whether it answers again."""
        ...

    async def weights(self, backend: Backend) -> str | None:
        """SHA-256 of the weights that it runs, when it is known; None where it does not say."""
        ...


class NoLifecycle:
    """For engines that can only be stopped."""

    async def release(self, backend: Backend) -> Mapping[str, str]:
        return {}

    async def sleep(self, backend: Backend) -> Mapping[str, str] | None:
        return None

    async def wake(self, backend: Backend) -> bool:
        return False

    async def weights(self, backend: Backend) -> str | None:
        return None


class OtherWeights(Exception):
    """A replica does not run the weights that its deployment is pinned to. The message is for people."""


class NotLeading(Exception):
    """Another gateway leads by now, or has changed the replica's state."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """The store's state: desired state by tenant and name, replicas that have not ended, demand by tenant and model.
    `offered`: replicas that gateways may call."""

    deployments: Mapping[Key, Deployment]
    replicas: tuple[Replica, ...]
    demand: Mapping[tuple[str, str], Demand]
    offered: frozenset[str]


class ReplicaStore(Protocol):
    """Called from threads. Every change is durable, and on record, when it returns; each raises NotLeading where the
    term is not that of the leader any more. `end` and `meter` bill the last `within_s` seconds at most, whatever the
    store's clock; None: all of them."""

    def lead(self) -> int | None:
        """The term; the next number where the same gateway leads again with no other leader between."""
        ...

    def resign(self) -> None: ...

    def view(self) -> FleetView: ...

    def begin(self, term: int, deployment: Deployment, region: str, role: Role = "mixed") -> Replica: ...

    def ready(self, term: int, replica: Replica, backend: Backend, weights: str | None = None) -> None:
        """`weights`: SHA-256 that the backend computed; the deployment is pinned to the first. Raises OtherWeights."""
        ...

    def withdraw(self, term: int, replica: Replica) -> None: ...

    def asleep(self, term: int, replica: Replica, detail: Mapping[str, str], reason: str = "scaled_down") -> None: ...

    def done_as_asked(self, term: int, deployment: Deployment) -> None:
        """What a person asked of the deployment was done."""
        ...

    def drain(self, term: int, replica: Replica, reason: str) -> None: ...

    def end(
        self,
        term: int,
        replica: Replica,
        state: ReplicaState,
        reason: str,
        *,
        seen: bool,
        detail: Mapping[str, str],
        within_s: float | None,
        failure: str | None = None,
    ) -> None:
        """`failure`: why it did not start."""
        ...

    def meter(self, term: int, busy: Mapping[str, bool], within_s: float | None) -> None: ...
