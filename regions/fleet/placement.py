"""Which replica of a deployment comes, wakes or goes, and where. Pure."""

from collections import Counter
from collections.abc import Callable, Sequence

from regions.fleet.demand import Demand
from regions.fleet.deployment import Deployment, Replica, ReplicaState
from regions.fleet.fleet import EngineReport

Report = Callable[[str], EngineReport | None]
"""A backend's latest report of its load, by id."""


def place(deployment: Deployment, replicas: Sequence[Replica], demand: Demand) -> str:
    """Where waiting calls may be answered, if nothing is there yet; else where the fewest are, the preferred first."""
    count = Counter(replica.region for replica in replicas)
    asked = [region for region in deployment.regions if region in demand.regions]
    choices = asked if asked and not any(count[region] for region in asked) else deployment.regions
    return min(choices, key=lambda region: count[region])


def nearest(sleeping: Sequence[Replica], demand: Demand) -> list[Replica]:
    """Those first that may answer who waits; none where they all may not."""
    if demand.regions:
        sleeping = [replica for replica in sleeping if replica.region in demand.regions]
    return sorted(sleeping, key=lambda replica: replica.started_at)


def least_missed(replicas: Sequence[Replica], report: Report) -> list[Replica]:
    """Those that do least first, of these the youngest: the old have the fuller prefix caches."""

    def missed(replica: Replica) -> tuple[int, float]:
        load = report(replica.id)
        return (0 if load is None else load.running + load.waiting), -replica.started_at

    return sorted((replica for replica in replicas if replica.state is ReplicaState.READY), key=missed)
