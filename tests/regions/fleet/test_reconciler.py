"""Over the real store and the record's events; only the launcher starts something else than processes."""

import asyncio
from pathlib import Path

import pytest

from gateway.database.database import Database
from gateway.database.errors import InvalidValue, NotFound
from gateway.database.tables.fleet import DeploymentRow
from gateway.identity.keys import KeyHasher
from gateway.store.control.control import Control
from gateway.store.fleet.demand import write_demand
from gateway.store.fleet.fleet_store import FleetStore
from gateway.store.reports.fleet_inventory import deployment_at, replicas_of
from gateway.store.reports.inventory import Inventory
from regions.fleet.demand import Demand, DemandReport
from regions.fleet.deployment import Deployment, Scale
from regions.fleet.fleet import EngineReport
from regions.fleet.reconciler import Reconciler
from tests.fakes.lab import until
from tests.fakes.launcher import FakeLauncher

WISH = Deployment(
    tenant="acme",
    id="small",
    model="small",
    weights="small.gguf",
    regions=("eu-fr-par", "eu-de-fra"),
    min_replicas=1,
    max_replicas=3,
    calls_each=2,
)
PAR, FRA = frozenset({"eu-fr-par"}), frozenset({"eu-de-fra"})


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Scene:
    def __init__(self, database):
        self.database, self.events, self.clock, self.reports = database, [], Clock(), {}
        self.control = Control(
            database,
            cell="demo",
            hasher=KeyHasher(bytes(32)),
            actor="cli",
            check_policy=None,
            on_event=self.events.append,
        )
        self.control.create_tenant("acme")

    def gateway(self, node="one", launcher=None, lease_s=10.0, **more):
        launcher = launcher or FakeLauncher()
        store = FleetStore(self.database, cell="demo", node=node, on_event=self.events.append, lease_s=lease_s)
        made = Reconciler(
            store,
            launcher,
            cell="demo",
            models=Path("/models"),
            report=self.reports.get,
            settle_s=0.0,
            monotonic=self.clock,
            **more,
        )
        made.launcher = launcher
        return made

    def wish(self, **changed):
        return self.control.create_deployment(WISH.model_copy(update=changed))

    def demand(self, **figures):
        write_demand(self.database, "demo", "g1", [DemandReport("acme", "small", Demand(**figures))])

    def replicas(self, ended=False):
        return replicas_of(self.database, "acme", "small", ended=ended).items

    def offered(self):
        return sorted(b.id for b in Inventory(self.database).backends("acme") if b.revoked_at is None)

    def told(self, prefix="replica."):
        return [event.action for event in self.events if event.action.startswith(prefix)]


@pytest.fixture
def scene(tmp_path):
    database = Database.open(tmp_path / "data")
    yield Scene(database)
    database.close()


async def passes(reconciler, times=1):
    for _ in range(times):
        await reconciler.reconcile()
        await reconciler.settled()


async def test_what_shall_run_does_and_every_gateway_may_call_it(scene):
    scene.wish()
    one = scene.gateway()
    await passes(one)
    (replica,) = scene.replicas()
    assert (replica.state, replica.region) == ("ready", "eu-fr-par")
    assert scene.offered() == [replica.id] == list(one.launcher.running)
    spec = one.launcher.specs[0]
    assert (spec.model, spec.served_name, spec.card) == (Path("/models/small.gguf"), "small", "cpu")
    assert scene.told() == ["replica.starting", "replica.ready"]
    await one.close()


async def test_a_replica_of_several_cards_has_its_model_divided_among_them(scene):
    scene.wish(gpu="4xh100")
    one = scene.gateway()
    await passes(one)
    (replica,) = scene.replicas()
    spec = one.launcher.specs[0]
    assert (replica.gpu, spec.card, spec.cards) == ("4xh100", "h100", 4)
    assert spec.options == ("--tensor-parallel-size", "4")
    await one.close()


async def test_a_smaller_model_guesses_for_those_weights_alone_that_have_one(scene):
    scene.wish()
    one = scene.gateway(drafts={"small.gguf": "tiny/draft", "other": "tiny"})
    await passes(one)
    assert one.launcher.specs[0].draft == Path("/models/tiny/draft")
    await one.close()
    two = scene.gateway(node="two", drafts={"other": "tiny"})
    assert two._drafts.get("small.gguf") is None
    await two.close()


