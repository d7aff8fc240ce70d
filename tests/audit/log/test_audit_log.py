import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from audit.errors import AuditUnavailable, EventRejected, SignerError, StoreError
from audit.events.base import Event
from audit.events.event import AdminChanged, Decision, InferenceAborted, Reason, RoutingDecision
from audit.log.audit_log import AuditSettings
from audit.log.checkpointer import Cadence
from audit.log.receipt import Receipt
from audit.log.sequencer import Append, QueueLimits
from tests.audit.conftest import FAST, Faults, Home, accepted, completed, eventually

ON_BOTH_STORES = True


TENANT_CREATED = AdminChanged(type="admin.tenant.created", tenant="acme", actor="cli", target="acme", epoch=1)


def moved_on(request_id: str) -> RoutingDecision:
    names = ("backend_id", "region", "inference_country", "storage_country", "operator_entity", "operator_hq")
    names += ("ultimate_parent", "ultimate_parent_country", "transfer_basis", "tenant")
    route = accepted(request_id).model_dump(include=set(names))
    return RoutingDecision(**route, request_id=request_id, fallback_index=1, reason="connect_error")


# --- what a log does when all is well --------------------------------------------------------------------------------


async def test_each_tenant_has_its_own_tree_and_receipts_count_from_zero(home: Home) -> None:
    async with await home.open() as log:
        receipts = [await log.append(accepted(tenant=tenant)) for tenant in ("acme", "globex", "acme")]
    assert [(receipt.tenant, receipt.seq) for receipt in receipts] == [("acme", 0), ("globex", 0), ("acme", 1)]
    assert home.verify().ok


async def test_many_appenders_share_commits_and_leave_no_gap(home: Home, faults: Faults) -> None:
    async with await home.open(open_store=faults.open) as log:
        faults.gate.clear()
        waiting = [asyncio.create_task(log.append(accepted())) for _ in range(600)]
        await asyncio.sleep(0.05)
        faults.gate.set()
        receipts = await asyncio.gather(*waiting)
    assert sorted(receipt.seq for receipt in receipts) == list(range(600))
    assert max(faults.batches) == QueueLimits().batch
    assert home.verify().ok


async def test_a_record_says_where_and_when_it_was_taken(home: Home) -> None:
    async with await home.open("gw-7", clock=lambda: 1_798_761_599.5) as log:
        await log.append(AdminChanged(type="admin.tenant.created", tenant="acme", actor="cli", target="acme", epoch=1))
    (event,) = home.events("acme")
    assert event["ts"] == "2026-12-31T23:59:59.500Z"
    assert event["gateway_node"] == "gw-7"
    assert event["boot_id"] == home.events("_system")[0]["boot_id"]


async def test_a_clock_behind_the_newest_record_is_refused_before_anything_is_recorded(home: Home) -> None:
    """On both stores; within a minute hosts that share a log may differ."""
    async with await home.open("gw-1", clock=lambda: 1_800_000_000.0) as log:
        await log.append(accepted("r1"))
        await log.append(completed("r1"))
    before = home.events("acme"), home.events("_system")
    says = "7200 s behind the newest record (2027-01-15T08:00:00.000Z); set the clock"
    with pytest.raises(AuditUnavailable, match=re.escape(says)):
        await home.open("gw-1", clock=lambda: 1_800_000_000.0 - 7200)
    assert (home.events("acme"), home.events("_system")) == before
    async with await home.open("gw-1", clock=lambda: 1_800_000_000.0 - 59):
        pass
    assert home.verify().ok


async def test_opening_and_closing_are_on_record(home: Home) -> None:
    async with await home.open(build="domicile 0.1.0"):
        pass
    assert home.types("_system") == ["system.start", "system.stop"]
    assert home.events("_system")[0]["build"] == "domicile 0.1.0"


async def test_the_files_are_for_their_owner_alone(home: Home, tmp_path: Path) -> None:
    async with await home.open() as log:
        await log.append(accepted())
        modes = {file.name: file.stat().st_mode & 0o077 for file in home.path.parent.iterdir()}
    modes.pop("signer.vkey")
    assert set(modes) >= {"log.db", "log.db-wal", "log.reserve", "node-gw-1.lock", "signer.key"}
    assert set(modes.values()) == {0}


# --- the life of a call ----------------------------------------------------------------------------------------------


async def test_a_call_has_one_intent_any_reroutings_and_one_outcome(home: Home) -> None:
    async with await home.open() as log:
        await log.append(accepted("r1"))
        await log.append(moved_on("r1"))
        await log.append(completed("r1"))
    assert home.types("acme") == ["inference.accepted", "routing.decision", "inference.completed"]
    assert home.verify().ok


