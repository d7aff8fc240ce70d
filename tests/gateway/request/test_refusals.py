"""Requests that are refused before a decision: counted on record, within bounds, and equal to what clients sent."""

import asyncio
import sqlite3
from contextlib import closing
from ipaddress import ip_address

import pytest

from audit.private.value_store import ValueStore
from gateway.errors import AuditUnavailable, InternalError
from gateway.installation.installation import Installation
from gateway.request import refusals
from gateway.request.refusals import MAX_ADDRESSES, MAX_KINDS, Refusal, Refusals, refusal_of
from tests.fakes.lab import POLICY, chat, lab

HERE = ip_address("203.0.113.7")
LIMITED = POLICY + "limits: {rpm: 5}\n"


class Taken:
    """What was recorded; raises `error` instead, `times` times."""

    def __init__(self, error=None, times=0):
        self.events, self.private, self.error, self.times = [], [], error, times

    async def __call__(self, event, private):
        if self.times:
            self.times -= 1
            raise self.error
        self.events.append(event)
        self.private.append(private)


async def counted(taken, *what, times=1, **settings):
    counts = Refusals(taken, **settings)
    for refusal in what:
        for _ in range(times):
            counts.count(refusal, HERE)
    await counts.close()
    return counts


async def test_refusals_of_one_kind_are_one_event_with_their_count_and_a_commitment_to_the_addresses():
    taken = Taken()
    await counted(taken, Refusal(404, "unknown_url"), times=7, clock=lambda: 1_790_000_000)
    ((event,), (private,)) = taken.events, taken.private
    assert (event.type, event.tenant, event.status, event.count) == ("request.refused", "_system", 404, 7)
    assert (event.since, event.until) == ("2026-09-21T14:13:20.000Z",) * 2
    assert private.values == {"client_ip": {"addresses": {"203.0.113.7": 7}, "others": 0}}
    assert private.expires == (1_790_000_000 + 30 * 86_400) * 1000


async def test_without_days_no_address_is_kept():
    taken = Taken()
    await counted(taken, Refusal(404, "unknown_url"), address_days=0)
    assert taken.private == [None]


async def test_a_401_is_a_failed_authentication():
    taken = Taken()
    await counted(taken, Refusal(401, "revoked", "/v1/embeddings", "acme", "K1"))
    (event,) = taken.events
    assert (event.type, event.tenant, event.key_id, event.endpoint) == ("auth.failed", "acme", "K1", "/v1/embeddings")


async def test_kinds_beyond_the_bound_are_counted_by_their_status_alone():
    taken = Taken()
    many = [Refusal(400, f"reason{number}", "/v1/embeddings", "acme", f"K{number}") for number in range(500)]
    await counted(taken, *many, Refusal(404, "unknown_url"))
    assert len([event for event in taken.events if event.tenant == "acme"]) == MAX_KINDS + 1
    assert sum(event.count for event in taken.events if event.tenant == "acme") == 500
    (rest,) = (event for event in taken.events if event.reason == "other")
    assert (rest.count, rest.key_id, rest.endpoint) == (500 - MAX_KINDS, None, None)
    assert any(event.tenant == "_system" for event in taken.events), "another tenant's flood leaves room for others"


async def test_addresses_beyond_the_bound_are_counted_together():
    taken = Taken()
    counts = Refusals(taken)
    for number in range(1000):
        counts.count(Refusal(401, "unknown"), ip_address(number))
    await counts.close()
    kept = taken.private[0].values["client_ip"]
    assert (len(kept["addresses"]), kept["others"]) == (MAX_ADDRESSES, 1000 - MAX_ADDRESSES)


async def test_a_flood_makes_no_more_events_than_intervals(monkeypatch):
    monkeypatch.setattr(refusals, "FIRST_S", 0.0)
    monkeypatch.setattr(refusals, "INTERVAL_S", 0.2)
    taken = Taken()
    counts = Refusals(taken)
    began = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < began + 0.5:
        counts.count(Refusal(401, "unknown"), HERE)
        await asyncio.sleep(0)
    spent = asyncio.get_running_loop().time() - began
    await counts.close()
    assert 1 < len(taken.events) <= 3 + spent / 0.2
    assert sum(event.count for event in taken.events) > 100


async def test_what_cannot_be_recorded_now_is_counted_on():
    taken = Taken(AuditUnavailable("disk full"), times=1)
    counts = Refusals(taken)
    counts.count(Refusal(503, "audit_unavailable", tenant="acme"), HERE)
    await counts.flush()
    assert taken.events == []
    counts.count(Refusal(503, "audit_unavailable", tenant="acme"), HERE)
    await counts.close()
    assert [event.count for event in taken.events] == [2]
    assert taken.private[0].values["client_ip"]["addresses"] == {"203.0.113.7": 2}


async def test_where_no_value_can_be_kept_the_count_is_recorded_without_addresses():
    taken = Taken(InternalError("no key"), times=1)
    await counted(taken, Refusal(404, "model_not_found", tenant="acme"))
    assert ([event.count for event in taken.events], taken.private) == ([1], [None])


