"""Webhooks: what is on record reaches its receiver signed, once, again where it failed, and nobody else."""

import asyncio
import base64
import hmac
import json
from contextlib import asynccontextmanager
from datetime import date
from hashlib import sha256
from types import SimpleNamespace

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from gateway.configuration.settings import SettingsError, Webhook, load_settings
from gateway.database.leases import Lease
from gateway.server.monitoring.budgets import BudgetUse
from gateway.store.log_followers.webhooks import KEPT_S, WebhookMessages
from gateway.webhooks import worker
from gateway.webhooks.worker import AGAIN_AFTER_S, Receiver, Webhooks
from tests.fakes.lab import chat, lab

ON_BOTH_DATABASES = True
SECRET = "a secret of at least 24 bytes"
HERE = ["127.0.0.0/8"]


class Endpoint:
    """A receiver. `statuses`: what it answers one after the other, the last one from then on."""

    def __init__(self, *statuses):
        self.statuses, self.got = list(statuses or [204]), []

    async def _take(self, request):
        self.got.append((request.headers.copy(), await request.read()))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.Response(status=status, headers={"location": "/elsewhere"} if status == 302 else {})

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_post("/hook", self._take)
        app.router.add_post("/elsewhere", self._take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/hook"
        try:
            yield self
        finally:
            await runner.cleanup()

    @property
    def events(self):
        return [json.loads(body) for _, body in self.got]


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def hook(secret):
    def make(url, *events, name="ops", networks=HERE, **more):
        return Webhook.model_validate(
            {"name": name, "url": url, "secret_file": secret, "events": events, "networks": networks, **more}
        )

    return make


class Record:
    """A log whose trees are lists of events."""

    def __init__(self, **trees):
        self.trees = {tenant: list(events) for tenant, events in trees.items()}

    def say(self, tenant, kind, **more):
        self.trees.setdefault(tenant, []).append({"type": kind, "ts": "2026-11-30T08:00:00Z", "tenant": tenant, **more})

    def __call__(self):
        return self

    def sizes(self):
        return {tenant: len(events) for tenant, events in self.trees.items()}

    def leaves(self, tenant, start=0):
        for seq, event in list(enumerate(self.trees[tenant]))[start:]:
            yield SimpleNamespace(seq=seq, payload=b"" if event is None else json.dumps(event).encode())

    def close(self):
        pass


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def sending(database):
    """Makes `Webhooks` of these hooks; what it was begun with is not sent."""

    async def make(record, *hooks, budgets=list, holder="one", clock=None):
        made = Webhooks(
            [Receiver.of(each) for each in hooks],
            WebhookMessages(database, "log"),
            Lease(database, worker.LEASE, holder, ttl_s=60),
            record,
            budgets,
            CollectorRegistry(),
            clock or Clock(),
        )
        await made.step()
        return made

    return make


def verified(headers, body):
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(SECRET.encode(), signed, sha256).digest()).decode()
    return headers["webhook-signature"] == f"v1,{expected}"


async def test_what_comes_on_record_is_sent_signed_with_its_place_and_only_what_was_asked_for(hook, sending):
    record = Record(acme=[{"type": "incident.opened", "ts": "2026-11-29T08:00:00Z", "tenant": "acme"}])
    async with Endpoint().running() as there:
        sender = await sending(record, hook(there.url, "incident.*", "admin.deployment.created"))
        record.say("acme", "incident.opened", incident_id="i-1")
        record.say("acme", "inference.accepted")
        record.say("acme", "admin.deployment.drained")
        record.say("globex", "incident.closed")
        record.trees["acme"].append(None)  # its time is over
        record.say("acme", "admin.deployment.created", target="small")
        await sender.step()
        await sender.step()
    told = sorted((event["type"], event["data"]["tenant"], event["data"]["seq"]) for event in there.events)
    assert told == [
        ("admin.deployment.created", "acme", 5), ("incident.closed", "globex", 0), ("incident.opened", "acme", 1),
    ]  # fmt: skip
    assert all(verified(*each) for each in there.got)
    assert not verified(there.got[0][0], there.got[1][1])
    assert {headers["webhook-id"] for headers, _ in there.got} == {"acme:1", "acme:5", "globex:0"}