async def test_what_breaks_the_order_of_a_call_is_refused_and_leaves_no_trace(home: Home) -> None:
    async with await home.open() as log:
        await log.append(accepted("r1"))
        with pytest.raises(EventRejected, match="already open"):
            await log.append(accepted("r1"))
        await log.append(completed("r1"))
        for late in (completed("r1"), InferenceAborted(tenant="acme", request_id="r1", reason="x"), moved_on("r1")):
            with pytest.raises(EventRejected, match="no open intent"):
                await log.append(late)
        with pytest.raises(EventRejected, match="no open intent"):
            await log.append(completed("never-accepted"))
        with pytest.raises(EventRejected, match="no open intent"):
            await log.append(completed("r1", tenant="globex"))
        assert log.trouble is None
    assert home.types("acme") == ["inference.accepted", "inference.completed"]
    assert home.verify().ok


async def test_one_request_id_may_be_open_for_two_tenants(home: Home) -> None:
    async with await home.open() as log:
        await log.append(accepted("r1", "acme"))
        await log.append(accepted("r1", "globex"))
        await log.append(completed("r1", "acme"))
        await log.append(completed("r1", "globex"))
    assert home.verify().ok


async def test_one_bad_event_in_a_batch_does_not_spoil_the_others(home: Home) -> None:
    huge = accepted(decision=Decision(outcome="allow", reasons=(Reason(rule="r", because="x" * 512),) * 40))
    async with await home.open() as log:
        results = await asyncio.gather(
            log.append(accepted()),
            log.append(huge),
            log.append(completed("none")),
            log.append(accepted()),
            return_exceptions=True,
        )
    assert [type(result) for result in results] == [Receipt, EventRejected, EventRejected, Receipt]
    assert home.verify().ok


async def test_an_intent_whose_append_is_cancelled_is_closed_by_the_log(home: Home, faults: Faults) -> None:
    async with await home.open(open_store=faults.open) as log:
        faults.gate.clear()
        task = asyncio.create_task(log.append(accepted("r1")))
        await asyncio.sleep(0.01)
        task.cancel()
        faults.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: len(home.types("acme")) == 2)
    assert home.events("acme")[1]["type"] == "inference.aborted"
    assert home.events("acme")[1]["reason"] == "cancelled"


@pytest.mark.parametrize("event", [accepted("r1"), TENANT_CREATED], ids=["an intent", "another event"])
async def test_what_is_cancelled_after_it_became_durable_and_before_its_caller_ran_again_is_closed(
    home: Home, monkeypatch: pytest.MonkeyPatch, event: Event
) -> None:
    """The receipt is there, and the task that waits for it has not been woken yet: a client leaves in that moment."""
    async with await home.open() as log:
        task = asyncio.create_task(log.append(event))
        resolve = log._resolve

        def resolved(batch: Sequence[Append]) -> None:
            resolve(batch)
            task.cancel()

        monkeypatch.setattr(log, "_resolve", resolved)
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.setattr(log, "_resolve", resolve)
    if event is TENANT_CREATED:
        assert home.types("acme") == ["admin.tenant.created"]
    else:
        assert home.types("acme") == ["inference.accepted", "inference.aborted"]
        assert home.events("acme")[1]["reason"] == "cancelled"


async def test_an_outcome_whose_append_is_cancelled_is_recorded_all_the_same(home: Home, faults: Faults) -> None:
    async with await home.open(open_store=faults.open) as log:
        await log.append(accepted("r1"))
        faults.gate.clear()
        task = asyncio.create_task(log.append(completed("r1")))
        await asyncio.sleep(0.01)
        task.cancel()
        faults.gate.set()
    assert home.types("acme") == ["inference.accepted", "inference.completed"]


# --- boots and nodes -------------------------------------------------------------------------------------------------


async def test_the_next_boot_of_a_node_closes_what_it_left_open_and_no_other_nodes_calls(home: Home) -> None:
    async with await home.open("gw-1") as log:
        await log.append(accepted("mine"))
        await log.append(accepted("done"))
        await log.append(completed("done"))
    async with await home.open("gw-2") as other:
        await other.append(accepted("theirs"))
        for _ in range(2):  # the second boot has nothing left to close
            await (await home.open("gw-1")).close()
        closed = [event for event in home.events("acme") if event["type"] == "inference.aborted"]
        assert [(event["request_id"], event["reason"]) for event in closed] == [("mine", "crash")]
        await other.append(completed("theirs"))
    starts = [event for event in home.events("_system") if event["type"] == "system.start"]
    assert [start["orphans_closed"] for start in starts] == [0, 0, 1, 0]
    report = home.verify()
    assert report.ok
    assert report.trees[1].open_requests == ()


