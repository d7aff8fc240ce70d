"""Open deadlines in the metrics of a cell: of incidents and of requests of persons, by how near their end is."""

from datetime import UTC, datetime, timedelta

from audit.law.deadlines import rfc3339_of
from gateway.server.monitoring import cell_metrics, open_deadlines
from tests.fakes.lab import POLICY, lab
from tests.gateway.console.scene import session_of
from tests.gateway.server.monitoring.test_backend_metrics import named, samples

EVERY = {"running": 0.0, "due_soon": 0.0, "overdue": 0.0}


def set_up(made):
    made.people = {}
    for tenant in ("acme", "globex"):
        made.tenant(tenant, POLICY)
        made.people[tenant, "dpo"] = made.control.create_person(tenant, "Ada", ["dpo"]).id


async def asked(made, tenant, path, **body):
    headers = {"authorization": f"Bearer {session_of(made, tenant, 'dpo')}"}
    url = f"{made.base}/admin/v1/tenants/{tenant}/{path}"
    async with made.http.post(url, json=body, headers=headers) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json()


async def told(made, tenant, duty):
    found = samples((await made.get("/metrics/cell")).body.decode())
    assert named(found, "domicile_duties_known") == [1.0]
    return {
        state: count
        for state in EVERY
        for count in named(found, "domicile_duties", tenant=tenant, duty=duty, state=state)
    }


def ago(days):
    return rfc3339_of(datetime.now(UTC) - timedelta(days=days))


async def test_each_open_deadline_is_told_until_it_is_met(tmp_path, monkeypatch):
    for module in (open_deadlines, cell_metrics):
        monkeypatch.setattr(module, "CACHE_S", 0.0)
    monkeypatch.setattr("gateway.server.place_follower.EVERY_S", 0.1)
    async with lab(tmp_path, set_up=set_up) as made:
        assert await told(made, "acme", "request") == {}
        for days in (1, 25, 40):
            wanted = {"right": "access", "subject": "ada@example.org", "received_at": ago(days)}
            one = await asked(made, "acme", "rights/requests", **wanted)
        while not await told(made, "acme", "request"):
            pass  # the tenant is known once its first record is noted
        assert await told(made, "acme", "request") == {"running": 1.0, "due_soon": 1.0, "overdue": 1.0}
        assert await told(made, "acme", "incident") == EVERY
        await asked(made, "acme", f"rights/requests/{one['id']}/close", outcome="answered_elsewhere")
        assert await told(made, "acme", "request") == {"running": 1.0, "due_soon": 1.0, "overdue": 0.0}
        await asked(made, "acme", "incidents", laws=["gdpr"], severity="risk", aware_at=ago(2.5), freeze=False)
        assert await told(made, "acme", "incident") == {"running": 0.0, "due_soon": 1.0, "overdue": 0.0}
        assert await told(made, "globex", "request") == {}


async def test_where_deadlines_cannot_be_read_that_is_told_and_all_else_too(tmp_path, monkeypatch):
    def fails(self, tenant_label):
        raise OSError("gone")

    monkeypatch.setattr(open_deadlines.OpenDeadlines, "metrics", fails)
    async with lab(tmp_path, set_up=set_up) as made:
        found = samples((await made.get("/metrics/cell")).body.decode())
    assert named(found, "domicile_duties_known") == [0.0]
    assert named(found, "domicile_budgets_known") == [1.0]