@pytest.mark.parametrize(
    ("said", "speculation", "draft"),
    [
        ("eagle3:tiny/head", "eagle3", Path("/models/tiny/head")),
        ("mtp", "mtp", None),
        ("small", "model", Path("/models/small")),
    ],
)
async def test_a_head_guesses_for_weights_that_have_one(scene, said, speculation, draft):
    scene.wish()
    one = scene.gateway(drafts={"small.gguf": said})
    await passes(one)
    spec = one.launcher.specs[0]
    assert (spec.speculation, spec.draft) == (speculation, draft)
    await one.close()


async def test_a_pass_more_changes_nothing(scene):
    scene.wish()
    one = scene.gateway()
    await passes(one, 4)
    assert len(one.launcher.specs) == 1
    await one.close()


async def test_a_start_that_takes_long_is_not_begun_twice(scene):
    scene.wish()
    one = scene.gateway(launcher=FakeLauncher(takes_s=0.3))
    for _ in range(3):
        await one.reconcile()
    await one.settled()
    assert len(one.launcher.specs) == 1
    await one.close()


async def test_many_calls_bring_more_replicas_and_their_end_takes_them_away(scene):
    scene.wish()
    one = scene.gateway()
    await passes(one)
    scene.demand(in_flight=6)
    await passes(one)
    assert len(scene.offered()) == 3
    scene.demand(in_flight=0)
    for _ in range(100):
        scene.clock.now += 4
        await passes(one)
    assert len(scene.offered()) == 1
    assert scene.told().count("replica.stopped") == 2
    await one.close()


async def test_it_never_has_more_than_it_may(scene):
    scene.wish(max_replicas=2)
    one = scene.gateway()
    scene.demand(in_flight=500)
    await passes(one, 3)
    assert len(scene.offered()) == 2
    await one.close()


async def test_the_one_that_does_least_goes(scene):
    scene.wish(min_replicas=2)
    one = scene.gateway()
    await passes(one)
    busy, idle = scene.offered()
    scene.reports[busy] = EngineReport(3, 0, 0.1)
    scene.control.scale_deployment("acme", "small", Scale(min_replicas=1, max_replicas=1))
    await passes(one)
    assert scene.offered() == [busy]
    assert one.launcher.stopped == [idle]
    await one.close()


async def test_a_sleeping_deployment_wakes_for_a_call_that_waits_and_sleeps_again(scene):
    scene.wish(min_replicas=0, idle_s=60)
    one = scene.gateway()
    await passes(one)
    assert scene.replicas() == ()
    scene.demand(parked=1, regions=PAR)
    await passes(one)
    assert len(scene.offered()) == 1
    scene.demand()
    scene.clock.now += 61
    await passes(one, 2)
    assert scene.offered() == []
    await one.close()


async def test_it_is_started_where_the_call_may_be_answered(scene):
    scene.wish(min_replicas=0)
    one = scene.gateway()
    scene.demand(parked=1, regions=FRA)
    await passes(one)
    assert [replica.region for replica in scene.replicas()] == ["eu-de-fra"]
    await one.close()


async def test_a_call_that_the_running_ones_may_not_answer_gets_its_own(scene):
    scene.wish()
    one = scene.gateway()
    await passes(one)
    scene.demand(parked=1, regions=FRA)
    await passes(one)
    assert [replica.region for replica in scene.replicas()].count("eu-de-fra") == 1
    await one.close()


async def test_replicas_spread_over_the_regions(scene):
    scene.wish(min_replicas=2)
    one = scene.gateway()
    await passes(one)
    assert sorted(replica.region for replica in scene.replicas()) == ["eu-de-fra", "eu-fr-par"]
    await one.close()


async def test_after_a_crash_another_is_started_later_and_later(scene):
    scene.wish()
    one = scene.gateway()
    waits = []
    for _ in range(4):
        await passes(one)
        (only,) = scene.offered()
        await one.launcher.crash(only)
        crashed = scene.clock.now
        await passes(one)
        assert scene.offered() == []
        while not scene.offered():
            scene.clock.now += 0.5
            await passes(one)
        waits.append(scene.clock.now - crashed)
    assert waits == [1, 2, 4, 8]
    assert {each.reason for each in scene.replicas(ended=True) if each.state == "failed"} == {"crashed"}
    await one.close()