async def test_a_receiver_of_one_tenant_hears_of_no_other(hook, sending):
    record = Record()
    async with Endpoint().running() as one, Endpoint().running() as two:
        sender = await sending(
            record, hook(one.url, "incident.*", tenants=["acme"]), hook(two.url, "incident.*", name="all")
        )
        for tenant in ("acme", "globex", "_system"):
            record.say(tenant, "incident.opened")
        await sender.step()
    assert [event["data"]["tenant"] for event in one.events] == ["acme"]
    assert len(two.events) == 3


async def test_what_fails_is_sent_again_later_under_the_same_identifier_until_it_is_taken(hook, sending):
    record, clock = Record(), Clock()
    async with Endpoint(500, 302, 429, 200).running() as there:
        sender = await sending(record, hook(there.url, "incident.*"), clock=clock)
        record.say("acme", "incident.opened")
        for tried, pause in enumerate((0, *AGAIN_AFTER_S[:3]), 1):
            assert await sender.step() == int(tried == 1), "not before its time"
            clock.now += pause
            if tried > 1:
                assert await sender.step() == 1
            assert len(there.got) == tried
        clock.now += 1e6
        assert await sender.step() == 0, "it was delivered"
    assert {headers["webhook-id"] for headers, _ in there.got} == {"acme:0"}
    assert len({headers["webhook-timestamp"] for headers, _ in there.got}) == 4
    assert all(verified(*each) for each in there.got)


@pytest.mark.parametrize(("status", "attempts"), [(500, len(AGAIN_AFTER_S) + 1), (410, 1)])
async def test_what_nobody_takes_is_given_up(hook, sending, status, attempts, caplog):
    record, clock = Record(), Clock()
    async with Endpoint(status).running() as there:
        sender = await sending(record, hook(there.url, "incident.*"), clock=clock)
        record.say("acme", "incident.opened")
        for _ in range(len(AGAIN_AFTER_S) + 3):
            await sender.step()
            clock.now += AGAIN_AFTER_S[-1]
    assert len(there.got) == attempts
    assert "webhook ops: message acme:0 is given up" in caplog.text and SECRET not in caplog.text


async def test_a_receiver_that_is_away_keeps_no_other_waiting(hook, sending):
    record = Record()
    async with Endpoint().running() as there:
        gone = hook("http://127.0.0.1:1/hook", "incident.*", name="gone")
        sender = await sending(record, gone, hook(there.url, "incident.*"))
        record.say("acme", "incident.opened")
        await sender.step()
    assert len(there.got) == 1


@pytest.mark.parametrize("networks", [[], ["10.0.0.0/8"], ["2001:db8::/32"]])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_nothing_is_sent_to_an_address_inside_that_nobody_allowed(hook, sending, host, networks, caplog):
    record = Record()
    async with Endpoint().running() as there:
        url = there.url.replace("127.0.0.1", host)
        sender = await sending(record, hook(url, "incident.*", networks=networks))
        record.say("acme", "incident.opened")
        assert await sender.step() == 1
    assert there.got == []
    assert "an address that may not be called from here" in caplog.text


async def test_of_two_gateways_one_sends_and_the_other_goes_on_where_it_ended(hook, sending, database):
    import sqlalchemy

    record = Record()
    async with Endpoint().running() as there:
        one = await sending(record, hook(there.url, "incident.*"))
        two = await sending(record, hook(there.url, "incident.*"), holder="two")
        record.say("acme", "incident.opened")
        assert (await two.step(), await one.step()) == (0, 1)
        record.say("acme", "incident.closed")
        with database.engine.begin() as connection:
            connection.execute(sqlalchemy.text("UPDATE lease SET until = 0"))
        assert await two.step() == 1
    assert [event["type"] for event in there.events] == ["incident.opened", "incident.closed"]


