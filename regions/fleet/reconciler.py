"""Brings what runs to what shall run: one of all gateways leads, looks, and starts or stops backends by a launcher.

Level-triggered (as Kubernetes' controllers): each pass compares the whole desired state with the whole actual state,
and begins what is missing; nothing hangs on having seen an event. Starts and stops run concurrently with the passes.

What the leader's launcher does not hold is not running: a gateway that dies takes its local backends with it, so the
next leader starts others and bills nothing of the time between. One that cannot keep its lease lets go of its own.
Where backends outlive a gateway (`regions.launchers.kubernetes`), the next leader adopts them instead.
"""

import asyncio
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from regions.errors import LaunchError
from regions.fleet.autoscaler import Sample, desired, trimmed
from regions.fleet.back_off import BackOff
from regions.fleet.demand import NOTHING, Demand
from regions.fleet.deployment import MAX_FAILURE, Deployment, Replica, ReplicaState
from regions.fleet.fleet import Backend, Role
from regions.fleet.launcher import MTP, BackendSpec, Launcher
from regions.fleet.placement import Report, least_missed, nearest, place
from regions.fleet.ports import FleetView, Key, LifecycleClient, NoLifecycle, NotLeading, OtherWeights, ReplicaStore
from regions.identity.identity import BackendIdentity

log = logging.getLogger(__name__)

EVERY_S = 1.0
METER_EVERY_S = 5.0
SETTLE_S = 2.0
"""By then no gateway sends more to a backend that was taken out of service: each learns of it within a second."""
STARTS_HERE, STARTS_ELSEWHERE = 8, 64
"""At once, on a gateway's own machine and on others. Of a tenant half of them at most: whose backends take long to
start, or never do, does not hold up the others."""
CLOCK_SLACK_S = 2.0


@dataclass(slots=True)
class _DeploymentHistory:
    """What is remembered of a deployment between passes."""

    samples: list[Sample] = field(default_factory=list)
    back_off: BackOff = field(default_factory=BackOff)