async def test_five_quiet_minutes_forgive(scene):
    scene.wish()
    one = scene.gateway()
    for quiet in (0, 0, 301):
        scene.clock.now += quiet
        await passes(one)
        await one.launcher.crash(scene.offered()[0])
        await passes(one)
        scene.clock.now += 2
    await passes(one)
    assert scene.offered()
    await one.close()


async def test_a_start_that_fails_leaves_nothing_offered_and_is_tried_again(scene):
    scene.wish()
    one = scene.gateway(launcher=FakeLauncher(fails=1))
    await passes(one)
    assert scene.offered() == []
    scene.clock.now += 1
    await passes(one)
    assert len(scene.offered()) == 1
    assert scene.told() == ["replica.starting", "replica.failed", "replica.starting", "replica.ready"]
    await one.close()


@pytest.mark.parametrize("end", ["drain", "delete", "revoke"])
async def test_what_is_drained_deleted_or_revoked_is_taken_out_of_service_before_it_stops(scene, end):
    scene.wish()
    one = scene.gateway()
    await passes(one)
    if end == "revoke":
        scene.control.revoke_tenant("acme")
    else:
        getattr(scene.control, f"{end}_deployment")("acme", "small")
    await passes(one)
    assert (scene.offered(), dict(one.launcher.running)) == ([], {})
    assert scene.told("")[-3:] == ["backend.revoked", "replica.draining", "replica.stopped"]
    scene.demand(parked=3, regions=PAR)
    await passes(one, 2)
    assert len(one.launcher.specs) == 1
    await one.close()


async def test_only_one_of_two_gateways_acts(scene):
    scene.wish()
    one, two = scene.gateway("one"), scene.gateway("two")
    for _ in range(3):
        await asyncio.gather(one.reconcile(), two.reconcile())
        await asyncio.gather(one.settled(), two.settled())
    assert sorted([len(one.launcher.specs), len(two.launcher.specs)]) == [0, 1]
    assert one.leads != two.leads
    await one.close()
    await two.close()


async def test_the_next_leader_replaces_what_the_former_took_with_it(scene):
    scene.wish()
    one, two = scene.gateway("one", lease_s=-1.0), scene.gateway("two")
    assert await asyncio.to_thread(one._store.lead)
    one._store._lease._ttl_s = 0.6
    await passes(one)
    (old,) = scene.offered()
    await asyncio.sleep(0.7)  # it died: its lease runs out
    await passes(two)
    (new,) = scene.offered()
    assert new != old
    assert {each.id: each.reason for each in scene.replicas(ended=True)}[old] == "lost"
    await two.close()
    await one.close()


async def test_a_former_leader_that_wakes_up_ends_its_own_backends(scene):
    scene.wish()
    one, two = scene.gateway("one"), scene.gateway("two")
    await passes(one)
    one._store._lease._ttl_s = -1.0
    await asyncio.to_thread(one._store.lead)  # as if it had been suspended since
    await passes(two)
    await passes(one)
    assert dict(one.launcher.running) == {}
    assert not one.leads
    assert len(scene.offered()) == 1
    await two.close()


async def test_a_gateway_that_is_stopped_hands_over_at_once(scene):
    scene.wish()
    one, two = scene.gateway("one"), scene.gateway("two")
    await passes(one)
    await one.close()
    assert scene.offered() == []
    assert [each.reason for each in scene.replicas(ended=True)] == ["gateway_stopped"]
    await passes(two)
    assert len(scene.offered()) == 1
    await two.close()


async def test_a_backend_that_cannot_be_registered_is_stopped_again(scene):
    scene.wish()
    one = scene.gateway()
    real = one._store.ready

    def full(*_):
        one._store.ready = real
        raise OSError("the disk is full")

    one._store.ready = full
    await passes(one)
    assert (scene.offered(), dict(one.launcher.running)) == ([], {})
    await passes(one)
    scene.clock.now += 2
    await passes(one)
    assert len(scene.offered()) == 1
    await one.close()


