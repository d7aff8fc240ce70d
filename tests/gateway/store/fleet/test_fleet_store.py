import threading
import time

import pytest
import sqlalchemy

from gateway.database.errors import Duplicate, Invalid, NotFound, NotReady
from gateway.store.fleet.demand import write_demand
from gateway.store.fleet.fleet_store import FleetStore
from gateway.store.fleet.uptime import meter
from gateway.store.reports.fleet_inventory import deployment_at, deployments_in, launched, replicas_of
from regions.fleet.demand import Demand, DemandReport
from regions.fleet.deployment import Deployment, ReplicaState, Scale
from regions.fleet.fleet import Backend
from regions.fleet.ports import NotLeading
from regions.identity.identity import BackendIdentity

ON_BOTH_DATABASES = True

WISH = Deployment(
    tenant="acme",
    id="small",
    model="small",
    weights="small.gguf",
    regions=("eu-fr-par", "eu-de-fra"),
    max_replicas=3,
    micro_eur_per_hour=3_600_000,
)


@pytest.fixture
def acme(control):
    control.create_tenant("acme")
    control.create_deployment(WISH)
    return control


@pytest.fixture
def store(database, events, acme):
    def make(node="one", **more):
        return FleetStore(database, cell="demo", node=node, on_event=events.append, **more)

    return make


def backend(replica):
    identity = BackendIdentity("demo", replica.tenant, replica.region, replica.id)
    return Backend(
        id=replica.id,
        tenant=replica.tenant,
        region=replica.region,
        url="https://127.0.0.1:1",
        uri=identity.uri,
        models=("small",),
    )


def uptime(database):
    with database.engine.connect() as connection:
        return connection.execute(sqlalchemy.text("SELECT day, up_ms, busy_ms FROM uptime ORDER BY day")).all()


def shift(database, seconds):
    """As if so much time had gone by."""
    with database.engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE replica SET metered_until = metered_until - :s"), {"s": seconds})


# --- deployments -----------------------------------------------------------------------------------------------------


def test_a_deployment_is_what_was_asked_for_and_its_events_say_so(acme, database, events):
    record = deployment_at(database, "acme", "small")
    assert (record.model, record.regions, record.eur_per_hour) == ("small", ("eu-fr-par", "eu-de-fra"), 3.6)
    assert acme.scale_deployment("acme", "small", Scale(min_replicas=1, max_replicas=2)).min_replicas == 1
    assert acme.drain_deployment("acme", "small").draining
    assert not acme.scale_deployment("acme", "small", Scale()).draining
    assert acme.delete_deployment("acme", "small").deleted_at is not None
    told = [event.action for event in events if event.action.startswith("deployment.")]
    assert told == [
        "deployment.created", "deployment.scaled", "deployment.drained", "deployment.scaled", "deployment.deleted"
    ]  # fmt: skip


def test_what_changes_nothing_is_not_told(acme, events):
    acme.drain_deployment("acme", "small")
    before = len(events)
    acme.drain_deployment("acme", "small")
    assert len(events) == before


def test_a_model_has_one_living_deployment(acme):
    with pytest.raises(Duplicate, match="serves 'small' already"):
        acme.create_deployment(WISH.model_copy(update={"id": "other"}))
    acme.delete_deployment("acme", "small")
    acme.create_deployment(WISH.model_copy(update={"id": "other"}))


def test_more_at_least_than_at_most_is_refused(acme):
    with pytest.raises(Invalid, match="cannot both hold"):
        acme.scale_deployment("acme", "small", Scale(min_replicas=3, max_replicas=1))


def test_one_is_put_to_sleep_and_woken_and_the_same_again_is_not_told(acme, events):
    assert [acme.put_deployment_to_sleep("acme", "small").asked for _ in range(2)] == ["asleep"] * 2
    assert [acme.wake_deployment("acme", "small").asked for _ in range(2)] == ["awake"] * 2
    told = [(event.action, event.detail) for event in events if event.action.startswith("deployment.")][1:]
    assert told == [("deployment.put_to_sleep", {"asked": "asleep"}), ("deployment.woken", {"asked": "awake"})]
    assert acme.drain_deployment("acme", "small").asked is None
    for act in (acme.put_deployment_to_sleep, acme.wake_deployment):
        with pytest.raises(NotReady, match="scale it first"):
            act("acme", "small")