@pytest.mark.parametrize(
    ("code", "reason"), [("Not A Code", "other"), ("x" * 65, "other"), ("é", "other"), (None, "internal_error")]
)
def test_a_reason_is_a_code_whatever_an_error_says(code, reason):
    assert refusal_of(InternalError("x", code=code)).reason == reason


# --- a real gateway --------------------------------------------------------------------------------------------------


def two_tenants(made):
    made.tenant("acme", LIMITED)
    made.tenant("globex")
    _, key = made.control.create_key("acme", "main")
    made.keys["revoked"] = key.token
    made.control.revoke_key("acme", key.id)


async def send_a_known_mix(made):
    """Status of each request, by tenant that the caller is authenticated as ("" for none)."""
    sent = []

    async def post(tenant, *arguments, **more):
        answer = await made.post(*arguments, **more)
        sent.append((tenant, answer.status))

    for _ in range(3):
        await post("", chat("x"), key="dom_live_nonsense")
    for _ in range(2):
        await post("acme", chat("x"), key="revoked")
    await post("", chat("x"), path="/v1/nothing")
    await post("globex", None, raw=b"{", key="globex/main")
    await post("globex", None, raw=b"x" * (5 << 20), key="globex/main")
    for model in ("none", "nowhere"):
        await post("globex", chat("x", model=model), key="globex/main")
    await post("acme", chat("my password is AKIAIOSFODNN7EXAMPLE, AWS key"))
    for _ in range(8):  # of which the limit lets some through
        await post("acme", chat("hello"))
    for path, status in (("/v1/chat/completions", 405), ("/v1/models/none", 404)):
        answer = await made.get(path, key="globex/main")
        assert answer.status == status
        sent.append(("" if status == 405 else "globex", status))
    return sent


async def test_what_clients_sent_is_what_the_record_counts(tmp_path):
    async with lab(tmp_path, set_up=two_tenants, requests={"max_body_bytes": 1 << 20}) as made:
        sent = await send_a_known_mix(made)
    for tenant, name in (("acme", "acme"), ("globex", "globex"), ("", "_system")):
        events = made.events(name)
        mine = [status for owner, status in sent if owner == tenant]
        accepted = sum(event["type"] == "inference.accepted" for event in events)
        denied = sum(event["type"] == "inference.denied" for event in events)
        refused = [event for event in events if event["type"] in ("request.refused", "auth.failed")]
        assert accepted + denied + sum(event["count"] for event in refused) == len(mine), (tenant, mine, refused)
        by_status = {}
        for event in refused:
            status = event.get("status", 401)
            by_status[status] = by_status.get(status, 0) + event["count"]
        assert by_status == {status: mine.count(status) for status in by_status}
    assert {status for _, status in sent} >= {200, 400, 401, 404, 405, 413, 429}
    revoked = [event for event in made.events("acme") if event["type"] == "auth.failed"]
    assert [(event["reason"], event["endpoint"], event["count"]) for event in revoked] == [
        ("revoked", "/v1/chat/completions", 2)
    ]
    assert made.verify().ok


async def test_the_callers_address_is_in_no_record_and_can_be_read_with_the_keys(tmp_path):
    async with lab(tmp_path) as made:
        await made.post(chat("x"), key="dom_live_nonsense")
    (event,) = [event for event in made.events("_system") if event["type"] == "auth.failed"]
    assert set(event["commits"]) == {"client_ip"}
    with closing(sqlite3.connect(made.data / "audit" / "log.db")) as db:
        counts = [leaf for (leaf,) in db.execute("select payload from leaf") if b"auth.failed" in leaf]
    assert b"127.0.0.1" not in b"".join(counts)
    keys = Installation.open(made.data).keys
    with closing(ValueStore.open_read_only(made.data / "audit" / "side.db", keys)) as side:
        (kept,) = [one for one in side.kept("_system") if one.field == "client_ip"]
        assert side.disclose(kept).value == {"addresses": {"127.0.0.1": 1}, "others": 0}


async def test_a_failed_authentication_of_the_admin_api_has_its_endpoint_and_address_as_well(tmp_path):
    async with lab(tmp_path) as made:
        for key in ("dom_admin_nonsense", made.key()):
            assert (await made.get("/admin/v1/tenants", key=key)).status == 401
        async with made.http.post(f"{made.base}/admin/v1/bootstrap", json={"display_name": "x"}) as answer:
            assert answer.status == 401
    failed = [event for event in made.events("_system") if event["type"] == "auth.failed"]
    assert sum(event["count"] for event in failed) == 3
    assert {event["endpoint"] for event in failed} == {"/admin/v1"}
    keys = Installation.open(made.data).keys
    with closing(ValueStore.open_read_only(made.data / "audit" / "side.db", keys)) as side:
        kept = [side.disclose(one).value for one in side.kept("_system") if one.field == "client_ip"]
    assert sum(one["addresses"]["127.0.0.1"] for one in kept) == 3