async def test_passes_go_on_when_the_store_is_away(scene, caplog):
    scene.wish()
    one = scene.gateway()
    real, failed = one._store.view, []

    def away():
        if len(failed) < 2:
            failed.append(1)
            raise OSError("no connection")
        return real()

    one._store.view = away
    one._every_s = 0.01
    task = asyncio.create_task(one.run())
    while not scene.offered():
        await asyncio.sleep(0.02)
    task.cancel()
    assert "the reconciler retries in the next pass: OSError: no connection" in caplog.text
    await one.close()


async def test_time_up_is_billed_while_it_runs_and_to_the_end(scene):
    scene.wish()
    one = scene.gateway()
    await passes(one)
    await asyncio.sleep(0.3)
    await one.close()
    with scene.database.engine.connect() as connection:
        row = connection.exec_driver_sql("SELECT replica, up_ms FROM uptime").one()
    (ended,) = scene.replicas(ended=True)
    assert row.replica == ended.id
    life = (ended.ended_at - ended.created_at).total_seconds() * 1000
    assert abs(row.up_ms - life) <= 2


class FakeLifecycle:
    """`able`: whether it can sleep. `wakes`: whether it wakes up again."""

    def __init__(self, able=True, wakes=True, runs=None):
        self.able, self.wakes, self.asked, self.runs = able, wakes, [], runs

    async def weights(self, backend):
        return self.runs

    async def release(self, backend):
        self.asked.append(("release", backend.id))
        return {"cache": "zeroed", "released_bytes": "4096"}

    async def sleep(self, backend):
        self.asked.append(("sleep", backend.id))
        return {"cache": "zeroed", "released_bytes": "4096"} if self.able else None

    async def wake(self, backend):
        self.asked.append(("wake", backend.id))
        return self.wakes


async def test_before_it_stops_it_is_released_and_the_record_says_how(scene):
    scene.wish()
    lifecycle = FakeLifecycle()
    one = scene.gateway(lifecycle=lifecycle)
    await passes(one)
    (name,) = scene.offered()
    scene.control.drain_deployment("acme", "small")
    await passes(one)
    assert lifecycle.asked == [("release", name)]
    stopped = scene.events[-1]
    assert (stopped.action, stopped.detail["cache"], stopped.detail["released_bytes"]) == (
        "replica.stopped", "zeroed", "4096",
    )  # fmt: skip
    await one.close()


async def asleep(scene, **lifecycle):
    """A deployment whose one replica has fallen asleep; the gateway, what was asked of engines, the replica's name."""
    scene.wish(min_replicas=0, idle_s=60, asleep_s=600)
    made = FakeLifecycle(**lifecycle)
    one = scene.gateway(lifecycle=made)
    scene.demand(parked=1, regions=PAR)
    await passes(one)
    (name,) = scene.offered()
    scene.demand()
    scene.clock.now += 61
    await passes(one, 2)
    return one, made, name


async def test_when_idle_it_sleeps_out_of_service_and_is_woken_by_the_next_call(scene):
    one, lifecycle, name = await asleep(scene)
    assert scene.offered() == []
    assert [(each.id, each.state) for each in scene.replicas()] == [(name, "asleep")]
    scene.demand(parked=1, regions=PAR)
    await passes(one)
    assert scene.offered() == [name]
    assert len(one.launcher.specs) == 1
    assert lifecycle.asked == [("sleep", name), ("wake", name)]
    told = ["replica.starting", "replica.ready", "replica.asleep", "replica.ready"]
    assert scene.told() == told
    await one.close()


async def test_put_to_sleep_all_sleep_for_as_long_as_no_call_waits_whatever_the_least_number_is(scene):
    scene.wish(min_replicas=2)
    lifecycle = FakeLifecycle()
    one = scene.gateway(lifecycle=lifecycle)
    await passes(one)
    names = scene.offered()
    scene.demand(in_flight=3)
    scene.control.put_deployment_to_sleep("acme", "small")
    await passes(one, 2)
    assert scene.offered() == [] and len(names) == 2
    assert {(each.id, each.state, each.reason) for each in scene.replicas()} == {
        (name, "asleep", "put_to_sleep") for name in names
    }
    scene.demand()
    scene.clock.now += 3600  # it has no time after which those asleep end, and would end them at once
    await passes(one, 2)
    assert [each.state for each in scene.replicas()] == ["asleep"] * 2
    scene.demand(parked=1, regions=PAR | FRA)
    await passes(one, 2)
    assert scene.offered() == names
    assert sorted(lifecycle.asked[2:]) == [("wake", name) for name in names]
    assert deployment_at(scene.database, "acme", "small").asked is None
    await one.close()


