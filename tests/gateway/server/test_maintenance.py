"""What is done by the clock, on a real log: once at start, again in time, by one process, and stopped cleanly."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager, closing, contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from audit.errors import AuditUnavailable
from audit.events.event import Decision, InferenceAccepted
from audit.events.private_value import Private
from audit.log.audit_log import AuditLog
from audit.log.node import NodeLock
from audit.private.erasure import erase
from audit.private.log_and_value_store import open_log_and_values
from audit.storage.attested_files import files_beside
from audit.witness.anchor_attestations import attestations
from gateway.configuration.settings import Audit
from gateway.installation.installation import Installation
from gateway.server import maintenance as chores_module
from gateway.server.maintenance import LOCK, Maintenance
from tests.fakes.tsa import FakeTsa

OFTEN = Audit.model_construct(retention_every_s=0.05, anchor_every_s=0.05)
RARELY = Audit()


@asynccontextmanager
async def custody_of(tmp_path, node="gw-1"):
    installation = Installation.create(tmp_path / "data")
    keys, signer = installation.keys, installation.signer()
    opened = open_log_and_values(installation.side_store, keys)
    async with await AuditLog.open(installation.audit_log, signer=signer, node=node, open_store=opened) as log:
        yield installation.context(log, keys, signer, backup_days=30)


def intent(request_id, tenant="acme"):
    place = {
        "backend_id": "acme-1", "region": "eu-fr-par", "inference_country": "FR", "storage_country": "FR",
        "operator_entity": "Example SAS", "operator_hq": "FR", "ultimate_parent": "Example SAS",
        "ultimate_parent_country": "FR", "transfer_basis": "intra_eea",
    }  # fmt: skip
    return InferenceAccepted(
        tenant=tenant,
        request_id=request_id,
        key_id="k",
        project="p",
        endpoint="/v1/chat/completions",
        stream=False,
        model_requested="small",
        decision=Decision(outcome="allow"),
        **place,
    )


def types(context, tenant):
    with context.reading() as reader:
        if tenant not in reader.tenants():
            return []
        return [leaf.event.type for _, leaf in context.leaves(tenant, range(reader.head(tenant)[0]))]


async def until(holds):
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def at_work(chores):
    task = asyncio.create_task(chores.run())
    try:
        yield task
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def left(context):
    with closing(context.open_values()) as side:
        return [kept.seq for kept in side.kept("acme")]


async def test_values_over_their_time_go_at_start_and_whatever_is_in_time_stays(tmp_path):
    async with custody_of(tmp_path) as context:
        now = int(time.time() * 1000)
        await context.record(intent("old"), Private({"input": "a"}, "alice", expires=now - 1))
        await context.record(intent("new"), Private({"input": "b"}, "alice", expires=now + 3_600_000))
        async with at_work(Maintenance(context, tmp_path / "data" / "audit", RARELY)):
            await until(lambda: "retention.run" in types(context, "acme"))
        assert set(left(context)) == {1}


async def test_values_that_expire_later_go_at_a_later_turn(tmp_path):
    async with custody_of(tmp_path) as context:
        soon = int(time.time() * 1000) + 300
        await context.record(intent("a"), Private({"input": "a"}, expires=soon))
        async with at_work(Maintenance(context, tmp_path / "data" / "audit", OFTEN)):
            await until(lambda: left(context) == [])


async def test_a_tenant_of_whom_records_alone_are_kept_has_its_run_too_and_loses_no_young_ones(tmp_path):
    async with custody_of(tmp_path) as context:
        await context.record(intent("a", "globex"))
        await context.record(intent("b"), Private({"input": "a"}))
        async with at_work(Maintenance(context, tmp_path / "data" / "audit", RARELY)):
            await until(
                lambda: "retention.run" in types(context, "acme") and "retention.run" in types(context, "globex")
            )
        with context.reading() as reader:
            assert all(leaf.payload for leaf in reader.leaves("globex"))


async def test_the_state_of_the_clock_is_told_at_start(tmp_path):
    async with custody_of(tmp_path) as context, at_work(Maintenance(context, tmp_path / "data" / "audit", RARELY)):
        await until(lambda: "system.clock" in types(context, "_system"))


async def test_checkpoints_are_anchored_again_and_again(tmp_path):
    async with custody_of(tmp_path) as context, at_work(Maintenance(context, tmp_path / "data" / "audit", OFTEN)):
        await context.record(intent("a"))
        await until(lambda: len(types(context, "_anchor")) >= 2)
        before = len(types(context, "_anchor"))
        await context.record(intent("b"))
        await until(lambda: len(types(context, "_anchor")) > before)


def stamping(tmp_path, url, **more):
    """Settings with an authority whose root is trusted; the authority."""
    tsa = FakeTsa()
    root = tmp_path / "root.pem"
    root.write_bytes(tsa.root.public_bytes(Encoding.PEM))
    return Audit.model_construct(anchor_every_s=0.05, timestamp_url=url, timestamp_ca=root, **more), tsa


@contextmanager
def served(tsa):
    """By HTTP on this host; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            answer = tsa(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/tsr"
        finally:
            server.shutdown()
            thread.join()


async def test_the_anchor_is_time_stamped_in_its_interval_and_not_again_after_a_restart(tmp_path):
    folder = tmp_path / "data" / "audit"
    settings, tsa = stamping(tmp_path, None, timestamp_every_s=0.4)
    with served(tsa) as url:
        settings = settings.model_copy(update={"timestamp_url": url})
        async with custody_of(tmp_path) as context:
            await context.record(intent("a"))
            async with at_work(Maintenance(context, folder, settings)):
                await until(lambda: types(context, "_anchor").count("checkpoint.timestamped") >= 2)
            asked = len(tsa.asked)
            daily = settings.model_copy(update={"timestamp_every_s": 86400})
            async with at_work(Maintenance(context, folder, daily)):
                await until(lambda: types(context, "_system").count("system.clock") == 2)
                await asyncio.sleep(0.2)
            assert len(tsa.asked) == asked
        (voucher, *_) = attestations(files_beside(folder))
        assert voucher.token is not None
        assert any(sha256(voucher.token).hexdigest() == event.token_sha256 for event in stamps(context))


def stamps(context):
    with context.reading() as reader:
        leaves = context.leaves("_anchor", range(reader.head("_anchor")[0]))
        return [leaf.event for _, leaf in leaves if leaf.event.type == "checkpoint.timestamped"]


async def test_an_authority_that_fails_is_on_record_and_stops_nothing(tmp_path, caplog):
    folder = tmp_path / "data" / "audit"
    settings, tsa = stamping(tmp_path, None, timestamp_every_s=0.05)
    tsa.nonce = 7
    with served(tsa) as url:
        settings = settings.model_copy(update={"timestamp_url": url})
        async with custody_of(tmp_path) as context:
            await context.record(intent("a"))
            async with at_work(Maintenance(context, folder, settings)):
                await until(lambda: types(context, "_anchor").count("checkpoint.timestamp_failed") >= 2)
                before = types(context, "_anchor").count("checkpoint.anchored")
                await context.record(intent("b"))
                await until(lambda: types(context, "_anchor").count("checkpoint.anchored") > before)
    assert "time-stamping could not be done" in caplog.text
    assert attestations(files_beside(folder)) == []


async def test_without_an_authority_nothing_is_stamped(tmp_path):
    async with custody_of(tmp_path) as context:
        chores = Maintenance(context, tmp_path / "data" / "audit", RARELY)
        await context.record(intent("a"))
        await chores.anchor()
        await chores.stamp()
        assert "checkpoint.timestamped" not in types(context, "_anchor")


def test_an_authority_is_configured_with_the_roots_it_is_trusted_by(tmp_path):
    with pytest.raises(ValueError, match="timestamp_url or timestamp_ca is missing"):
        Audit(timestamp_url="https://tsa.example/tsr")
    with pytest.raises(ValueError, match="timestamp_url"):
        Audit(timestamp_url="ftp://tsa.example", timestamp_ca=tmp_path)


async def test_a_deletion_that_was_interrupted_is_finished_at_start(tmp_path, monkeypatch):
    async with custody_of(tmp_path) as context:
        await context.record(intent("a"), Private({"input": "a"}, "alice"))

        async def dies(*_):
            raise AuditUnavailable("killed here")

        monkeypatch.setattr("audit.private.erasure._scrub", dies)
        with pytest.raises(AuditUnavailable):
            await erase(context, "acme", subject="alice")
        monkeypatch.undo()
        assert "erasure.completed" not in types(context, "acme")
        async with at_work(Maintenance(context, tmp_path / "data" / "audit", RARELY)):
            await until(lambda: "erasure.completed" in types(context, "acme"))


async def test_of_two_gateways_one_does_it_and_the_other_takes_over(tmp_path, monkeypatch):
    monkeypatch.setattr(chores_module, "TAKE_OVER_EVERY_S", 0.05)
    folder = tmp_path / "data" / "audit"
    async with custody_of(tmp_path) as context:
        await context.record(intent("a"), Private({"input": "a"}, expires=1))
        other = NodeLock.acquire(folder, LOCK)
        async with at_work(Maintenance(context, folder, OFTEN)):
            await asyncio.sleep(0.3)
            assert left(context) == [0]
            other.release()
            await until(lambda: left(context) == [])
        NodeLock.acquire(folder, LOCK).release()  # given back when it was stopped


async def test_what_fails_is_logged_without_content_and_tried_again(tmp_path, caplog):
    async with custody_of(tmp_path) as context:
        chores = Maintenance(context, tmp_path / "data" / "audit", OFTEN)
        tried = []

        async def fails():
            tried.append(1)
            raise (AuditUnavailable("the disk is full") if len(tried) % 2 else ValueError("prompt: secret"))

        chores.expire = fails
        async with at_work(chores):
            await until(lambda: len(tried) > 3)
        assert "retention could not be done: the disk is full" in caplog.text
        assert "retention failed: ValueError" in caplog.text
        assert "secret" not in caplog.text
