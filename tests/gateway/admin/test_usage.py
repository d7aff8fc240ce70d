import csv
import io

from gateway.database.tables.usage import LedgerRow
from tests.fakes.ledger_sums import sum_up

ON_BOTH_DATABASES = True


def used(database, tenant, *requests, model="small"):
    with database.write() as session:
        for request in requests:
            session.add(
                LedgerRow(
                    tenant=tenant,
                    request_id=request,
                    project="support",
                    key_id="k1",
                    model=model,
                    region="eu-fr-par",
                    backend="b",
                    accepted_at=0.0,
                    outcome="completed",
                    day="2026-11-20",
                    tokens_in=10,
                    tokens_cached=0,
                    tokens_out=5,
                    estimated=False,
                    backend_ms=100,
                    price=1,
                    nano_eur=1000,
                )
            )
    sum_up(database)


def test_usage_of_a_tenant_is_its_own_and_of_all_is_for_those_who_may(client, database, acme, login):
    acme.create_tenant("globex")
    used(database, "acme", "r1", "r2")
    used(database, "globex", "r3")
    own, staff = login("acme", "billing"), login(None, "billing")
    (line,) = client.get("/tenants/acme/usage", headers=own, params={"by": "model"}).json()
    assert (line["model"], line["requests"], line["tokens_in"], line["nano_eur"]) == ("small", 2, 20, 2000)
    everybody = client.get("/usage", headers=staff, params={"by": ["tenant", "region"]}).json()
    assert [(line["tenant"], line["requests"]) for line in everybody] == [("acme", 2), ("globex", 1)]
    assert client.get("/usage", headers=own).status_code == 403
    assert client.get("/tenants/globex/usage", headers=own).status_code == 404


def test_usage_comes_as_csv_too(client, database, acme, operator):
    used(database, "acme", "r1", "r2", model="=1+1")
    answer = client.get("/tenants/acme/usage", headers=operator, params={"by": "model", "format": "csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert (row["model"], row["requests"]) == ("'=1+1", "2")
    calls = client.get("/tenants/acme/usage/calls", headers=operator)
    assert [row["request_id"] for row in csv.DictReader(io.StringIO(calls.text))] == ["r1", "r2"]


def test_what_cannot_be_asked_is_422(client, acme, operator):
    for params in ({"by": "colour"}, {"since": "yesterday"}, {"format": "xml"}):
        assert client.get("/tenants/acme/usage", headers=operator, params=params).status_code == 422
    assert client.get("/usage", headers=operator, params={"since": "2026-11-21", "until": "2026-11-20"}).json() == []


def test_limits_change_on_a_known_state_only(client, acme, operator):
    shown = client.get("/tenants/acme/limits", headers=operator)
    assert shown.json()["requests_per_minute"] is None
    wrong = {**operator, "if-match": '"stale"'}
    assert client.put("/tenants/acme/limits", headers=wrong, json={}).status_code == 412, "also where none are set"
    known = {**operator, "if-match": shown.headers["etag"]}
    put = client.put("/tenants/acme/limits", headers=known, json={"requests_per_minute": 5})
    assert put.json()["requests_per_minute"] == 5
    stale = {**operator, "if-match": shown.headers["etag"]}
    assert client.put("/tenants/acme/limits", headers=stale, json={}).status_code == 412
    fresh = {**operator, "if-match": put.headers["etag"]}
    assert client.put("/tenants/acme/limits", headers=fresh, json={}).json()["requests_per_minute"] is None


def test_a_tenants_own_admin_cannot_widen_the_tenants_limits(client, acme, login):
    own = login("acme", "tenant-admin")
    assert client.put("/tenants/acme/limits", headers=own, json={}).status_code == 403
    assert client.put("/tenants/acme/projects/support/limits", headers=own, json={}).status_code == 200


def test_limits_and_prices_that_make_no_sense_are_422_and_change_nothing(client, acme, operator, events):
    before = len(events)
    for body in ({"requests_per_minute": -1}, {"tokens_per_minute": 0.5}, {"eur_per_day": -0.1}, {"rpm": 5}):
        assert client.put("/tenants/acme/limits", headers=operator, json=body).status_code == 422, body
    price = {"model": "m", "input": 1, "output": 1}
    for wrong in ({"input": -1}, {"model": ""}, {"model": "a\nb"}, {"valid_from": "2020-01-01T00:00:00Z"}):
        assert client.post("/prices", headers=operator, json=price | wrong).status_code == 422, wrong
    assert len(events) == before