async def test_put_to_sleep_an_engine_that_cannot_is_stopped_and_none_is_started_in_its_place(scene):
    scene.wish()
    one = scene.gateway(lifecycle=FakeLifecycle(able=False))
    await passes(one)
    scene.control.put_deployment_to_sleep("acme", "small")
    await passes(one, 3)
    assert scene.replicas() == () and len(one.launcher.specs) == 1
    assert [each.reason for each in scene.replicas(ended=True)] == ["put_to_sleep"]
    await one.close()
    two = scene.gateway(node="two")  # another gateway leads: what was asked still holds
    await passes(two, 2)
    assert scene.replicas() == ()
    scene.demand(parked=1, regions=PAR)
    await passes(two)
    assert len(scene.offered()) == 1
    await two.close()


async def test_woken_one_comes_up_without_a_call_and_sleeps_again_when_it_was_idle_for_its_time(scene):
    one, lifecycle, name = await asleep(scene)
    scene.control.wake_deployment("acme", "small")
    await passes(one, 2)
    assert scene.offered() == [name] and lifecycle.asked[-1] == ("wake", name)
    assert deployment_at(scene.database, "acme", "small").asked is None
    scene.clock.now += 50
    await passes(one, 2)
    assert scene.offered() == [name]
    scene.clock.now += 20
    await passes(one, 2)
    assert scene.offered() == [] and [each.state for each in scene.replicas()] == ["asleep"]
    await one.close()


async def test_woken_one_is_started_where_none_sleeps(scene):
    scene.wish(min_replicas=0)
    one = scene.gateway()
    await passes(one, 2)
    assert scene.replicas() == ()
    scene.control.wake_deployment("acme", "small")
    await passes(one, 2)
    assert len(scene.offered()) == 1
    await one.close()


async def test_what_a_person_asks_meanwhile_is_not_taken_for_done(scene):
    scene.wish()
    one = scene.gateway(lifecycle=FakeLifecycle())
    await passes(one)
    scene.control.wake_deployment("acme", "small")
    before = one._store.done_as_asked

    def late(term, deployment):
        scene.control.put_deployment_to_sleep("acme", "small")
        before(term, deployment)

    one._store.done_as_asked = late
    await passes(one)
    assert deployment_at(scene.database, "acme", "small").asked == "asleep"
    await passes(one, 2)
    assert scene.offered() == []
    await one.close()


async def test_one_that_slept_long_is_stopped(scene):
    one, lifecycle, name = await asleep(scene)
    scene.clock.now += 599
    await passes(one)
    assert [each.state for each in scene.replicas()] == ["asleep"]
    scene.clock.now += 2
    await passes(one)
    assert scene.replicas() == ()
    assert one.launcher.stopped == [name]
    assert lifecycle.asked[-1] == ("release", name)
    await one.close()


async def test_an_engine_that_cannot_sleep_is_stopped_at_once(scene):
    one, _, name = await asleep(scene, able=False)
    assert scene.replicas() == ()
    assert one.launcher.stopped == [name]
    assert "replica.asleep" not in scene.told()
    await one.close()


async def test_one_that_does_not_wake_is_stopped_and_another_started(scene):
    one, _, name = await asleep(scene, wakes=False)
    scene.demand(parked=1, regions=PAR)
    await passes(one, 2)
    (other,) = scene.offered()
    assert other != name
    assert one.launcher.stopped == [name]
    await one.close()


async def test_one_that_sleeps_elsewhere_than_the_call_may_go_is_left_asleep(scene):
    one, _, name = await asleep(scene)
    scene.demand(parked=1, regions=FRA)
    await passes(one)
    assert [each.region for each in scene.replicas() if each.state == "ready"] == ["eu-de-fra"]
    assert [each.id for each in scene.replicas() if each.state == "asleep"] == [name]
    await one.close()