def test_of_another_tenant_there_is_nothing(acme, database):
    acme.create_tenant("globex")
    acts = acme.drain_deployment, acme.delete_deployment, acme.put_deployment_to_sleep, acme.wake_deployment
    for act in acts:
        with pytest.raises(NotFound):
            act("globex", "small")
    assert deployments_in(database, "globex").items == ()


def test_a_deleted_one_can_be_neither_scaled_nor_drained(acme):
    acme.delete_deployment("acme", "small")
    with pytest.raises(Invalid, match="was deleted"):
        acme.scale_deployment("acme", "small", Scale())
    with pytest.raises(Invalid, match="was deleted"):
        acme.drain_deployment("acme", "small")


def test_pages_neither_repeat_nor_skip(acme, database):
    for number in range(5):
        acme.create_deployment(WISH.model_copy(update={"id": f"more-{number}", "model": f"m{number}"}))
    found, after = [], None
    while True:
        page = deployments_in(database, "acme", after, 2)
        found += [record.id for record in page.items]
        if page.next is None:
            break
        after = page.next
    assert found == ["more-0", "more-1", "more-2", "more-3", "more-4", "small"]


# --- the lease -------------------------------------------------------------------------------------------------------


def test_one_leads_until_it_resigns(store):
    one, two = store("one"), store("two")
    term = one.lead()
    assert one.lead() == term
    assert two.lead() is None
    one.resign()
    assert two.lead() == term + 1
    assert one.lead() is None


def test_a_lease_that_ran_out_is_another_s_and_the_former_can_change_nothing(store, database):
    one, two = store("one", lease_s=-1.0), store("two")
    stale = one.lead()
    assert two.lead() == stale + 1
    with pytest.raises(NotLeading):
        one.begin(stale, WISH, "eu-fr-par")
    with pytest.raises(NotLeading):
        one.meter(stale, {})
    assert replicas_of(database, "acme", "small").items == ()


def test_a_lease_that_ran_out_and_is_nobody_s_does_not_serve_either(store):
    one = store("one", lease_s=-1.0)
    with pytest.raises(NotLeading):
        one.begin(one.lead(), WISH, "eu-fr-par")