async def test_two_live_processes_cannot_share_a_node_name(home: Home) -> None:
    async with await home.open("gw-1"):
        with pytest.raises(AuditUnavailable, match="another process already writes"):
            await home.open("gw-1")
    await (await home.open("gw-1")).close()


@pytest.mark.parametrize("node", ["", "GW", "a/b", "..", "a b", "x" * 64, "gw\n"])
async def test_a_node_name_that_could_be_mistaken_is_refused(home: Home, node: str) -> None:
    with pytest.raises(AuditUnavailable, match="node name"):
        await home.open(node)


async def test_several_nodes_append_to_one_tree_without_gap_or_duplicate(home: Home) -> None:
    logs = [await home.open(f"gw-{number}") for number in range(3)]
    receipts = await asyncio.gather(*(log.append(accepted()) for log in logs for _ in range(100)))
    for log in logs:
        await log.close()
    assert sorted(receipt.seq for receipt in receipts) == list(range(300))
    assert home.verify().ok


async def test_a_file_that_is_no_audit_log_is_not_touched(home: Home, tmp_path: Path) -> None:
    home.path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(AuditUnavailable, match="cannot be opened"):
        await home.open()
    assert home.path.read_bytes() == b"something else entirely" * 100


async def test_a_reserve_that_does_not_fit_keeps_the_log_from_opening(home: Home) -> None:
    with pytest.raises(AuditUnavailable, match="cannot be opened"):
        await home.open(settings=AuditSettings(limits=QueueLimits(reserve_bytes=1 << 60)))
    await (await home.open()).close()


async def test_opening_that_is_given_up_leaves_the_name_free(home: Home) -> None:
    for _ in range(3):
        opening = asyncio.create_task(home.open())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    await (await home.open()).close()
    assert home.verify().ok


async def test_nodes_that_start_at_once_on_a_new_file_all_open(home: Home) -> None:
    logs = await asyncio.gather(*(home.open(f"gw-{number}") for number in range(6)))
    await asyncio.gather(*(log.append(accepted()) for log in logs))
    await asyncio.gather(*(log.close() for log in logs))
    assert home.types("_system").count("system.start") == 6
    assert home.verify().ok


# --- signing ---------------------------------------------------------------------------------------------------------


def signed_sizes(home: Home, tenant: str) -> list[int]:
    reader = home.reader()
    try:
        return [checkpoint.size for checkpoint in reader.checkpoints(tenant)]
    finally:
        reader.close()


async def test_a_tree_is_signed_soon_after_it_grew_and_again_at_close(home: Home) -> None:
    async with await home.open() as log:
        await log.append(accepted())
        await eventually(lambda: "acme" in tenants(home) and signed_sizes(home, "acme") == [1])
        await log.append(accepted())
    assert signed_sizes(home, "acme") == [1, 2]


def tenants(home: Home) -> list[str]:
    reader = home.reader()
    try:
        return reader.tenants()
    finally:
        reader.close()


async def test_a_tree_that_grew_by_many_records_is_signed_at_once(home: Home) -> None:
    slow = AuditSettings(limits=FAST.limits, cadence=Cadence(every_s=60, records=10))
    async with await home.open(settings=slow) as log:
        await log.append(accepted())
        await asyncio.sleep(0.05)
        assert signed_sizes(home, "acme") == []
        await asyncio.gather(*(log.append(accepted()) for _ in range(10)))
        await eventually(lambda: signed_sizes(home, "acme") != [])
        assert signed_sizes(home, "acme")[0] >= 10


class MoodySigner:
    """The home's signer, behind a connection that may be down."""

    def __init__(self, home: Home) -> None:
        self._signer = home.signer
        self.name = home.signer.name
        self.public_key = home.signer.public_key
        self.up = False

    def sign(self, message: bytes) -> bytes:
        if not self.up:
            raise SignerError("no route to the signer")
        return self._signer.sign(message)


async def test_records_go_on_unsigned_for_a_while_when_the_signer_is_down(home: Home) -> None:
    signer = MoodySigner(home)
    async with await home.open(signer=signer) as log:
        await log.append(accepted())
        await asyncio.sleep(0.1)
        await log.append(accepted())
        assert signed_sizes(home, "acme") == []
        signer.up = True
        await eventually(lambda: signed_sizes(home, "acme") == [2])