async def test_one_that_dies_asleep_is_noted(scene):
    one, _, name = await asleep(scene)
    await one.launcher.crash(name)
    await passes(one)
    assert scene.replicas() == ()
    assert scene.told()[-1] == "replica.failed"
    await one.close()


async def test_a_deployment_that_is_drained_wakes_nobody_and_stops_those_asleep(scene):
    one, lifecycle, name = await asleep(scene)
    scene.control.drain_deployment("acme", "small")
    scene.demand(parked=1, regions=PAR)
    await passes(one)
    assert one.launcher.stopped == [name]
    assert ("wake", name) not in lifecycle.asked
    await one.close()


# --- what goes wrong half-way ----------------------------------------------------------------------------------------


async def test_a_lease_that_ran_out_and_nobody_took_costs_no_backend(scene):
    """The database was away for longer than a lease, or its clock leapt."""
    scene.wish()
    one = scene.gateway()
    await passes(one)
    (only,) = scene.offered()
    before = one._term
    one._store._lease._ttl_s = -1.0
    await asyncio.to_thread(one._store.lead)
    one._store._lease._ttl_s = 10.0
    await passes(one, 2)
    assert one._term == before + 1
    assert (scene.offered(), list(one.launcher.running), one.launcher.stopped) == ([only], [only], [])
    await one.close()


async def test_a_start_under_way_when_another_leads_ends_and_the_other_s_is_the_only_one(scene):
    scene.wish()
    slow = FakeLauncher(takes_s=0.5)
    one, two = scene.gateway("one", launcher=slow), scene.gateway("two")
    await one.reconcile()
    one._store._lease._ttl_s = -1.0
    await asyncio.to_thread(one._store.lead)
    await passes(two)
    await passes(one)
    await until(lambda: [each.state for each in scene.replicas(ended=True)].count("failed") == 1)
    assert dict(slow.running) == {}
    assert scene.offered() == list(two.launcher.running)
    assert sorted(each.state for each in scene.replicas(ended=True)) == ["failed", "ready"]
    await two.close()
    await one.close()


async def test_one_whose_registration_was_revoked_by_hand_is_drained_and_replaced(scene):
    scene.wish()
    one = scene.gateway()
    await passes(one)
    (name,) = scene.offered()
    scene.control.revoke_backend("acme", name)
    await passes(one, 2)
    (other,) = scene.offered()
    assert other != name
    assert one.launcher.stopped == [name]
    await one.close()


@pytest.mark.parametrize("broken", ["asleep", "withdraw"])
async def test_a_sleep_that_broke_half_way_does_not_leave_calls_waiting(scene, broken):
    scene.wish(min_replicas=0, idle_s=60, asleep_s=600)
    one = scene.gateway(lifecycle=FakeLifecycle())
    scene.demand(parked=1, regions=PAR)
    await passes(one)
    (name,) = scene.offered()
    real = getattr(one._store, broken)

    def away(*_):
        setattr(one._store, broken, real)
        raise OSError("no connection")

    setattr(one._store, broken, away)
    scene.demand()
    scene.clock.now += 61
    await passes(one)
    scene.demand(parked=1, regions=PAR)
    await passes(one, 3)
    assert scene.offered(), "one is in service again, whichever it is"
    if broken == "asleep":  # it sleeps and nobody knows: nothing may count on it
        assert scene.offered() != [name]
        assert one.launcher.stopped == [name]
    await one.close()


async def test_a_stop_that_could_not_be_written_is_no_crash(scene):
    scene.wish(min_replicas=0)
    one = scene.gateway()
    scene.demand(parked=1, regions=PAR)
    await passes(one)
    real = one._store.end

    def away(*_, **__):
        one._store.end = real
        raise OSError("no connection")

    one._store.end = away
    scene.control.drain_deployment("acme", "small")
    await passes(one, 2)
    (ended,) = scene.replicas(ended=True)
    assert ended.state == "stopped"
    assert one._kept[ended.tenant, ended.deployment].back_off.failures == 0
    await one.close()