def test_of_many_at_once_one_leads(store):
    stores = [store(f"node-{number}") for number in range(8)]
    got, ready = [], threading.Barrier(8)

    def take(each):
        ready.wait()
        got.append(each.lead())

    threads = [threading.Thread(target=take, args=(each,)) for each in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([term for term in got if term is not None]) == 1


def test_without_a_deployment_nobody_leads_and_nothing_is_written(control, database, events):
    assert FleetStore(database, cell="demo", node="one", on_event=events.append).lead() is None
    with database.engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM lease")).scalar_one() == 0


def test_the_same_that_leads_again_has_the_next_term_and_after_another_a_later_one(store):
    one, two = store("one", lease_s=-1.0), store("two", lease_s=-1.0)
    term = one.lead()
    assert one.lead() == term + 1, "the lease ran out and nobody took it"
    two.lead()
    assert one.lead() == term + 3


def put_clock_back(database, seconds):
    """To a store whose clock is put back, what was written lies in the future."""
    with database.write() as session:
        session.connection().execute(sqlalchemy.text(f"UPDATE lease SET until = until + {seconds}"))
        session.connection().execute(sqlalchemy.text(f"UPDATE demand SET at = at + {seconds}"))


def test_of_a_clock_that_is_put_back_a_dead_leader_has_no_more_than_two_leases(store, database):
    one, two = store("one"), store("two")
    now = [0.0]
    two._lease._monotonic = lambda: now[0]
    term = one.lead()
    put_clock_back(database, 3600)
    for second in range(20):
        now[0] = float(second)
        assert two.lead() is None
    now[0] = 20.0
    assert two.lead() == term + 1
    with pytest.raises(NotLeading):
        one.meter(term, {})


def test_of_a_clock_that_is_put_back_a_living_leader_stays(store, database):
    one, two = store("one"), store("two")
    now = [0.0]
    two._lease._monotonic = lambda: now[0]
    term = one.lead()
    put_clock_back(database, 3600)
    for second in range(60):
        now[0] = float(second)
        assert two.lead() is None
        assert one.lead() == term
        time.sleep(0.002)  # the store's clock goes on


# --- the life of a replica -------------------------------------------------------------------------------------------


def test_a_replica_lives_through_its_states_and_every_one_is_on_record(store, database, events):
    one = store()
    term = one.lead()
    replica = one.begin(term, WISH, "eu-de-fra")
    assert replica.id.startswith("small-")
    one.ready(term, replica, backend(replica))
    one.drain(term, replica, "scaled_down")
    one.end(term, replica, ReplicaState.STOPPED, "scaled_down", seen=True)
    told = [(e.action, e.detail.get("reason")) for e in events if e.action.startswith(("replica.", "backend."))]
    assert told == [
        ("replica.starting", None), ("backend.registered", None), ("replica.ready", None),
        ("backend.revoked", None), ("replica.draining", "scaled_down"), ("replica.stopped", "scaled_down"),
    ]  # fmt: skip
    assert all(e.actor == "system" and e.tenant == "acme" for e in events if e.action.startswith("replica."))
    assert replicas_of(database, "acme", "small").items == ()
    ended = replicas_of(database, "acme", "small", ended=True).items
    assert [(each.state, each.reason) for each in ended] == [("stopped", "scaled_down")]


def test_what_the_record_cannot_take_does_not_happen(store, database):
    def full(event):
        raise OSError("the disk is full")

    one = FleetStore(database, cell="demo", node="one", on_event=full)
    with pytest.raises(Exception, match="the disk is full"):
        one.begin(one.lead(), WISH, "eu-fr-par")
    assert replicas_of(database, "acme", "small", ended=True).items == ()


def test_there_is_no_way_back(store):
    one = store()
    term = one.lead()
    replica = one.begin(term, WISH, "eu-fr-par")
    one.end(term, replica, ReplicaState.FAILED, "did_not_start", seen=True)
    with pytest.raises(NotLeading, match="cannot become ready"):
        one.ready(term, replica, backend(replica))


def test_the_view_has_what_lives_and_the_demand_of_all_gateways(store, acme, database):
    one = store()
    term = one.lead()
    replica = one.begin(term, WISH, "eu-fr-par")
    gone = one.begin(term, WISH, "eu-fr-par")
    one.end(term, gone, ReplicaState.FAILED, "did_not_start", seen=True)
    write_demand(database, "demo", "g1", [DemandReport("acme", "small", Demand(2, 1, 300.0, frozenset({"eu-fr-par"})))])
    write_demand(database, "demo", "g2", [DemandReport("acme", "small", Demand(3, 0, 900.0, frozenset({"eu-de-fra"})))])
    view = one.view()
    assert view.deployments == {("acme", "small"): WISH}
    assert [each.id for each in view.replicas] == [replica.id]
    assert view.demand == {("acme", "small"): Demand(5, 1, 900.0, frozenset({"eu-fr-par", "eu-de-fra"}))}


def test_a_gateway_that_fell_silent_has_no_demand(store, database):
    write_demand(database, "demo", "g1", [DemandReport("acme", "small", Demand(2))])
    with database.engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE demand SET at = at - 11"))
    assert store().view().demand == {}


def test_what_was_told_before_the_clock_was_put_back_is_no_demand(store, acme, database):
    write_demand(database, "demo", "gone", [DemandReport("acme", "small", Demand(3, 2))])
    put_clock_back(database, 3600)
    write_demand(database, "demo", "g1", [DemandReport("acme", "small", Demand(1, 0))])
    assert store().view().demand["acme", "small"].in_flight == 1


def test_the_view_says_which_replicas_gateways_may_call(store, control):
    one = store()
    term = one.lead()
    first, second, third = (one.begin(term, WISH, "eu-fr-par") for _ in range(3))
    for each in (first, second):
        one.ready(term, each, backend(each))
    assert one.view().offered == {first.id, second.id}
    one.withdraw(term, first)
    control.revoke_backend("acme", second.id)
    assert one.view().offered == frozenset()
    assert {each.id for each in one.view().replicas} == {first.id, second.id, third.id}


def test_a_revoked_tenant_s_deployments_are_not_wanted(store, acme):
    acme.revoke_tenant("acme")
    assert store().view().deployments == {}


# --- the bill --------------------------------------------------------------------------------------------------------


def test_the_time_that_a_replica_is_up_is_billed_once(store, database):
    one = store()
    term = one.lead()
    replica = one.begin(term, WISH, "eu-fr-par")
    shift(database, 10)
    one.meter(term, {replica.id: True})
    shift(database, 5)
    one.meter(term, {replica.id: False})
    total = sum(up for _, up, _ in uptime(database))
    assert 15_000 <= total < 16_000
    assert 10_000 <= sum(busy for *_, busy in uptime(database)) < 11_000


def test_two_leaders_bill_a_replica_once(store, database):
    one, two = store("one", lease_s=-1.0), store("two")
    term = one.lead()
    new = two.lead()
    replica = two.begin(new, WISH, "eu-fr-par")
    shift(database, 10)
    with pytest.raises(NotLeading):
        one.meter(term, {replica.id: True})
    two.meter(new, {replica.id: True})
    with pytest.raises(NotLeading):
        one.end(term, replica, ReplicaState.STOPPED, "gone", seen=True)
    assert 10_000 <= sum(up for _, up, _ in uptime(database)) < 11_000


def test_what_nobody_saw_is_not_billed(store, database):
    one = store()
    term = one.lead()
    replica = one.begin(term, WISH, "eu-fr-par")
    shift(database, 3600)
    one.end(term, replica, ReplicaState.FAILED, "lost", seen=False)
    assert uptime(database) == []


def test_an_ended_replica_is_billed_no_more(store, database):
    one = store()
    term = one.lead()
    replica = one.begin(term, WISH, "eu-fr-par")
    one.end(term, replica, ReplicaState.STOPPED, "scaled_down", seen=True)
    before = uptime(database)
    one.meter(term, {replica.id: True})
    assert uptime(database) == before


def test_a_clock_that_goes_back_bills_nothing_twice(store, database):
    one = store()
    term = one.lead()
    replica = one.begin(term, WISH, "eu-fr-par")
    with database.write() as session:
        assert meter(session.connection(), "demo", {replica.id: True}, replica.metered_until - 60) == 0


def test_the_hours_by_which_a_clock_is_put_forward_are_not_billed(store, database):
    one = store()
    term = one.lead()
    replica = one.begin(term, WISH, "eu-fr-par")
    shift(database, 7200)
    one.meter(term, {replica.id: True}, within_s=7.0)
    assert 6_999 <= sum(up for _, up, _ in uptime(database)) <= 7_001
    shift(database, 7200)
    one.end(term, replica, ReplicaState.STOPPED, "scaled_down", seen=True, within_s=3.0)
    assert 9_998 <= sum(up for _, up, _ in uptime(database)) <= 10_002


def test_each_replica_names_the_deployment_that_started_it_after_its_end_too(database, store, acme):
    one = store()
    term = one.lead()
    first, second = one.begin(term, WISH, "eu-fr-par"), one.begin(term, WISH, "eu-de-fra")
    one.end(term, second, ReplicaState.FAILED, "x", seen=False)
    assert launched(database, "acme") == {first.id: "small", second.id: "small"}
    with pytest.raises(NotFound):
        launched(database, "globex")