async def test_new_calls_are_refused_once_the_signer_was_down_too_long(home: Home) -> None:
    signer = MoodySigner(home)
    signer.up = True
    settings = AuditSettings(limits=FAST.limits, cadence=Cadence(every_s=0.02, signer_grace_s=0.1), probe_ttl_s=0)
    async with await home.open(signer=signer, settings=settings) as log:
        await log.append(accepted("r1"))
        signer.up = False
        await log.append(moved_on("r1"))
        await eventually(lambda: log.trouble is not None)
        with pytest.raises(AuditUnavailable, match="signer cannot be reached"):
            await log.append(accepted("r2"))
        with pytest.raises(AuditUnavailable, match="signer cannot be reached"):
            await log.probe()
        await log.append(completed("r1"))
        signer.up = True
        await eventually(lambda: log.trouble is None)
        await log.append(accepted("r3"))
    assert home.verify().ok
    delays = [event["resumed"] for event in home.events("_system") if event["type"] == "system.signing_delayed"]
    assert delays[-1:] == [True], "with a False before it, if a try fell into the time beyond the grace"


# --- failing closed --------------------------------------------------------------------------------------------------


async def test_nothing_is_acknowledged_after_the_log_was_closed(home: Home) -> None:
    log = await home.open()
    await log.close()
    await log.close()
    for event in (accepted(), completed("r1")):
        with pytest.raises(AuditUnavailable, match="closed"):
            await log.append(event)
    with pytest.raises(AuditUnavailable, match="closed"):
        await log.probe()
    assert log.trouble is not None


async def test_a_queue_over_its_bound_refuses_new_calls_but_lets_outcomes_in(home: Home, faults: Faults) -> None:
    settings = AuditSettings(limits=FAST.limits, cadence=FAST.cadence, queue=3)
    async with await home.open(settings=settings, open_store=faults.open) as log:
        await log.append(accepted("r1"))
        faults.gate.clear()
        waiting = [asyncio.create_task(log.append(accepted())) for _ in range(20)]
        await asyncio.sleep(0.02)
        refused = [task for task in waiting if task.done()]
        assert refused
        for task in refused:
            with pytest.raises(AuditUnavailable, match="too many"):
                await task
        outcome = asyncio.create_task(log.append(completed("r1")))
        await asyncio.sleep(0)
        faults.gate.set()
        await outcome
        await asyncio.gather(*(task for task in waiting if task not in refused))
    assert home.verify().ok


# --- the probe -------------------------------------------------------------------------------------------------------


def probing(ttl_s: float) -> AuditSettings:
    return AuditSettings(limits=FAST.limits, cadence=FAST.cadence, probe_ttl_s=ttl_s)


async def test_a_probe_is_a_durable_append_whose_result_is_kept_for_a_while(home: Home) -> None:
    async with await home.open(settings=probing(60)) as log:
        first, again = await asyncio.gather(log.probe(), log.probe())
        assert first == again == await log.probe()
    assert home.types("_system").count("system.selftest") == 1


async def test_a_probe_is_made_anew_once_the_last_is_old(home: Home) -> None:
    async with await home.open(settings=probing(0)) as log:
        first = await log.probe()
        assert (await log.probe()).seq == first.seq + 1


async def test_a_probe_of_a_failed_log_fails_and_passes_once_it_is_well(home: Home, faults: Faults) -> None:
    async with await home.open(settings=probing(0), open_store=faults.open) as log:
        faults.fail(StoreError("disk I/O error"))
        for _ in range(3):
            with pytest.raises(AuditUnavailable, match="disk I/O error"):
                await log.probe()
        faults.mend()
        await eventually(lambda: log.trouble is None)
        await log.probe()


async def test_the_failure_of_a_probe_is_kept_like_its_success(home: Home, faults: Faults) -> None:
    async with await home.open(settings=probing(60), open_store=faults.open) as log:
        faults.fail(StoreError("disk I/O error"))
        with pytest.raises(AuditUnavailable, match="disk I/O error"):
            await log.probe()
        faults.mend()
        await eventually(lambda: log.trouble is None)
        with pytest.raises(AuditUnavailable, match="disk I/O error"):
            await log.probe()


async def test_a_probe_does_not_wait_for_a_hanging_disk(home: Home, faults: Faults) -> None:
    settings = AuditSettings(limits=FAST.limits, cadence=FAST.cadence, probe_timeout_s=0.02)
    async with await home.open(settings=settings, open_store=faults.open) as log:
        faults.gate.clear()
        with pytest.raises(AuditUnavailable, match="did not answer"):
            await log.probe()
        faults.gate.set()


async def test_no_log_line_carries_a_value_of_an_event(
    home: Home, faults: Faults, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    async with await home.open(open_store=faults.open) as log:
        faults.fail(StoreError("disk I/O error"))
        with pytest.raises(AuditUnavailable):
            await log.append(accepted("r1", model_requested="sentinel-4711"))
        faults.mend()
        await eventually(lambda: log.trouble is None)
    assert "disk I/O error" in caplog.text
    assert "sentinel-4711" not in caplog.text