@pytest.mark.parametrize("end", ["drain", "delete", "revoke"])
async def test_a_start_that_nobody_wants_any_more_is_given_up_at_once(scene, end):
    scene.wish()
    one = scene.gateway(launcher=FakeLauncher(takes_s=3600))
    await one.reconcile()
    await asyncio.sleep(0)
    if end == "revoke":
        scene.control.revoke_tenant("acme")
    else:
        getattr(scene.control, f"{end}_deployment")("acme", "small")
    async with asyncio.timeout(5):
        await passes(one, 3)
    assert scene.told() == ["replica.starting", "replica.stopped"]
    assert scene.offered() == []
    await one.close()


async def test_a_gateway_that_stops_during_a_start_leaves_no_replica_behind(scene):
    scene.wish()
    one = scene.gateway(launcher=FakeLauncher(takes_s=3600))
    await one.reconcile()
    await asyncio.sleep(0)
    await one.close()
    assert scene.replicas() == ()
    assert [each.reason for each in scene.replicas(ended=True)] == ["gateway_stopped"]


async def test_a_gateway_that_stops_during_a_drain_says_so_once(scene):
    scene.wish()
    one = scene.gateway()
    await passes(one)
    one._settle_s = 3600
    scene.control.drain_deployment("acme", "small")
    await one.reconcile()
    while scene.replicas()[0].state != "draining":
        await asyncio.sleep(0.01)
    await one.close()
    assert scene.told() == ["replica.starting", "replica.ready", "replica.draining", "replica.stopped"]
    assert dict(one.launcher.running) == {}


async def test_whose_starts_hang_does_not_hold_up_another_tenant(scene):
    scene.control.create_tenant("globex")
    scene.wish(min_replicas=20, max_replicas=20)

    class Hangs(FakeLauncher):
        async def start(self, spec, **more):
            if spec.identity.tenant == "acme":
                await asyncio.sleep(3600)
            return await super().start(spec, **more)

    one = scene.gateway(launcher=Hangs())
    await one.reconcile()
    scene.control.create_deployment(WISH.model_copy(update={"tenant": "globex"}))
    await one.reconcile()
    async with asyncio.timeout(5):
        while not one.launcher.running:
            await asyncio.sleep(0.01)
    assert [each.backend.tenant for each in one.launcher.running.values()] == ["globex"]
    await one.close()


async def test_a_clock_that_leaps_forward_bills_what_the_leader_s_own_clock_says(scene):
    scene.wish()
    one = scene.gateway()
    await passes(one)
    with scene.database.engine.begin() as connection:  # as if it were two hours later all at once
        connection.exec_driver_sql("UPDATE replica SET metered_until = metered_until - 7200")
    scene.clock.now += 6
    await passes(one)
    with scene.database.engine.connect() as connection:
        billed = connection.exec_driver_sql("SELECT sum(up_ms) FROM uptime").scalar_one()
    assert billed < 10_000
    await one.close()


ONES, TWOS = "1" * 64, "2" * 64


def pinned(scene):
    with scene.database.read() as session:
        return session.get(DeploymentRow, ("acme", "small")).weights_sha256


async def test_the_first_replica_pins_its_deployment_and_one_with_other_weights_is_refused_by_name(scene):
    scene.wish(max_replicas=2)
    lifecycle = FakeLifecycle(runs=ONES)
    one = scene.gateway(lifecycle=lifecycle)
    await passes(one)
    (first,) = Inventory(scene.database).backends("acme")
    assert (pinned(scene), first.weights_sha256) == (ONES, ONES)
    assert [event.detail["weights_sha256"] for event in scene.events if event.action == "deployment.pinned"] == [ONES]
    lifecycle.runs = TWOS
    scene.control.scale_deployment("acme", "small", Scale(min_replicas=2, max_replicas=2))
    await passes(one)
    assert scene.offered() == [first.id] == list(one.launcher.running)
    (refused,) = [event for event in scene.events if event.action == "replica.failed"]
    assert refused.detail["reason"] == "other_weights"
    with scene.database.read() as session:
        failure = session.get(DeploymentRow, ("acme", "small")).failure
    assert refused.target in failure and TWOS in failure and ONES in failure
    await one.close()