async def test_a_budget_is_told_once_a_period_and_step(hook, sending):
    used = [BudgetUse("acme", "main", "eur_per_month", 79.0, 100.0, date(2026, 11, 1))]
    clock = Clock()
    async with Endpoint().running() as there:
        asked = hook(there.url, "budget.*"), hook(there.url, "incident.*", name="other")
        sender = await sending(Record(), *asked, budgets=lambda: used, clock=clock)
        for amount, begun in ((80.0, 11), (90.0, 11), (100.0, 11), (130.0, 11), (5.0, 12), (85.0, 12)):
            used[0] = used[0]._replace(used=amount, began=date(2026, begun, 1))
            clock.now += 20
            await sender.step()
    assert [(e["type"], e["data"]["used"], e["data"]["since"]) for e in there.events] == [
        ("budget.nearly_used", 80.0, "2026-11-01"), ("budget.used_up", 100.0, "2026-11-01"),
        ("budget.nearly_used", 85.0, "2026-12-01"),
    ]  # fmt: skip
    place = {"tenant": "acme", "project": "main", "limit": "eur_per_month", "budget": 100.0}
    assert there.events[0]["data"] == place | {"used": 80.0, "since": "2026-11-01"}


async def test_what_is_over_is_forgotten_and_what_waits_is_not(hook, sending, database):
    record, clock = Record(), Clock()
    async with Endpoint(200, 500).running() as there:
        sender = await sending(record, hook(there.url, "incident.*"), clock=clock)
        record.say("acme", "incident.opened")
        await sender.step()
        record.say("acme", "incident.closed")
        await sender.step()
        messages = WebhookMessages(database, "log")
        messages.expire(clock.now + KEPT_S + 1)
        assert messages.waiting() == {"ops": 1}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"events": ["inference.denied"]}, "no type of event that is sent"),
        ({"events": ["incident.opend"]}, "did you mean incident.opened?"),
        ({"events": ["*"]}, "no type of event"),
        ({"events": []}, "at least 1"),
        ({"url": "http://hooks.example.eu/x"}, "not an https URL"),
        ({"url": "https://user:pw@hooks.example.eu/x"}, "not an https URL"),
        ({"name": "Ops Team"}, "pattern"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_webhook_that_makes_no_sense_is_refused(wrong, said, tmp_path):
    given = {"name": "ops", "url": "https://hooks.example.eu/x", "secret_file": str(tmp_path), "events": ["incident.*"]}
    with pytest.raises(SettingsError, match="webhooks") as error:
        load_settings(webhooks=[given | wrong])
    assert said in str(error.value) and "pw" not in str(error.value)


def test_two_webhooks_of_one_name_are_refused(tmp_path):
    given = {"name": "ops", "url": "https://hooks.example.eu/x", "secret_file": str(tmp_path), "events": ["incident.*"]}
    with pytest.raises(SettingsError, match="two webhooks have one name"):
        load_settings(webhooks=[given, given])


DELIVERED = 'domicile_webhook_deliveries_total{outcome="delivered",webhook="ops"}'


async def test_a_gateway_sends_what_is_recorded_and_no_word_of_a_call(tmp_path, secret):
    async with Endpoint().running() as there:
        given = {
            "name": "ops", "url": there.url, "secret_file": str(secret), "events": ["auth.failed"],
            "networks": HERE,
        }  # fmt: skip
        async with lab(tmp_path, webhooks=[given]) as made:
            async with asyncio.timeout(60):
                while not there.got:
                    assert (await made.post(chat("write to jan@example.org"))).status == 200
                    await made.post(chat("hi"), key="dom_live_of_nobody")
                    await asyncio.sleep(0.3)
            async with asyncio.timeout(60):  # it is counted when its answer has come, after it was received
                while DELIVERED not in (await made.get("/metrics")).body.decode():
                    await asyncio.sleep(0.05)
    assert {event["type"] for event in there.events} == {"auth.failed"}
    assert all(verified(*each) for each in there.got)
    assert "dom_live_of_nobody" not in str(there.got) and "jan@example.org" not in str(there.got)