class Reconciler:
    """``asyncio.create_task(reconciler.run())``; then `close`. `report`: a backend's latest report of its load, by id.

    `models`: the folder that weights are found in. `lifecycle`: what engines are asked besides.
    """

    def __init__(
        self,
        store: ReplicaStore,
        launcher: Launcher,
        *,
        cell: str,
        models: Path,
        drafts: Mapping[str, str] = MappingProxyType({}),
        report: Report = lambda replica: None,
        lifecycle: LifecycleClient | None = None,
        every_s: float = EVERY_S,
        settle_s: float = SETTLE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._launcher = launcher
        self._cell = cell
        self._models = models
        self._drafts = drafts  # weights -> what guesses for them, see `drafting`
        self._report = report
        self._lifecycle = lifecycle or NoLifecycle()
        self._slept_at: dict[str, float] = {}
        self._every_s = every_s
        self._settle_s = settle_s
        self._monotonic = monotonic
        self._news = asyncio.Event()
        at_once = STARTS_ELSEWHERE if launcher.outlives else STARTS_HERE
        self._gate = asyncio.Semaphore(at_once)
        self._gates: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(at_once // 2))
        self._updates = asyncio.Semaphore(STARTS_HERE)  # apart, since starts are awaited by calls
        self._starting: set[str] = set()
        self._as_wished: set[str] = set()  # what outlives a gateway, and this one has seen to
        self._term: int | None = None
        self._acting: dict[str, asyncio.Task[None]] = {}
        self._ours: set[str] = set()  # those that were ready here
        self._kept: dict[Key, _DeploymentHistory] = {}
        self._metered_at = float("-inf")

    @property
    def leads(self) -> bool:
        return self._term is not None

    def nudge(self) -> None:
        """There is something to do now."""
        self._news.set()

    async def run(self) -> None:
        while True:
            self._news.clear()
            try:
                await self.reconcile()
            except Exception as error:  # of any kind: the next pass sees the whole state again
                log.warning(
                    "the reconciler retries in the next pass: %s: %s"
                    "; read the cause, it needs no action if it does not return",
                    type(error).__name__,
                    error,
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):  # wait_for could swallow the end: before 3.12 it does
                    await self._news.wait()

    async def reconcile(self) -> None:
        """One pass. Raises what the store raises."""
        term = await self._lead()
        if term is None:
            return
        view = await asyncio.to_thread(self._store.view)
        alive = await self._record_ended(term, view)
        up = self._to_keep(term, view, alive)
        self._kept = {key: self._kept.get(key) or _DeploymentHistory() for key in up}
        for key, replicas in up.items():
            deployment = view.deployments[key]
            if not deployment.draining:
                demand = view.demand.get((deployment.tenant, deployment.model), NOTHING)
                await self._scale(term, deployment, replicas, demand)
        await self._meter(term, alive)

    async def _lead(self) -> int | None:
        """The term in which this gateway leads, None where it does not; what runs is taken up or let go accordingly.

        Raises what the store and the launcher raise.
        """
        term = await asyncio.to_thread(self._store.lead)
        if self._term is not None and term == self._term + 1:
            # The lease ran out and no other gateway took it: the store was away, or its clock leapt. What runs is ours.
            log.warning("the fleet was without a leader; going on with what runs")
            await self._cancel_all()
            self._term = term
        if term != self._term and self._term is not None:
            await self._step_down()
        if term is not None and term != self._term:
            await self._launcher.adopt()  # before anything is taken for lost; if it fails, the next pass begins here
            self._as_wished.clear()
        self._term = term
        return term

    def _to_keep(self, term: int, view: FleetView, alive: Sequence[Replica]) -> dict[Key, list[Replica]]:
        """The replicas among `alive` that are to keep running, of every deployment; begins to end each of the
        others."""
        up: dict[Key, list[Replica]] = {key: [] for key in view.deployments}
        for replica in alive:
            if replica.state is ReplicaState.DRAINING:
                self._act(replica.id, self._finish(term, replica, "taken_over"))
            elif replica.key not in up or view.deployments[replica.key].draining:
                self._withdraw(term, replica)
            elif (
                replica.state is ReplicaState.READY
                and replica.id not in view.offered
                and replica.id not in self._acting
            ):
                self._withdraw(term, replica)  # revoked by hand, or half-way to sleep when something broke
            else:
                up[replica.key].append(replica)
                self._adopt(term, view.deployments[replica.key], replica)
        return up

    async def settled(self) -> None:
        """Returns when what was begun is done."""
        while self._acting:
            await asyncio.gather(*self._acting.values(), return_exceptions=True)

    async def close(self) -> None:
        """Stop all that is ours, unless it outlives us, and let another lead."""
        term, self._term = self._term, None
        held = set(self._launcher.running)
        await self._cancel_all()
        await self._launcher.close()
        if term is None:
            return
        try:
            view = await asyncio.to_thread(self._store.view)
            for replica in view.replicas:  # also those that were just to be started, or began to end
                if not self._launcher.outlives:
                    with suppress(NotLeading):  # it has ended meanwhile
                        await self._end(term, replica, ReplicaState.STOPPED, "gateway_stopped", seen=replica.id in held)
            await asyncio.to_thread(self._store.resign)
        except Exception as error:  # the next leader will find them gone
            log.warning(
                "the fleet could not be handed over: %s: %s; the next gateway that leads takes the replicas over",
                type(error).__name__,
                error,
            )

    async def _step_down(self) -> None:
        """Another may lead: what we hold is not ours to run any more. The other takes it out of service."""
        await self._cancel_all()
        if self._launcher.outlives:
            log.warning("another gateway leads the fleet; it needs no action")
        else:
            log.warning("another gateway leads the fleet; ending the backends of this one")
            for replica in list(self._launcher.running):
                await self._launcher.stop(replica)
        self._kept.clear()

    async def _cancel_all(self) -> None:
        tasks = list(self._acting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._acting.clear()

    async def _record_ended(self, term: int, view: FleetView) -> list[Replica]:
        """Note the end of replicas that run no more; stop those that are in no record. Returns those that live."""
        running = self._launcher.running
        alive = []
        for replica in view.replicas:
            if replica.id in running or replica.id in self._acting:
                alive.append(replica)
                continue
            ours = replica.id in self._ours
            if ours and replica.state is ReplicaState.DRAINING:  # it was stopped; only that could not be written
                await self._end(term, replica, ReplicaState.STOPPED, "taken_over", seen=False)
                continue
            await self._end(term, replica, ReplicaState.FAILED, "crashed" if ours else "lost", seen=False)
            if ours:
                self._back_off(replica)
        known = {replica.id for replica in view.replicas}
        for stray in [each for each in running if each not in known and each not in self._acting]:
            self._act(stray, self._launcher.stop(stray))
        return alive

    async def _scale(self, term: int, deployment: Deployment, replicas: list[Replica], demand: Demand) -> None:
        for_prompts = [replica for replica in replicas if replica.role == "prefill"]
        others = [replica for replica in replicas if replica.role != "prefill"]
        answering = await self._scale_answering(term, deployment, others, demand)
        if deployment.prefill or for_prompts:
            await self._scale_prefill(term, deployment, for_prompts, answering)

    async def _scale_answering(
        self, term: int, deployment: Deployment, replicas: list[Replica], demand: Demand
    ) -> list[Replica]:
        """Those that are up, or come up, and are wanted."""
        kept, now = self._kept[deployment.key], self._monotonic()
        sleeping = [replica for replica in replicas if replica.state is ReplicaState.ASLEEP]
        replicas = [replica for replica in replicas if replica.state is not ReplicaState.ASLEEP]
        kept.samples = trimmed([*kept.samples, self._sample(replicas, demand, now)], now)
        wanted = desired(deployment, len(replicas), kept.samples, now)
        if demand.regions and not demand.regions & {replica.region for replica in replicas}:
            wanted = min(max(wanted, len(replicas) + 1), deployment.max_replicas)
        if deployment.asked is not None:
            wanted = await self._as_asked(term, deployment, replicas, demand, wanted)
        for replica in nearest(sleeping, demand)[: max(0, wanted - len(replicas))]:
            sleeping.remove(replica)
            replicas.append(replica)
            self._act(replica.id, self._wake(term, replica))
        self._end_long_sleep(term, deployment, sleeping, now)
        if now >= kept.back_off.not_before:
            while len(replicas) < wanted:
                region = place(deployment, replicas, demand)
                replicas.append(await self._begin(term, deployment, region, deployment.answering))
        for replica in least_missed(replicas, self._report)[: max(0, len(replicas) - wanted)]:
            self._act(replica.id, self._spare(term, deployment, replica))
        return replicas[:wanted]

    async def _as_asked(
        self, term: int, deployment: Deployment, up: Sequence[Replica], demand: Demand, wanted: int
    ) -> int:
        """How many there should be where a person put the deployment to sleep or woke it. A call that waits while none
        is up ends the sleep; a replica that is up ends the waking, and counts as busy until now."""
        if deployment.asked == "asleep":
            if up or not demand.parked:
                return 0
        elif not any(replica.state is ReplicaState.READY for replica in up):
            return max(wanted, 1)
        else:
            kept = self._kept[deployment.key]
            kept.samples, wanted = kept.samples[-1:], max(wanted, 1)
        await asyncio.to_thread(self._store.done_as_asked, term, deployment)
        return wanted

    def _spare(self, term: int, deployment: Deployment, replica: Replica) -> Coroutine[Any, Any, None]:
        """What becomes of one that is not needed."""
        if deployment.asked == "asleep":
            return self._sleep(term, replica, "put_to_sleep")
        return self._sleep(term, replica) if deployment.asleep_s else self._drain(term, replica, "scaled_down")

    def _end_long_sleep(self, term: int, deployment: Deployment, sleeping: list[Replica], now: float) -> None:
        for replica in sleeping if deployment.asked != "asleep" else ():
            if now - self._slept_at.setdefault(replica.id, now) >= deployment.asleep_s:
                self._act(replica.id, self._drain(term, replica, "slept_long"))

    async def _scale_prefill(
        self, term: int, deployment: Deployment, replicas: list[Replica], answering: Sequence[Replica]
    ) -> None:
        """As many replicas for prompts as the deployment has while others answer, else none: in the region of the
        first of these, where the way is shortest."""
        wanted = deployment.prefill if answering else 0
        if self._monotonic() >= self._kept[deployment.key].back_off.not_before:
            while len(replicas) < wanted:
                replicas.append(await self._begin(term, deployment, answering[0].region, "prefill"))
        for replica in replicas[wanted:]:
            self._act(replica.id, self._drain(term, replica, "scaled_down"))

    async def _begin(self, term: int, deployment: Deployment, region: str, role: Role) -> Replica:
        replica = await asyncio.to_thread(self._store.begin, term, deployment, region, role)
        self._act(replica.id, self._start(term, deployment, replica))
        return replica

    def _sample(self, replicas: Sequence[Replica], demand: Demand, now: float) -> Sample:
        if not replicas and demand is NOTHING:
            return Sample(now, 0, 0)
        reports = [report for replica in replicas if (report := self._report(replica.id)) is not None]
        waiting = sum(report.waiting for report in reports)
        calls = max(demand.in_flight, sum(report.running for report in reports) + waiting) + demand.parked
        fullest = max((report.kv_use for report in reports), default=0.0)
        starting = sum(replica.state is ReplicaState.STARTING for replica in replicas)
        return Sample(now, len(replicas), calls, waiting + demand.parked, fullest, demand.ttft_ms, starting)

    def _adopt(self, term: int, deployment: Deployment, replica: Replica) -> None:
        """What an earlier leader began and did not see to its end, or started with settings that are others by now."""
        if replica.id in self._acting or not self._launcher.outlives:
            return
        if replica.state is ReplicaState.STARTING:
            self._act(replica.id, self._start(term, deployment, replica))
        elif replica.state is ReplicaState.READY and replica.id not in self._as_wished:
            self._as_wished.add(replica.id)
            self._act(replica.id, self._update(deployment, replica))

    async def _update(self, deployment: Deployment, replica: Replica) -> None:
        """It answers meanwhile, and if it fails, too: the old goes when the new is ready."""
        try:
            async with self._updates:
                await self._launcher.start(self._spec(deployment, replica))
        except LaunchError as error:
            log.warning("%s", error)

    def _spec(self, deployment: Deployment, replica: Replica) -> BackendSpec:
        identity = BackendIdentity(self._cell, replica.tenant, replica.region, replica.id)
        cards = deployment.cards
        divided = ("--tensor-parallel-size", str(cards.count)) if cards.count > 1 else ()
        kind, draft = drafting(self._drafts.get(deployment.weights))
        return BackendSpec(
            identity,
            self._models / deployment.weights,
            deployment.model,
            card=cards.name,
            cards=max(1, cards.count),
            options=divided,
            draft=None if draft is None else self._models / draft,
            speculation=kind,
            role=replica.role,
        )

    async def _start(self, term: int, deployment: Deployment, replica: Replica) -> None:
        self._starting.add(replica.id)
        self._as_wished.add(replica.id)
        named = f"{replica.id} of {replica.tenant}/{deployment.id} in {replica.region}"
        log.info("starting backend %s (model %s on %s)", named, deployment.model, deployment.gpu)
        began = self._monotonic()
        try:
            async with self._gates[replica.tenant], self._gate:
                running = await self._launcher.start(self._spec(deployment, replica))
        except LaunchError as error:
            log.warning("%s", error)
            self._back_off(replica)
            await self._end(
                term, replica, ReplicaState.FAILED, "did_not_start", seen=True, failure=_why(error, replica)
            )
            return
        except asyncio.CancelledError:
            if replica.id in self._starting:
                raise
            await self._end(term, replica, ReplicaState.STOPPED, "withdrawn", seen=True)
            return
        finally:
            self._starting.discard(replica.id)
        try:
            await self._offer(term, replica, running.backend)
            self._ours.add(replica.id)
        except OtherWeights as error:
            log.warning("%s", error)
            await self._launcher.stop(replica.id)
            self._back_off(replica)
            await self._end(term, replica, ReplicaState.FAILED, "other_weights", seen=True, failure=str(error))
            return
        except BaseException:  # the store does not know of it, so it must not keep running
            await self._launcher.stop(replica.id)
            raise
        log.info("backend %s is ready after %.0f s", named, self._monotonic() - began)

    async def _offer(self, term: int, replica: Replica, backend: Backend) -> None:
        """Gateways may call it from now on. Raises OtherWeights where it runs others than its deployment is pinned
        to."""
        weights = await self._lifecycle.weights(backend)
        await asyncio.to_thread(self._store.ready, term, replica, backend, weights)

    async def _sleep(self, term: int, replica: Replica, reason: str = "scaled_down") -> None:
        """Out of service, then asleep; one that cannot sleep is stopped."""
        await asyncio.to_thread(self._store.withdraw, term, replica)
        await asyncio.sleep(self._settle_s)
        running = self._launcher.running.get(replica.id)
        slept = await self._lifecycle.sleep(running.backend) if running is not None else None
        if slept is None:
            await self._drain(term, replica, reason)
            return
        self._slept_at[replica.id] = self._monotonic()
        await asyncio.to_thread(self._store.asleep, term, replica, slept, reason)
        log.info("backend %s of %s sleeps: %s", replica.id, replica.tenant, reason)

    async def _wake(self, term: int, replica: Replica) -> None:
        """In service again; one that does not wake is stopped, and the next pass starts another."""
        self._slept_at.pop(replica.id, None)
        running = self._launcher.running.get(replica.id)
        reason = "did_not_wake"
        if running is not None and await self._lifecycle.wake(running.backend):
            try:
                await self._offer(term, replica, running.backend)
                log.info("backend %s of %s is awake", replica.id, replica.tenant)
                return
            except OtherWeights as error:
                log.warning("%s", error)
                reason = "other_weights"
        await self._drain(term, replica, reason)

    def _withdraw(self, term: int, replica: Replica) -> None:
        """It is wanted no more; a start that is under way is given up."""
        if replica.id in self._starting:
            self._starting.remove(replica.id)
            self._acting[replica.id].cancel()  # once: it takes its time to end what it began
        else:
            self._act(replica.id, self._drain(term, replica, "withdrawn"))

    async def _drain(self, term: int, replica: Replica, reason: str) -> None:
        log.info("stopping backend %s of %s: %s", replica.id, replica.tenant, reason)
        await asyncio.to_thread(self._store.drain, term, replica, reason)
        await self._finish(term, replica, reason)

    async def _finish(self, term: int, replica: Replica, reason: str) -> None:
        await asyncio.sleep(self._settle_s)
        running = self._launcher.running.get(replica.id)
        released = await self._lifecycle.release(running.backend) if running is not None else {}
        await self._launcher.stop(replica.id)
        await self._end(term, replica, ReplicaState.STOPPED, reason, seen=True, detail=released)

    async def _end(
        self,
        term: int,
        replica: Replica,
        state: ReplicaState,
        reason: str,
        *,
        seen: bool,
        detail: Mapping[str, str] = MappingProxyType({}),
        failure: str | None = None,
    ) -> None:
        within = self._since_metered()
        await asyncio.to_thread(
            self._store.end, term, replica, state, reason, seen=seen, detail=detail, within_s=within, failure=failure
        )
        self._ours.discard(replica.id)
        self._as_wished.discard(replica.id)
        self._slept_at.pop(replica.id, None)

    async def _meter(self, term: int, alive: Sequence[Replica]) -> None:
        now = self._monotonic()
        if now - self._metered_at >= METER_EVERY_S:
            if alive:
                busy = {replica.id: self._busy(replica) for replica in alive}
                await asyncio.to_thread(self._store.meter, term, busy, self._since_metered())
            self._metered_at = now

    def _since_metered(self) -> float | None:
        """What can be unbilled by our own clock; None before we have billed: another leader may have left some."""
        since = self._monotonic() - self._metered_at
        return since + CLOCK_SLACK_S if since < float("inf") else None

    def _busy(self, replica: Replica) -> bool:
        report = self._report(replica.id)
        return report is not None and report.running + report.waiting > 0

    def _back_off(self, replica: Replica) -> None:
        if (kept := self._kept.get(replica.key)) is not None:
            kept.back_off.failed(self._monotonic())

    def _act(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Concurrent with the passes; one action at a time for one replica."""
        if name in self._acting:
            work.close()
            return
        self._acting[name] = task = asyncio.create_task(work, name=f"fleet {name}")

        def done(task: asyncio.Task[None]) -> None:
            if self._acting.get(name) is task:
                del self._acting[name]
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning(
                    "replica %s: %s: %s; read the cause, the next pass tries again", name, type(error).__name__, error
                )
            self.nudge()

        task.add_done_callback(done)


def _why(error: LaunchError, replica: Replica) -> str:
    """Why a replica did not start, in one line for its callers: they need neither its name nor the host's folders, and
    of the end of its log (lines that begin with a bar) only the one that states the error, which is the last."""
    lines = [line.strip() for line in str(error).splitlines()]
    logged = [line for line in lines if line.startswith("|")]
    stated = [line for line in logged if line.startswith("| error: ")] or logged
    told = " ".join(line for line in lines if line not in logged or line == stated[-1])
    reason = re.sub(r"(?:/[^\s:;,'\"/]+)+/([^\s:;,'\"/]+)", r"\1", " ".join(told.split()))
    return reason.replace(f" for {replica.id}", "").replace(f"backend {replica.id} ", "it ")[:MAX_FAILURE]


def drafting(said: str | None) -> tuple[str, str | None]:
    """What a setting of `fleet.draft_models` means: how tokens are guessed, as `backend serve` names it, and by which
    weights; mtp has none but the model's own."""
    if said is None or said == MTP:
        return said or "model", None
    kind, _, name = said.rpartition(":")
    return kind or "model", name