@pytest.mark.parametrize("runs", [TWOS, None])
async def test_a_pin_given_at_creation_holds_for_the_first_too(scene, runs):
    scene.wish(weights_sha256=ONES)
    one = scene.gateway(lifecycle=FakeLifecycle(runs=runs))
    await passes(one)
    assert (scene.offered(), list(one.launcher.running), pinned(scene)) == ([], [], ONES)
    await one.close()


async def test_an_operator_accepts_other_weights_and_replicas_start_with_them(scene):
    scene.wish(weights_sha256=ONES)
    one = scene.gateway(lifecycle=FakeLifecycle(runs=TWOS))
    await passes(one)
    assert scene.offered() == []
    assert scene.control.pin_weights("acme", "small", TWOS).weights_sha256 == TWOS
    assert scene.told("deployment.")[-1] == "deployment.pinned"
    scene.clock.now += 1000
    await passes(one)
    assert len(scene.offered()) == 1
    assert scene.control.pin_weights("acme", "small", TWOS).weights_sha256 == TWOS
    assert scene.told("deployment.").count("deployment.pinned") == 1, "what changes nothing is not told"
    for wrong in ("", "1" * 63, "G" * 64):
        with pytest.raises(InvalidValue):
            scene.control.pin_weights("acme", "small", wrong)
    with pytest.raises(NotFound):
        scene.control.pin_weights("globex", "small", ONES)
    await one.close()


async def test_one_that_wakes_with_other_weights_is_stopped(scene):
    one, lifecycle, name = await asleep(scene, runs=ONES)
    lifecycle.runs = TWOS
    scene.demand(parked=1, regions=PAR)
    await passes(one)
    assert name not in one.launcher.running
    assert name not in scene.offered()
    await one.close()


PAIR = {"kind": "disaggregated", "prefill": 2, "min_replicas": 0, "max_replicas": 2}


def roles(scene):
    return sorted(replica.role for replica in scene.replicas())


async def test_replicas_for_prompts_are_there_as_long_as_any_answers(scene):
    scene.wish(**PAIR, idle_s=10)
    one = scene.gateway()
    await passes(one)
    assert roles(scene) == []
    scene.demand(in_flight=1, parked=1)
    await passes(one, 2)
    assert roles(scene) == ["decode", "prefill", "prefill"]
    offered = {each.id: (each.role, each.transfer) for each in Inventory(scene.database).backends("acme")}
    assert sorted(offered.values(), key=str) == [
        ("decode", None),
        ("prefill", "127.0.0.1:9"),
        ("prefill", "127.0.0.1:9"),
    ]
    assert {replica.region for replica in scene.replicas()} == {"eu-fr-par"}
    scene.demand(in_flight=0)
    await passes(one)
    scene.clock.now += 11
    await passes(one, 3)
    assert roles(scene) == []
    assert sorted(replica.state for replica in scene.replicas(ended=True)) == ["stopped"] * 3


async def test_a_replica_for_prompts_that_crashes_is_replaced_and_those_that_answer_go_on(scene):
    scene.wish(**{**PAIR, "min_replicas": 1, "prefill": 1})
    one = scene.gateway()
    await passes(one)
    before = {replica.role: replica.id for replica in scene.replicas()}
    await one.launcher.crash(before["prefill"])
    await passes(one)
    scene.clock.now += 100
    await passes(one)
    after = {replica.role: replica.id for replica in scene.replicas()}
    assert (after["decode"], len(after)) == (before["decode"], 2)
    assert after["prefill"] != before["prefill"]


def test_a_pair_needs_replicas_for_prompts_which_may_have_several_cards_each():
    for changed in ({"kind": "disaggregated"}, {"prefill": 1}):
        with pytest.raises(ValueError, match=r"give|leave"):
            Deployment.model_validate(WISH.model_dump() | changed)
    pair = {"kind": "disaggregated", "prefill": 2}
    assert Deployment.model_validate(WISH.model_dump() | pair | {"gpu": "2xh100"}).gpu == "2xh100"
    made = Deployment.model_validate(WISH.model_dump() | pair)
    assert (made.answering, made.most_replicas) == ("decode", 5)
